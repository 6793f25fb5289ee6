//! Multicast groups.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use mitra_verbs::{Error, GRH_LEN, Gid, Provider, QpType, Qpn, SendFlags, SendOp, SendWr, UdDestination};

use super::datagrams::datagram_options;
use crate::endpoint::{Endpoint, QKEY};
use crate::{CaseResult, Fabric};

const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);
/// The length of a receive, in bytes: the GRH and 256 bytes of payload.
const RECEIVE_LEN: u64 = GRH_LEN as u64 + 256;

/// Returns a group that no other case uses, in this process or another.
fn unique_group() -> Gid {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    // Another range than that of other tests of this machine.
    IpAddr::from([238, high, low, NEXT.fetch_add(1, Ordering::Relaxed)]).into()
}

/// A UD queue pair with receives, and the group to which it is attached. Dropping it detaches it.
struct Member<'f> {
    end: Endpoint<'f>,
    group: Option<Gid>,
}

impl<'f> Member<'f> {
    fn new(fabric: &'f dyn Fabric, nic: &Arc<dyn Provider>, group: Option<Gid>) -> CaseResult<Member<'f>> {
        let end = Endpoint::new(fabric, Arc::clone(nic), datagram_options(QpType::Ud))?;
        end.start_datagrams(QKEY)?;
        for i in 0..32 {
            end.post_recv(i, i * RECEIVE_LEN, RECEIVE_LEN as u32)?;
        }
        let mut member = Member { end, group: None };
        if let Some(group) = group {
            member.end.nic.attach_mcast(member.end.qp, group, true)?;
            member.group = Some(group);
        }
        Ok(member)
    }

    fn detach(&mut self) -> CaseResult {
        match self.group.take() {
            Some(group) => Ok(self.end.nic.detach_mcast(self.end.qp, group)?),
            None => Ok(()),
        }
    }

    fn send(&self, group: Gid, message: &[u8]) -> CaseResult {
        let ah = self.end.nic.create_ah(self.end.pd, group)?;
        self.end.memory.write_at(65_536, message);
        let send = SendWr::new(99, SendOp::Send, self.end.data(65_536, message.len() as u32));
        let to = UdDestination { ah, qpn: MULTICAST_QPN, qkey: QKEY };
        self.end.post_wr(send.with_flags(SendFlags::SIGNALED).to(to))?;
        // The address handle is in use until then, and a message to this NIC itself may be first.
        Ok(())
    }

    /// Returns the next message, and skips the completions of sends.
    fn next_message(&self) -> Vec<u8> {
        let wc = loop {
            let wc = self.end.wait_success();
            if wc.wr_id != 99 {
                break wc;
            }
        };
        let at = (wc.wr_id * RECEIVE_LEN) as usize + GRH_LEN;
        self.end.bytes(at, wc.byte_len as usize - GRH_LEN)
    }

    /// Waits a while, and asserts that no message has arrived.
    fn assert_no_message(&self) -> CaseResult {
        self.end.pause();
        let mut wcs = Vec::new();
        self.end.nic.poll_cq(self.end.cq, 16, &mut wcs)?;
        assert!(wcs.iter().all(|wc| wc.wr_id == 99), "{wcs:?}");
        Ok(())
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

pub(super) fn members_receive_each_message_once(fabric: &dyn Fabric) -> CaseResult {
    let [near, far] = fabric.nics();
    let group = unique_group();
    let sender = Member::new(fabric, &near, None)?;
    let members = [Member::new(fabric, &far, Some(group))?, Member::new(fabric, &far, Some(group))?];
    let outside = Member::new(fabric, &far, None)?;
    for i in 0..8 {
        sender.send(group, &[i; 100])?;
        for member in &members {
            assert_eq!(member.next_message(), [i; 100]);
        }
    }
    members.iter().chain([&outside]).try_for_each(Member::assert_no_message)
}

pub(super) fn sender_receives_its_own_message(fabric: &dyn Fabric) -> CaseResult {
    let [near, far] = fabric.nics();
    let group = unique_group();
    let members = [Member::new(fabric, &near, Some(group))?, Member::new(fabric, &far, Some(group))?];
    for i in 0..8 {
        members[usize::from(i % 2)].send(group, &[i; 50])?;
        for member in &members {
            assert_eq!(member.next_message(), [i; 50]);
        }
    }
    members.iter().try_for_each(Member::assert_no_message)
}

pub(super) fn group_receives_only_its_messages(fabric: &dyn Fabric) -> CaseResult {
    let [near, far] = fabric.nics();
    let groups = [unique_group(), unique_group()];
    let sender = Member::new(fabric, &near, None)?;
    let members = [Member::new(fabric, &far, Some(groups[0]))?, Member::new(fabric, &far, Some(groups[1]))?];
    sender.send(groups[1], b"to the second")?;
    sender.send(groups[0], b"to the first")?;
    assert_eq!(members[0].next_message(), b"to the first");
    assert_eq!(members[1].next_message(), b"to the second");
    members.iter().try_for_each(Member::assert_no_message)
}

pub(super) fn detached_queue_pair_receives_nothing(fabric: &dyn Fabric) -> CaseResult {
    let [near, far] = fabric.nics();
    let group = unique_group();
    let sender = Member::new(fabric, &near, None)?;
    let mut first = Member::new(fabric, &far, Some(group))?;
    let second = Member::new(fabric, &far, Some(group))?;
    let busy = first.end.nic.destroy_qp(first.end.qp);
    assert!(matches!(busy, Err(Error::Busy { .. })), "an attached queue pair: {busy:?}");
    first.detach()?;
    sender.send(group, b"one is left")?;
    assert_eq!(second.next_message(), b"one is left");
    first.assert_no_message()?;
    let again = first.end.nic.detach_mcast(first.end.qp, group);
    assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
    Ok(())
}

pub(super) fn unicast_addresses_have_no_members(fabric: &dyn Fabric) -> CaseResult {
    let [near, far] = fabric.nics();
    let member = Member::new(fabric, &near, None)?;
    let address = far.query_port()?.gid;
    match member.end.nic.attach_mcast(member.end.qp, address, true) {
        Err(Error::Unsupported(what)) => Err(crate::Stop::refused(what)),
        refused => {
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
            Ok(())
        }
    }
}
