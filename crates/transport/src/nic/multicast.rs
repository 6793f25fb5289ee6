//! Multicast groups and the UD queue pairs that are attached to them (IBTA volume 1, 10.5).

use core::net::IpAddr;
use std::collections::BTreeMap;

use mitra_verbs::{Error, Gid, Limits, Qpn, Result, Time};
use mitra_wire::{Packet, Transport};

use crate::nic::shared_state::Route;
use crate::{IpPath, Memory, Nic};

/// The destination queue pair number of multicast packets. No queue pair has this number.
const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// A queue pair that is attached to a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Member {
    qpn: Qpn,
    /// Whether the queue pair receives copies of the messages that it sends itself.
    loopback: bool,
}

/// The multicast groups that have members.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct MulticastGroups {
    members: BTreeMap<Gid, Vec<Member>>,
    /// The number of members of all groups together.
    attached: u32,
}

/// Checks whether an object may be added when `live` objects exist. `attribute` names the limit in
/// the error.
fn check_limit(attribute: &'static str, live: usize, limit: u32) -> Result<()> {
    let requested = live as u64 + 1;
    if requested > limit.into() {
        Err(Error::Limit { attribute, requested, limit: limit.into() })
    } else {
        Ok(())
    }
}

impl MulticastGroups {
    /// Attaching a member again has no effect.
    fn attach(&mut self, group: Gid, member: Member, limits: &Limits) -> Result<()> {
        let members = self.members(group);
        if members.iter().any(|other| other.qpn == member.qpn) {
            return Ok(());
        }
        if members.is_empty() {
            check_limit("multicast groups", self.members.len(), limits.mcast_groups)?;
        }
        check_limit("queue pairs of a multicast group", members.len(), limits.mcast_qps)?;
        check_limit("attachments to multicast groups", self.attached as usize, limits.mcast_attached)?;
        self.attached += 1;
        self.members.entry(group).or_default().push(member);
        Ok(())
    }

    fn detach(&mut self, group: Gid, qpn: Qpn) -> Result<()> {
        let members = self.members.get_mut(&group);
        let found = members.and_then(|list| Some((list.iter().position(|other| other.qpn == qpn)?, list)));
        let Some((index, list)) = found else {
            return Err(Error::Invalid(
                "the queue pair is not attached to this multicast group; attach it first",
            ));
        };
        list.remove(index);
        if list.is_empty() {
            self.members.remove(&group);
        }
        self.attached -= 1;
        Ok(())
    }

    pub(crate) fn contains_qp(&self, qpn: Qpn) -> bool {
        self.members.values().flatten().any(|member| member.qpn == qpn)
    }

    fn members(&self, group: Gid) -> &[Member] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }
}

impl Nic {
    /// Attaches a UD queue pair or the GSI queue pair to a multicast group. The queue pair then
    /// receives a copy of each message to the group.
    ///
    /// The queue pair receives copies of its own messages if `loopback` is set. Attaching a queue
    /// pair again has no effect (`man ibv_attach_mcast`).
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the queue pair does not exist.
    /// - [`Error::Invalid`]: the queue pair is neither UD nor the GSI queue pair, or `group` is no
    ///   multicast GID of the NIC's address family.
    /// - [`Error::Limit`]: the NIC has the maximum number of groups or of attachments, or the group
    ///   has the maximum number of members.
    pub fn attach_mcast(&mut self, qp: Qpn, group: Gid, loopback: bool) -> Result<()> {
        if !self.qps.get(qp)?.attrs.init.qp_type.is_datagram() {
            return Err(Error::Invalid(
                "only UD queue pairs can be attached to a multicast group; create one of this type",
            ));
        }
        let [group_ip, nic_ip] = [group, self.shared.config.gid].map(IpAddr::from);
        if !group_ip.is_multicast() {
            return Err(Error::Invalid(
                "not a multicast GID; use an address in ff00::/8, or an IPv4 group as ::ffff:224.0.0.0 and up",
            ));
        }
        if group_ip.is_ipv4() != nic_ip.is_ipv4() {
            return Err(Error::Invalid(
                "the multicast group and the NIC must have the same address family; an IPv4 group is ::ffff:224.0.0.0 and up",
            ));
        }
        let limits = self.attr().limits;
        self.groups.attach(group, Member { qpn: qp, loopback }, &limits)
    }

    /// Detaches a queue pair from a group.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the queue pair is not attached to the group.
    pub fn detach_mcast(&mut self, qp: Qpn, group: Gid) -> Result<()> {
        self.groups.detach(group, qp)
    }

    /// Returns whether a queue pair is attached to the group, so that the driver has to receive the
    /// group's packets.
    pub fn has_mcast_members(&self, group: Gid) -> bool {
        !self.groups.members(group).is_empty()
    }

    /// Executes a packet that was sent to a multicast group, once for each queue pair that is
    /// attached to the group.
    ///
    /// The requirements are the same as for [`Nic::handle_packet`].
    pub fn handle_multicast(
        &mut self,
        now: Time,
        source: impl Into<IpPath>,
        group: Gid,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        if !self.accept_packet(packet) {
            return;
        }
        if packet.dest_qp != MULTICAST_QPN || !self.has_mcast_members(group) {
            self.shared.counters.drop_no_qp += 1;
            return;
        }
        let source = source.into();
        let from_this_nic = source.address == self.shared.config.gid;
        let mut index = 0;
        while let Some(&Member { qpn, loopback }) = self.groups.members(group).get(index) {
            index += 1;
            let is_sender =
                from_this_nic && matches!(packet.transport, Transport::Ud(deth) if deth.src_qp == qpn);
            if loopback || !is_sender {
                self.dispatch(now, qpn, Route { source, destination: group }, packet, memory);
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
    fn attach_respects_limits_on_groups_members_and_attachments() {
        let defaults = crate::NicConfig::new("", Gid([0; 16]), [0; 32]).limits;
        let limits = Limits { mcast_groups: 2, mcast_qps: 3, mcast_attached: 5, ..defaults };
        let mut groups = MulticastGroups::default();
        let mut attach = |n: u32, qpn: u32| {
            groups.attach(group(n), Member { qpn: Qpn::new(qpn), loopback: true }, &limits).is_ok()
        };
        assert!(attach(1, 10) && attach(2, 10));
        assert!(!attach(3, 10), "a third group exceeds the limit");
        assert!(attach(1, 11) && attach(1, 12));
        assert!(!attach(1, 13), "a fourth member exceeds the limit");
        assert!(attach(1, 12), "attaching a member again is allowed");
        assert!(attach(2, 11));
        assert!(!attach(2, 12), "a sixth attachment exceeds the limit");
        groups.detach(group(1), Qpn::new(11)).unwrap();
        assert!(groups.detach(group(1), Qpn::new(11)).is_err());
        assert!(groups.detach(group(3), Qpn::new(10)).is_err());
        groups.attach(group(2), Member { qpn: Qpn::new(12), loopback: true }, &limits).unwrap();
        assert!(groups.contains_qp(Qpn::new(12)) && !groups.contains_qp(Qpn::new(13)));
    }
}
