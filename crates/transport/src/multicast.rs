//! Multicast groups: which queue pairs get a copy of what is sent to them (IBTA volume 1, 10.5).

use core::net::IpAddr;
use std::collections::BTreeMap;

use mitra_verbs::{Error, Gid, Limits, QpType, Qpn, Result, Time};
use mitra_wire::{Packet, Transport};

use crate::host::Route;
use crate::{Memory, Nic};

/// The destination of multicast packets. No queue pair has this number.
pub(crate) const MULTICAST: Qpn = Qpn::new(0xff_ffff);

/// A queue pair in a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Member {
    qpn: Qpn,
    /// Whether it gets what it sends itself.
    own: bool,
}

/// The groups that somebody is attached to.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<Gid, Vec<Member>>,
    /// Members of all groups.
    attached: u32,
}

fn limit(what: &'static str, taken: usize, limit: u32) -> Result<()> {
    let asked = taken as u64 + 1;
    if asked > limit.into() {
        Err(Error::Limit { attribute: what, requested: asked, limit: limit.into() })
    } else {
        Ok(())
    }
}

impl Groups {
    /// Attaches a queue pair. Once more changes nothing.
    fn attach(&mut self, group: Gid, member: Member, limits: &Limits) -> Result<()> {
        let there = self.of(group);
        if there.iter().any(|other| other.qpn == member.qpn) {
            return Ok(());
        }
        if there.is_empty() {
            limit("multicast groups", self.members.len(), limits.mcast_groups)?;
        }
        limit("queue pairs of a multicast group", there.len(), limits.mcast_qps)?;
        limit("attachments to multicast groups", self.attached as usize, limits.mcast_attached)?;
        self.attached += 1;
        self.members.entry(group).or_default().push(member);
        Ok(())
    }

    fn detach(&mut self, group: Gid, qpn: Qpn) -> Result<()> {
        let members = self.members.get_mut(&group);
        let found = members.and_then(|list| Some((list.iter().position(|other| other.qpn == qpn)?, list)));
        let Some((at, list)) = found else {
            return Err(Error::Invalid("the queue pair is not attached to this multicast group"));
        };
        list.remove(at);
        if list.is_empty() {
            self.members.remove(&group);
        }
        self.attached -= 1;
        Ok(())
    }

    /// Whether a queue pair is in any group.
    pub(crate) fn have(&self, qpn: Qpn) -> bool {
        self.members.values().flatten().any(|member| member.qpn == qpn)
    }

    fn of(&self, group: Gid) -> &[Member] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }
}

impl Nic {
    /// Attaches a UD queue pair to a multicast group: it gets a copy of each message to it, of its `own` only if asked.
    /// Once more changes nothing (`man ibv_attach_mcast`).
    pub fn attach_mcast(&mut self, qp: Qpn, group: Gid, own: bool) -> Result<()> {
        if self.qps.get(qp)?.common.init.qp_type != QpType::Ud {
            return Err(Error::Invalid("only UD queue pairs can be attached to a multicast group"));
        }
        let [to, from] = [group, self.host.config.gid].map(IpAddr::from);
        if !to.is_multicast() {
            return Err(Error::Invalid(
                "this is no multicast GID: ff.., or an IPv4 group as ::ffff:224.0.0.0 and up (RoCEv2)",
            ));
        }
        if to.is_ipv4() != from.is_ipv4() {
            return Err(Error::Invalid(
                "a NIC with an IPv4 address reaches IPv4 groups (::ffff:224.0.0.0 and up), one with an IPv6 address IPv6 groups",
            ));
        }
        let limits = self.attr().limits;
        self.groups.attach(group, Member { qpn: qp, own }, &limits)
    }

    /// Detaches a queue pair from a group.
    pub fn detach_mcast(&mut self, qp: Qpn, group: Gid) -> Result<()> {
        self.groups.detach(group, qp)
    }

    /// Whether anybody is attached to a group: then its packets are wanted.
    pub fn has_mcast_members(&self, group: Gid) -> bool {
        !self.groups.of(group).is_empty()
    }

    /// Executes a packet that was sent to a multicast group, on each queue pair that is attached to it; otherwise as
    /// [`Nic::handle_packet`].
    pub fn handle_multicast(
        &mut self,
        now: Time,
        source: Gid,
        group: Gid,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        if !self.admits(packet) {
            return;
        }
        if packet.dest_qp != MULTICAST || !self.has_mcast_members(group) {
            self.host.counters.drop_no_qp += 1;
            return;
        }
        let is_own = source == self.host.config.gid;
        let mut at = 0;
        while let Some(&Member { qpn, own }) = self.groups.of(group).get(at) {
            at += 1;
            let sent_it = is_own && matches!(packet.transport, Transport::Ud(deth) if deth.src_qp == qpn);
            if own || !sent_it {
                self.give(now, qpn, Route { source, destination: group }, packet, memory);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(n: u32) -> Gid {
        IpAddr::from((0xef00_0000 + n).to_be_bytes()).into()
    }

    #[test]
    fn there_is_a_limit_on_groups_on_members_of_each_and_on_all() {
        let most = crate::NicConfig::new("", Gid([0; 16]), [0; 32]).limits;
        let limits = Limits { mcast_groups: 2, mcast_qps: 3, mcast_attached: 5, ..most };
        let mut groups = Groups::default();
        let mut attach = |of: u32, qpn: u32| {
            groups.attach(group(of), Member { qpn: Qpn::new(qpn), own: true }, &limits).is_ok()
        };
        assert!(attach(1, 10) && attach(2, 10));
        assert!(!attach(3, 10), "a third group");
        assert!(attach(1, 11) && attach(1, 12));
        assert!(!attach(1, 13), "a fourth member");
        assert!(attach(1, 12), "is a member already");
        assert!(attach(2, 11));
        assert!(!attach(2, 12), "a sixth in all");
        groups.detach(group(1), Qpn::new(11)).unwrap();
        assert!(groups.detach(group(1), Qpn::new(11)).is_err());
        assert!(groups.detach(group(3), Qpn::new(10)).is_err());
        groups.attach(group(2), Member { qpn: Qpn::new(12), own: true }, &limits).unwrap();
        assert!(groups.have(Qpn::new(12)) && !groups.have(Qpn::new(13)));
    }
}
