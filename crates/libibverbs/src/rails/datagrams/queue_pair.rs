//! A UD queue pair of the program over several rails.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use mitra_failover::Domain;
use mitra_verbs::{
    AsyncEvent, Error, GRH_LEN, Gid, PostError, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr,
    Result, SendWr, SqDrain, Wc, WcOpcode, WcStatus, check_modify,
};

use super::arrivals::{Arrivals, slot_of};
use super::directory::is_multicast;
use super::network::DatagramNetwork;
use super::rail_qp::RailQp;
use super::send_queue::SendQueue;
use crate::common::grh;
use crate::common::limit::check_limit;
use crate::common::lock::lock;
use crate::rails::device::QueuePair;
use crate::rails::protection_domain::MultiRailPd;
use crate::rails::queue_users::{PolledUser, QueueUser};
use crate::rails::rendezvous::QpNumbers;
use crate::rails::virtual_cq::VirtualCq;
use crate::rails::virtual_srq::VirtualSrq;

/// The maximum number of completions of a rail that one call handles, so that a rail does not keep
/// the others waiting.
const BATCH: usize = 256;

#[derive(Clone)]
pub(crate) struct DatagramParams {
    pub(crate) init: QpInitAttr,
    pub(crate) pd: Arc<MultiRailPd>,
    pub(crate) send_cq: Arc<VirtualCq>,
    pub(crate) recv_cq: Arc<VirtualCq>,
    pub(crate) srq: Option<Arc<VirtualSrq>>,
    pub(crate) on_event: Arc<dyn Fn(AsyncEvent) + Send + Sync>,
    pub(crate) network: Arc<DatagramNetwork>,
}

pub(super) struct LockedState {
    /// The queue pairs by rail. `None` on a rail whose NIC was dead at creation.
    pub(super) rails: Vec<Option<RailQp>>,
    pub(super) state: QpState,
    /// The attributes that the program has set.
    attr: QpAttr,
    pub(super) sends: SendQueue,
    /// The posted receives, unless there is a shared receive queue.
    receives: VecDeque<RecvWr>,
    /// The multicast groups to which the queue pair is attached.
    groups: Vec<Gid>,
    destroyed: bool,
    /// Whether `IBV_EVENT_COMM_EST` was reported.
    established_reported: bool,
    /// Whether `IBV_EVENT_SQ_DRAINED` was reported since the last change to SQD.
    drain_reported: bool,
    /// Whether `IBV_EVENT_QP_LAST_WQE_REACHED` was reported.
    last_wqe_reported: bool,
    /// Buffers that every call reuses.
    wcs: Vec<Wc>,
    bytes: Vec<u8>,
}

pub(crate) struct MultiRailUd {
    pub(super) params: DatagramParams,
    /// The number that the program knows: the number on the first rail whose NIC was alive at
    /// creation.
    pub(super) qpn: Qpn,
    arrivals: Arrivals,
    pub(super) locked: Mutex<LockedState>,
    /// Whether a NIC had a completion since the progress thread last requested events.
    has_polled: AtomicBool,
}

impl MultiRailUd {
    /// Creates a queue pair in RESET, and attaches it to its completion queues and its shared
    /// receive queue. The caller has checked its capacities against the device's limits.
    ///
    /// # Errors
    /// The error of the first NIC that is alive and refuses, or `DeviceFatal` if none is alive.
    pub(in crate::rails) fn new(params: DatagramParams) -> Result<Arc<MultiRailUd>> {
        let domain = &params.pd.failover;
        // One queue pair may take many receives of a shared receive queue, so it has the maximum
        // number of slots.
        let receives = if params.srq.is_some() { u32::MAX } else { params.init.cap.recv_wrs };
        let arrivals = Arrivals::new(domain, receives)?;
        let create = |nic| match RailQp::create(nic, &params.init, arrivals.slots) {
            Err(Error::DeviceFatal) => Ok(None),
            created => created.map(Some),
        };
        let rails = domain.nics().iter().map(create).collect::<Result<Vec<_>>>()?;
        let qpn = rails.iter().flatten().next().ok_or(Error::DeviceFatal)?.qpn;
        let on_rails = rails.iter().map(|qp| qp.as_ref().map_or(Qpn::new(0), |qp| qp.qpn)).collect();
        lock(&params.network.directory).add_qp(QpNumbers { qpn, on_rails });
        let locked = LockedState {
            rails,
            state: QpState::Reset,
            attr: QpAttr::default(),
            sends: SendQueue::default(),
            receives: VecDeque::new(),
            groups: Vec::new(),
            destroyed: false,
            established_reported: false,
            drain_reported: false,
            last_wqe_reported: false,
            wcs: Vec::new(),
            bytes: vec![0; arrivals.slot_bytes as usize],
        };
        let (locked, has_polled) = (Mutex::new(locked), AtomicBool::new(true));
        let qp = Arc::new(MultiRailUd { params, qpn, arrivals, locked, has_polled });
        let user: Arc<dyn QueueUser> = qp.clone();
        qp.params.send_cq.users.add(&user);
        qp.params.recv_cq.users.add(&user);
        let polled: Arc<dyn PolledUser> = qp.clone();
        qp.params.send_cq.polled.add(&polled);
        qp.params.recv_cq.polled.add(&polled);
        if let Some(srq) = &qp.params.srq {
            srq.users.add(&user);
        }
        Ok(qp)
    }

    fn domain(&self) -> &Domain {
        &self.params.pd.failover
    }

    /// Polls the queue pair, in case the program does not. Does nothing if another thread holds the
    /// lock, because that thread drives the queue pair.
    pub(in crate::rails) fn make_progress(&self) {
        if let Ok(mut locked) = self.locked.try_lock() {
            self.collect(&mut locked);
        }
    }

    /// Requests the next event of the NICs if a completion queue of the program is still armed, and
    /// the NICs may have reported the last one.
    pub(in crate::rails) fn rearm(&self) {
        let is_armed = self.params.send_cq.is_armed() || self.params.recv_cq.is_armed();
        if is_armed && self.has_polled.swap(false, Ordering::Relaxed) {
            // Only a NIC that is failing refuses.
            let _ = self.arm();
        }
    }

    /// Polls all rails, pushes completions to the program's queues, posts sends whose way is known
    /// by now, and reports events. Does nothing for a destroyed queue pair.
    pub(super) fn collect(&self, locked: &mut LockedState) {
        if locked.destroyed {
            return;
        }
        for rail in 0..locked.rails.len() {
            self.poll_rail(locked, rail);
            if !self.params.network.is_alive(rail) && locked.sends.is_on_rail(Some(rail)) {
                // The NIC may merely hang. It is reset, so that it does not read the memory of a
                // send that has completed.
                let _ = self.domain().nics()[rail].provider.reset();
                self.poll_rail(locked, rail);
                locked.sends.give_up_rail(rail);
            }
        }
        self.post_waiting(locked);
        self.report_sends(locked);
        if locked.state == QpState::Sqd && !locked.drain_reported && !locked.sends.is_on_rail(None) {
            locked.drain_reported = true;
            (self.params.on_event)(AsyncEvent::SqDrained(self.qpn));
        }
        if self.params.send_cq.has_overflowed() || self.params.recv_cq.has_overflowed() {
            self.fail(locked);
        }
    }

    fn poll_rail(&self, locked: &mut LockedState, rail: usize) {
        let Some(cq) = locked.rails[rail].as_ref().map(|qp| qp.cq) else { return };
        let mut wcs = std::mem::take(&mut locked.wcs);
        wcs.clear();
        // What a dead NIC completed before it died can still be polled.
        let _ = self.domain().nics()[rail].provider.poll_cq(cq, BATCH, &mut wcs);
        if !wcs.is_empty() {
            self.has_polled.store(true, Ordering::Relaxed);
        }
        for wc in &wcs {
            match slot_of(wc.wr_id) {
                Some(slot) => self.receive(locked, rail, slot, wc),
                None => {
                    locked.sends.complete(wc.wr_id, wc.status);
                    if wc.status != WcStatus::Success && matches!(locked.state, QpState::Rts | QpState::Sqd) {
                        // The NIC has entered SQE and flushes the sends on this rail, so the
                        // waiting sends are flushed too.
                        locked.state = QpState::Sqe;
                        locked.sends.flush_waiting();
                    }
                }
            }
        }
        locked.wcs = wcs;
    }

    /// Copies a datagram from a slot to the oldest receive, and posts the slot again. The datagram
    /// is lost if there is no receive, the receive is too short or the sender is unknown.
    fn receive(&self, locked: &mut LockedState, rail: usize, slot: u32, wc: &Wc) {
        let is_open = !matches!(locked.state, QpState::Reset | QpState::Err);
        if wc.status == WcStatus::Success && wc.byte_len <= self.arrivals.slot_bytes && is_open {
            if locked.state == QpState::Rtr && !std::mem::replace(&mut locked.established_reported, true) {
                (self.params.on_event)(AsyncEvent::CommunicationEstablished(self.qpn));
            }
            let mut bytes = std::mem::take(&mut locked.bytes);
            let datagram = &mut bytes[..wc.byte_len as usize];
            self.arrivals.read(rail, slot, datagram);
            self.deliver(locked, rail, wc, datagram);
            locked.bytes = bytes;
        }
        if let Some(qp) = &locked.rails[rail] {
            // Only a dead NIC refuses. In ERR and RESET the slot is not posted, because a NIC would
            // flush or drop the receive.
            let _ = if is_open { self.arrivals.post(rail, qp.qpn, slot) } else { Ok(()) };
        }
    }

    fn deliver(&self, locked: &mut LockedState, rail: usize, wc: &Wc, datagram: &mut [u8]) {
        let Some(header) = datagram.first_chunk_mut::<GRH_LEN>() else { return };
        let (from, to) = (Gid::from_grh(header), grh::destination(header));
        let Some((source, src_qp)) = self.params.network.identify(rail, (from, wc.src_qp), to) else {
            return;
        };
        if rail > 0 {
            let destination =
                if is_multicast(to) { to } else { lock(&self.params.network.directory).own_gid() };
            grh::replace_addresses(header, source, destination);
        }
        let (taken, domain) = match &self.params.srq {
            Some(srq) => (srq.queue().take_for(datagram.len() as u64), srq.queue().domain()),
            None => {
                let fits = |wr: &RecvWr| {
                    wr.sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>() >= datagram.len() as u64
                };
                let taken = locked.receives.front().is_some_and(fits).then(|| locked.receives.pop_front());
                (taken.flatten(), self.domain())
            }
        };
        let Some(receive) = taken else { return };
        if domain.scatter(&receive.sges, datagram) {
            self.params.recv_cq.push(Wc { wr_id: receive.wr_id, qpn: self.qpn, src_qp, ..*wc });
        } else {
            let wc = self.wc(receive.wr_id, WcStatus::LocalProtection, WcOpcode::Recv);
            self.params.recv_cq.push(wc);
            self.fail(locked);
        }
    }

    fn check_receive(&self, locked: &LockedState, wr: &RecvWr) -> Result<()> {
        let (qpn, state, cap) = (self.qpn, locked.state, &self.params.init.cap);
        if self.params.srq.is_some() {
            return Err(Error::Invalid("the queue pair has a shared receive queue: post receives there"));
        }
        if state == QpState::Reset {
            return Err(Error::WrongState { call: "post_recv", qpn, needs: "INIT or later", state });
        }
        check_limit("scatter entries of a receive", wr.sges.len() as u32, cap.recv_sges)?;
        let requested: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let limit = u64::from(self.domain().limits().message_bytes);
        if requested > limit + GRH_LEN as u64 {
            return Err(Error::Limit { attribute: "bytes of a receive", requested, limit });
        }
        if locked.receives.len() >= cap.recv_wrs as usize {
            return Err(Error::QueueFull { queue: "receive queue", qpn, depth: cap.recv_wrs });
        }
        Ok(())
    }

    fn post_slots(&self, locked: &LockedState) {
        for (rail, qp) in locked.rails.iter().enumerate() {
            for slot in 0..self.arrivals.slots {
                // Only a dead NIC refuses.
                let _ = qp.as_ref().map(|qp| self.arrivals.post(rail, qp.qpn, slot));
            }
        }
    }

    /// Drops the posted requests, which get no completions, and the completions that were not
    /// polled.
    fn reset(&self, locked: &mut LockedState) {
        locked.sends.clear();
        locked.receives.clear();
        (locked.established_reported, locked.last_wqe_reported) = (false, false);
        locked.attr = QpAttr::default();
        self.params.send_cq.discard(self.qpn);
        self.params.recv_cq.discard(self.qpn);
    }

    /// Enters ERR on all rails, and flushes the posted requests.
    fn fail(&self, locked: &mut LockedState) {
        if locked.state == QpState::Err {
            return;
        }
        locked.state = QpState::Err;
        for qp in locked.rails.iter().flatten() {
            // A dead NIC executes nothing more.
            let _ = qp.nic.provider.modify_qp(qp.qpn, &QpAttr::to(QpState::Err));
        }
        locked.sends.flush_waiting();
        while let Some(receive) = locked.receives.pop_front() {
            self.params.recv_cq.push(self.wc(receive.wr_id, WcStatus::Flushed, WcOpcode::Recv));
        }
        if self.params.srq.is_some() && !std::mem::replace(&mut locked.last_wqe_reported, true) {
            (self.params.on_event)(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Destroys the queue pair on all rails, and removes it from its queues. Its completions stay,
    /// as on one rail.
    ///
    /// # Errors
    /// `Busy` while the queue pair is attached to a multicast group.
    pub(in crate::rails) fn destroy(&self) -> Result<()> {
        let mut locked = lock(&self.locked);
        if !locked.groups.is_empty() {
            let (id, user) = (self.qpn.value(), "a multicast group");
            return Err(Error::Busy { kind: "queue pair", id, user });
        }
        self.collect(&mut locked);
        locked.destroyed = true;
        lock(&self.params.network.directory).remove_qp(self.qpn);
        locked.rails.fill_with(|| None);
        self.params.send_cq.users.remove(self);
        self.params.recv_cq.users.remove(self);
        if let Some(srq) = &self.params.srq {
            srq.users.remove(self);
        }
        Ok(())
    }

    /// Returns a completion whose fields about a received message are zero.
    pub(super) fn wc(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Wc {
        Wc::new(wr_id, status, opcode, self.qpn)
    }
}

impl QueuePair for MultiRailUd {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        let mut locked = lock(&self.locked);
        let refused = self.check_all(&mut locked, wrs).err();
        let accepted = refused.as_ref().map_or(wrs.len(), |refused| refused.index);
        self.append(&mut locked, &wrs[..accepted]);
        refused.map_or(Ok(()), Err)
    }

    fn post_send_all(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        let mut locked = lock(&self.locked);
        self.check_all(&mut locked, wrs)?;
        self.append(&mut locked, wrs);
        Ok(())
    }

    fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut locked = lock(&self.locked);
        for (index, wr) in wrs.iter().enumerate() {
            self.check_receive(&locked, wr).map_err(|error| PostError { index, error })?;
            if locked.state == QpState::Err {
                self.params.recv_cq.push(self.wc(wr.wr_id, WcStatus::Flushed, WcOpcode::Recv));
            } else {
                locked.receives.push_back(wr.clone());
            }
        }
        Ok(())
    }

    /// Modifies the queue pair as `ibv_modify_qp(3)` does. SQD concerns only this process: the
    /// queue pairs on the rails stay in RTS, and get no sends.
    ///
    /// # Errors
    /// `Modify` for a change that the rules forbid, `DeviceFatal` if all NICs are dead, or the
    /// error of the first live NIC that refuses. The rails before that one have changed.
    fn modify(&self, attr: &QpAttr) -> Result<()> {
        let mut locked = lock(&self.locked);
        self.collect(&mut locked);
        let from = locked.state;
        let to = check_modify(QpType::Ud, from, attr)?;
        let stays_in_rts = |state| matches!(state, QpState::Rts | QpState::Sqd);
        let state = attr.state.filter(|_| !(stays_in_rts(from) && stays_in_rts(to)));
        let on_rail = QpAttr { state, ..*attr };
        let is_changed = state.is_some() || attr.attributes().next().is_some();
        let mut changed = if is_changed { Err(Error::DeviceFatal) } else { Ok(()) };
        for qp in locked.rails.iter().flatten().filter(|_| is_changed) {
            let provider = &qp.nic.provider;
            // Only the rail on which a send failed is in SQE.
            let is_sqe = || provider.query_qp(qp.qpn).is_ok_and(|status| status.state == QpState::Sqe);
            let on_rail = match (from, to) {
                (QpState::Sqe, QpState::Rts) if !is_sqe() => QpAttr { state: None, ..on_rail },
                _ => on_rail,
            };
            match provider.modify_qp(qp.qpn, &on_rail) {
                Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
                Ok(()) => changed = Ok(()),
            }
        }
        changed?;
        locked.attr.update(&QpAttr { state: None, ..*attr });
        match (from, to) {
            (_, QpState::Reset) => self.reset(&mut locked),
            (_, QpState::Err) => self.fail(&mut locked),
            (QpState::Reset, QpState::Init) => self.post_slots(&locked),
            _ => {}
        }
        locked.drain_reported &= from == QpState::Sqd && to == QpState::Sqd;
        locked.state = to;
        self.collect(&mut locked);
        Ok(())
    }

    /// Returns the state, the attributes as the program has set them, and the PSN of the next
    /// datagram.
    fn query(&self) -> Result<QpStatus> {
        let mut locked = lock(&self.locked);
        self.collect(&mut locked);
        Ok(QpStatus {
            state: locked.state,
            init: self.params.init,
            attr: QpAttr { rq_psn: None, sq_psn: None, ..locked.attr },
            rq_psn: locked.attr.rq_psn.unwrap_or_default(),
            sq_psn: locked.attr.sq_psn.unwrap_or_default().add(locked.sends.datagrams),
            sq_drain: match locked.state {
                QpState::Sqd if locked.drain_reported => SqDrain::Drained,
                QpState::Sqd => SqDrain::Draining,
                _ => SqDrain::NotInSqd,
            },
        })
    }

    /// # Errors
    /// The error of the first NIC that is alive and refuses, or `DeviceFatal` if all NICs are dead.
    fn attach_mcast(&self, group: Gid, loopback: bool) -> Result<()> {
        let mut locked = lock(&self.locked);
        let mut attached: Vec<&RailQp> = Vec::new();
        for qp in locked.rails.iter().flatten() {
            match qp.nic.provider.attach_mcast(qp.qpn, group, loopback) {
                Ok(()) => attached.push(qp),
                Err(Error::DeviceFatal) => {}
                Err(error) => {
                    for qp in attached {
                        let _ = qp.nic.provider.detach_mcast(qp.qpn, group); // the first error is reported
                    }
                    return Err(error);
                }
            }
        }
        if attached.is_empty() {
            return Err(Error::DeviceFatal);
        }
        if !locked.groups.contains(&group) {
            locked.groups.push(group);
        }
        Ok(())
    }

    /// # Errors
    /// `Invalid` if the queue pair is not attached.
    fn detach_mcast(&self, group: Gid) -> Result<()> {
        let mut locked = lock(&self.locked);
        let Some(index) = locked.groups.iter().position(|attached| *attached == group) else {
            return Err(Error::Invalid(
                "the queue pair is not attached to this multicast group; attach it first",
            ));
        };
        locked.groups.remove(index);
        for qp in locked.rails.iter().flatten() {
            // A NIC that was dead when the queue pair was attached refuses, because it has no
            // member.
            let _ = qp.nic.provider.detach_mcast(qp.qpn, group);
        }
        Ok(())
    }
}

impl PolledUser for MultiRailUd {
    fn drive(&self) {
        self.collect(&mut lock(&self.locked));
    }

    fn arm(&self) -> Result<()> {
        let mut locked = lock(&self.locked);
        if locked.destroyed {
            return Ok(());
        }
        for qp in locked.rails.iter().flatten() {
            match qp.nic.provider.req_notify_cq(qp.cq, false) {
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
        }
        // A completion that arrived before the request causes no event, so it is collected here.
        self.collect(&mut locked);
        Ok(())
    }
}

impl QueueUser for MultiRailUd {}
