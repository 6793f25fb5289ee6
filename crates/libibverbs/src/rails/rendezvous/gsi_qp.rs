//! Queue pair 1 of a NIC (the general services interface), with an interface like that of a
//! datagram socket.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use mitra_failover::LocalNic;
use mitra_verbs::{
    Access, AhId, Buffer, CqId, Data, GRH_LEN, GSI_QKEY, Gid, Mr, Psn, QpAttr, QpCap, QpInitAttr, QpState,
    QpType, Qpn, RecvWr, Result, SendOp, SendWr, SrqId, UdDestination, Wc, WcOpcode, WcStatus,
};

use super::MAX_MESSAGE;

/// The number of receives that are posted. It is also the maximum number of sends in flight.
pub(super) const SLOTS: u64 = 256;
/// The size of a receive buffer or a send buffer, in bytes.
const SLOT_BYTES: usize = GRH_LEN + MAX_MESSAGE;
const MAX_HANDLES: usize = 256;

/// The destination queue pair number of datagrams to a multicast group (IBTA volume 1, 3.5.8).
const MULTICAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// Returns the multicast group of the rendezvous in a GID's address family. The IPv4 group has
/// organization-local scope (RFC 2365), the IPv6 group is transient and link-local (RFC 4291, 2.7).
/// The group is not registered, so other programs' datagrams may arrive.
pub(super) fn group_of(gid: Gid) -> Gid {
    match IpAddr::from(gid) {
        IpAddr::V4(_) => IpAddr::from([239, 192, 77, 84]).into(),
        IpAddr::V6(_) => IpAddr::from([0xff12, 0, 0, 0, 0, 0, 0x4d54, 0x4741]).into(),
    }
}

pub(super) struct GsiQp {
    nic: LocalNic,
    group: Gid,
    recv_cq: CqId,
    /// The completion queue for sends. It is separate from `recv_cq`, so that completions of sends
    /// cannot overflow that queue.
    send_cq: CqId,
    qpn: Qpn,
    /// The shared receive queue of the receives, if there is one.
    srq: Option<SrqId>,
    /// The receive buffers, followed by the send buffers.
    memory: Arc<Buffer>,
    mr: Mr,
    /// The cached address handles with their destinations, oldest first.
    handles: VecDeque<(Gid, AhId)>,
    /// The number of datagrams sent so far. The send buffers are used in turn.
    sent: u64,
    /// The number of sent datagrams whose completions were polled. Their send buffers are free.
    completed: u64,
    /// Reused by every poll.
    wcs: Vec<Wc>,
}

impl GsiQp {
    /// Creates the queue pair and posts its receives. When a datagram arrives after
    /// [`GsiQp::arm`], the NIC reports an event on its completion channel. If there is an `srq`,
    /// the receives are posted to it, and the NIC reports
    /// [`AsyncEvent::SrqLimitReached`](mitra_verbs::AsyncEvent) instead. In contrast to an armed
    /// completion queue, an armed shared receive queue does not affect which thread drives the NIC.
    ///
    /// # Errors
    /// The error of the NIC, for instance if queue pair 1 is in use.
    pub(super) fn new(nic: &LocalNic, srq: Option<SrqId>) -> Result<GsiQp> {
        let p = &nic.provider;
        let depth = SLOTS as u32;
        let (recv_cq, send_cq) = (p.create_cq(depth, nic.channel.as_ref())?, p.create_cq(depth, None)?);
        let recv_wrs = if srq.is_none() { depth } else { 0 };
        let cap = QpCap { send_wrs: depth, recv_wrs, send_sges: 1, recv_sges: 1, inline: 0 };
        let init =
            QpInitAttr { qp_type: QpType::Gsi, pd: nic.pd, send_cq, recv_cq, srq, cap, sq_sig_all: true };
        // A NIC of the kernel refuses, and has room for the program's objects instead.
        let refused = |_: &_| [recv_cq, send_cq].into_iter().for_each(|cq| drop(p.destroy_cq(cq)));
        let qpn = p.create_qp(&init).inspect_err(refused)?;
        let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
        p.modify_qp(qpn, &QpAttr { qkey: Some(GSI_QKEY), ..init })?;
        p.modify_qp(qpn, &QpAttr::to(QpState::Rtr))?;
        p.modify_qp(qpn, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) })?;
        // The first half of the memory is for receives, the second for sends.
        let memory = Arc::new(Buffer::new(2 * SLOTS as usize * SLOT_BYTES));
        let mr = p.reg_mr(nic.pd, Arc::clone(&memory), Access::LOCAL_WRITE)?;
        let gsi = GsiQp {
            nic: nic.clone(),
            group: group_of(p.query_port()?.gid),
            recv_cq,
            send_cq,
            qpn,
            srq,
            memory,
            mr,
            handles: VecDeque::new(),
            sent: 0,
            completed: 0,
            wcs: Vec::new(),
        };
        (0..SLOTS).try_for_each(|slot| gsi.post_recv(slot))?;
        Ok(gsi)
    }

    fn post_recv(&self, slot: u64) -> Result<()> {
        let sge = self.mr.sge(slot * SLOT_BYTES as u64, SLOT_BYTES as u32);
        let receive = [RecvWr::new(slot, sge)];
        let posted = match self.srq {
            None => self.nic.provider.post_recv(self.qpn, &receive),
            Some(srq) => self.nic.provider.post_srq_recv(srq, &receive),
        };
        posted.map_err(|e| e.error)
    }

    /// Requests an event for the next datagram. With a shared receive queue, the event is reported
    /// at once if a datagram already waits. Otherwise the caller must poll once more.
    ///
    /// # Errors
    /// The error of the NIC.
    pub(super) fn arm(&self) -> Result<()> {
        match self.srq {
            None => self.nic.provider.req_notify_cq(self.recv_cq, false),
            Some(srq) => self.nic.provider.arm_srq(srq, SLOTS as u32),
        }
    }

    /// Returns whether datagrams complete in this completion queue.
    pub(super) fn receives_in(&self, cq: CqId) -> bool {
        self.recv_cq == cq
    }

    /// Joins the multicast group of the rendezvous. This device also receives its own questions to
    /// the group, because a program may know its own device by a former GID.
    ///
    /// # Errors
    /// The error of the NIC, for instance if the system has no multicast on its interface.
    pub(super) fn join_group(&self) -> Result<()> {
        self.nic.provider.attach_mcast(self.qpn, self.group, true)
    }

    /// Drops the datagram in the cases of [`GsiQp::send`].
    pub(super) fn send_to_group(&mut self, bytes: &[u8]) {
        self.send(self.group, bytes);
    }

    /// Sends a datagram. If the queue is full, the NIC has failed, or the datagram is too long, the
    /// datagram is dropped without an error, because it could be lost in the network as well.
    pub(super) fn send(&mut self, to: Gid, bytes: &[u8]) {
        let Ok(ah) = self.address_handle(to) else { return };
        if bytes.len() > MAX_MESSAGE || !self.has_free_send_slot() {
            return;
        }
        let slot = SLOTS + self.sent % SLOTS;
        self.memory.write_at(slot as usize * SLOT_BYTES, bytes);
        let data = Data::sge(self.mr.sge(slot * SLOT_BYTES as u64, bytes.len() as u32));
        let qpn = if to == self.group { MULTICAST_QPN } else { Qpn::new(1) };
        let to = UdDestination { ah, qpn, qkey: GSI_QKEY };
        let posted = self.nic.provider.post_send(self.qpn, &[SendWr::new(slot, SendOp::Send, data).to(to)]);
        self.sent += u64::from(posted.is_ok());
    }

    /// Returns whether the next send buffer is free. Polls the completion queue only if all send
    /// buffers appear to be in use.
    fn has_free_send_slot(&mut self) -> bool {
        if self.sent - self.completed == SLOTS {
            self.wcs.clear();
            // A dead NIC completes nothing. The virtual queue pairs detect that it is dead.
            let _ = self.nic.provider.poll_cq(self.send_cq, SLOTS as usize, &mut self.wcs);
            self.completed += self.wcs.len() as u64;
        }
        self.sent - self.completed < SLOTS
    }

    fn address_handle(&mut self, to: Gid) -> Result<AhId> {
        if let Some((_, ah)) = self.handles.iter().find(|(gid, _)| *gid == to) {
            return Ok(*ah);
        }
        if self.handles.len() == MAX_HANDLES
            && let Some((_, oldest)) = self.handles.pop_front()
        {
            // If the address handle cannot be destroyed, only its memory is lost.
            let _ = self.nic.provider.destroy_ah(oldest);
        }
        let ah = self.nic.provider.create_ah(self.nic.pd, to)?;
        self.handles.push_back((to, ah));
        Ok(ah)
    }

    /// Calls `on_datagram` with the source and the payload of each datagram that has arrived.
    pub(super) fn poll(&mut self, mut on_datagram: impl FnMut(Gid, &[u8])) {
        let mut wcs = std::mem::take(&mut self.wcs);
        wcs.clear();
        // A dead NIC receives nothing. The virtual queue pairs detect that it is dead.
        let _ = self.nic.provider.poll_cq(self.recv_cq, SLOTS as usize, &mut wcs);
        for wc in wcs.iter().filter(|wc| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success) {
            let mut bytes = [0; SLOT_BYTES];
            let len = (wc.byte_len as usize).min(SLOT_BYTES);
            self.memory.read_at(wc.wr_id as usize * SLOT_BYTES, &mut bytes[..len]);
            if let Some((grh, payload)) = bytes[..len].split_first_chunk::<GRH_LEN>() {
                on_datagram(Gid::from_grh(grh), payload);
            }
            // The post fails only if the NIC has failed.
            let _ = self.post_recv(wc.wr_id);
        }
        self.wcs = wcs;
    }
}
