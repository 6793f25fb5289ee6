//! The program's RC, UC or XRC queue pair on a device with several rails. A virtual queue pair
//! executes its requests.
//!
//! - [`connect`] executes `ibv_modify_qp` and `ibv_query_qp`.
//! - [`first_contact`] bounds the time for which a UC queue pair waits for its peer.
//! - [`pending_connection`] connects later if the peer has not reset its queue pair yet.
//! - [`send`] posts sends, and defers sends whose region keys are not yet known.
//! - [`receive`] posts receives, and reports `IBV_EVENT_QP_LAST_WQE_REACHED`.
//! - [`complete`] converts completions of the virtual queue pair to completions of the program.
//! - [`locked_state`] holds the state that a lock protects.
//! - [`schedule`] decides when the queue pair is driven again.

mod complete;
mod connect;
mod first_contact;
mod locked_state;
mod pending_connection;
mod receive;
mod schedule;
mod send;
#[cfg(test)]
mod tests;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use mitra_failover::{ConnectInfo, VirtualQp};
use mitra_verbs::{
    AsyncEvent, Gid, PostError, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, Result, SendWr,
    Wc, WcOpcode, WcStatus,
};

use self::locked_state::{LockedState, StatedTerms};
use super::device::QueuePair;
use super::drive_queue::{Driven, QpWaker};
use super::multi_rail_domain::MultiRailDomain;
use super::protection_domain::MultiRailPd;
use super::queue_users::QueueUser;
use super::rendezvous::{DeviceGid, Subject, Terms};
use super::virtual_cq::VirtualCq;
use super::virtual_srq::VirtualSrq;
use super::virtual_xrc_domain::VirtualXrcDomain;
use crate::common::lock::lock;

pub(crate) struct CreateParams {
    pub(crate) init: QpInitAttr,
    /// `None` for an XRC receive queue pair, which uses the protection domain of its XRC domain.
    pub(crate) pd: Option<Arc<MultiRailPd>>,
    pub(crate) send_cq: Arc<VirtualCq>,
    pub(crate) recv_cq: Arc<VirtualCq>,
    pub(crate) srq: Option<Arc<VirtualSrq>>,
    /// Set for an XRC receive queue pair. Its receives complete in the completion queues of the
    /// domain's shared receive queues, so `send_cq` and `recv_cq` stay empty.
    pub(crate) xrc: Option<Arc<VirtualXrcDomain>>,
    pub(crate) on_event: Box<dyn Fn(AsyncEvent) + Send + Sync>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Peer {
    /// The program has not yet passed the peer's GID to `ibv_modify_qp`.
    #[default]
    Unknown,
    /// The queue pair connects to the device with this GID on rail 0. The GIDs of the device's
    /// other rails are not yet known.
    Connecting(Gid),
    /// The peer's GIDs by rail.
    Connected(Vec<Gid>),
}

impl Peer {
    fn of(info: &ConnectInfo) -> Peer {
        Peer::Connected(info.gids().collect())
    }

    /// Returns the GIDs by rail, as far as this end knows them.
    fn gids(&self) -> &[Gid] {
        match self {
            Peer::Unknown => &[],
            Peer::Connecting(gid) => std::slice::from_ref(gid),
            Peer::Connected(gids) => gids,
        }
    }
}

pub(crate) struct MultiRailQp {
    domain: Arc<MultiRailDomain>,
    params: CreateParams,
    /// The queue pair number that the program knows. It does not change when the queue pair fails
    /// over or is reset.
    qpn: Qpn,
    locked: Mutex<LockedState>,
    peer: Mutex<Peer>,
    failovers: AtomicU64,
    /// Queues the queue pair to be driven.
    waker: Arc<QpWaker>,
}

impl MultiRailQp {
    /// Creates a queue pair in RESET, and attaches it to its completion queues and its shared
    /// receive queue. `vqp` was built with `waker`.
    pub(super) fn new(
        domain: Arc<MultiRailDomain>,
        vqp: VirtualQp,
        waker: Arc<QpWaker>,
        params: CreateParams,
    ) -> Arc<MultiRailQp> {
        let qpn = vqp.qpn();
        let qp = Arc::new(MultiRailQp {
            domain,
            params,
            qpn,
            locked: Mutex::new(LockedState::new(vqp)),
            peer: Mutex::default(),
            failovers: AtomicU64::new(0),
            waker,
        });
        let weak = Arc::downgrade(&qp);
        qp.waker.set_qp(weak);
        let user: Arc<dyn QueueUser> = qp.clone();
        qp.params.send_cq.users.add(&user);
        qp.params.recv_cq.users.add(&user);
        if let Some(srq) = &qp.params.srq {
            srq.users.add(&user);
        }
        if let Some(xrc) = &qp.params.xrc {
            xrc.add_receiver(&user);
        }
        // A completion queue may have lost completions before.
        qp.waker.wake_by_ref();
        qp
    }

    /// Returns `None` for an XRC receive queue pair until its XRC domain has a shared receive
    /// queue.
    pub(super) fn pd(&self) -> Option<Arc<MultiRailPd>> {
        match &self.params.xrc {
            Some(xrc) => xrc.pd(),
            None => self.params.pd.clone(),
        }
    }

    /// Returns the answer to a peer's query about an object that the peer's requests name, or
    /// `None` if the queue pair has no such object.
    pub(super) fn describe(&self, subject: Subject) -> Option<Vec<u8>> {
        match subject {
            Subject::Connection { .. } | Subject::Connected { .. } => None,
            Subject::Region { key, .. } => self.pd()?.region(key).map(|region| region.encode()),
            Subject::SharedReceiveQueue { number, .. } => {
                self.params.xrc.as_ref()?.cq(number).map(|_| Vec::new())
            }
        }
    }

    /// Returns whether `is_so` holds for one of the queue pair's completion queues.
    fn any_cq(&self, is_so: impl Fn(&VirtualCq) -> bool) -> bool {
        is_so(&self.params.send_cq)
            || is_so(&self.params.recv_cq)
            || self.params.xrc.as_ref().is_some_and(|xrc| xrc.any_cq(&is_so))
    }

    fn is_unreliable(&self) -> bool {
        self.params.init.qp_type == QpType::Uc
    }

    pub(super) fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Returns whether this end answers a query that came from the address `from`. `device` is the
    /// GID that the query's sender states. While the peer is unknown, any sender gets an answer.
    /// While the queue pair connects, only the peer's device gets an answer. Once the peer's
    /// addresses are known, only these addresses get an answer.
    pub(super) fn accepts_peer(&self, from: Gid, device: &DeviceGid) -> bool {
        self.follow_peer(&self.lock());
        match &*lock(&self.peer) {
            Peer::Unknown => true,
            Peer::Connecting(gid) => *gid == from || device.includes(*gid),
            Peer::Connected(gids) => gids.contains(&from),
        }
    }

    /// Returns whether the GID of the peer's device is among the present and former GIDs that
    /// `device` states.
    pub(super) fn may_be_peer(&self, device: &DeviceGid) -> bool {
        lock(&self.peer).gids().first().is_some_and(|gid| device.includes(*gid))
    }

    /// Returns whether the queue pair is connected to the queue pair `asker` of the device that
    /// asks. `from` and `device` are as in [`MultiRailQp::accepts_peer`]. Returns `None` while the
    /// queue pair is being connected, or if the peer's address may have changed. The peer then asks
    /// again.
    pub(super) fn is_connected_to(&self, asker: Qpn, from: Gid, device: &DeviceGid) -> Option<bool> {
        let locked = self.lock();
        self.follow_peer(&locked);
        let is_open = locked.vqp.close_reason().is_none() && locked.attr.dest_qpn == Some(asker);
        drop(locked);
        match &*lock(&self.peer) {
            Peer::Connecting(gid) if *gid == from || device.includes(*gid) => None,
            Peer::Connected(gids) if gids.contains(&from) => Some(is_open),
            Peer::Connected(gids) if gids.first().is_some_and(|gid| device.includes(*gid)) => None,
            Peer::Unknown | Peer::Connecting(_) | Peer::Connected(_) => Some(false),
        }
    }

    /// Copies the peer's addresses from the virtual queue pair, which follows their changes.
    fn follow_peer(&self, locked: &LockedState) {
        if let Peer::Connected(known) = &mut *lock(&self.peer) {
            let now: Vec<Gid> = locked.vqp.peer_gids().collect();
            if !now.is_empty() {
                *known = now;
            }
        }
    }

    /// Returns the terms that this end states to a peer.
    pub(super) fn terms(&self) -> Terms {
        self.lock().terms()
    }

    /// Records the terms that a peer has stated in a query. `from` and `device` are as in
    /// [`MultiRailQp::accepts_peer`].
    pub(super) fn note_peer_terms(&self, from: Gid, device: &DeviceGid, terms: Terms) {
        self.lock().stated = Some(StatedTerms { from, device: device.clone(), terms });
    }

    pub(super) fn local_info(&self) -> ConnectInfo {
        self.lock().vqp.local_info()
    }

    /// Returns whether the connection has ended. The program must reset the queue pair before it
    /// can connect again.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().vqp.close_reason().is_some()
    }

    /// Ends the connection and tells the peer, unless another thread holds the lock.
    pub(super) fn try_shutdown(&self) {
        if let Some(mut locked) = self.try_lock() {
            locked.shutdown();
        }
    }

    /// Ends the connection for `ibv_destroy_qp`, and removes the queue pair from its queues. Its
    /// completions stay, as on one rail: a program may destroy the queue pair before it polls them
    /// (libfabric does at a disconnect). Requests that have not ended get none.
    /// [`MultiRailQp::close`] later destroys the queue pairs on the rails, which until then tell
    /// the peer that the connection has ended.
    pub(super) fn destroy(&self) {
        let mut locked = self.lock();
        self.collect(&mut locked);
        self.log_dropped_messages(&locked);
        locked.shutdown();
        locked.vqps().for_each(VirtualQp::release_windows);
        locked.state = QpState::Err;
        locked.destroyed = true;
        locked.deferred.clear();
        locked.region_keys.queries.clear();
        self.params.send_cq.users.remove(self);
        self.params.recv_cq.users.remove(self);
        if let Some(srq) = &self.params.srq {
            srq.users.remove(self);
        }
        if let Some(xrc) = &self.params.xrc {
            xrc.remove_receiver(self);
        }
    }

    fn drive_locked(&self, locked: &mut LockedState) {
        if locked.destroyed {
            // The peer is told that the connection has ended. No completion is taken, and no
            // receive of a shared receive queue.
            locked.vqps().for_each(VirtualQp::progress);
        } else {
            self.collect(locked);
        }
    }

    /// Destroys the queue pairs on the rails.
    ///
    /// # Errors
    /// The first error of a NIC. Everything that can be destroyed is destroyed.
    pub(super) fn close(&self) -> Result<()> {
        let mut locked = self.lock();
        let mut closed = Ok(());
        for vqp in locked.vqps() {
            closed = closed.and(vqp.close());
        }
        closed
    }

    /// Returns a completion whose fields about a received message are zero.
    fn wc(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Wc {
        Wc::new(wr_id, status, opcode, self.qpn)
    }
}

impl QueuePair for MultiRailQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        let mut locked = self.lock();
        let Err(refused) = self.post_all_or_none(&mut locked, wrs) else { return Ok(()) };
        self.post_all_or_none(&mut locked, &wrs[..refused.index])?;
        Err(refused)
    }

    fn post_send_all(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        self.post_all_or_none(&mut self.lock(), wrs)
    }

    fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.receive(wrs)
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        self.change(attr)
    }

    fn query(&self) -> Result<QpStatus> {
        Ok(self.status())
    }
}

impl Driven for MultiRailQp {
    fn drive(&self) {
        self.drive_locked(&mut self.lock());
    }

    fn try_drive(&self) {
        match self.try_lock() {
            Some(mut locked) => self.drive_locked(&mut locked),
            None => self.waker.wake_by_ref(),
        }
    }

    fn completes_in(&self, cq: usize) -> bool {
        self.any_cq(|own| ptr::from_ref(own).addr() == cq)
    }
}

impl QueueUser for MultiRailQp {
    fn poll(&self) {
        self.drive();
    }

    fn wake(&self) {
        self.waker.wake_by_ref();
    }
}
