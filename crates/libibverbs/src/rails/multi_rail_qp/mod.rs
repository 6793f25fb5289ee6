//! A reliable connection of the program as a virtual queue pair.
//!
//! - [`connect`]: `ibv_modify_qp` and `ibv_query_qp`.
//! - [`send`]: posting sends, and queueing those whose region keys are not known yet.
//! - [`receive`]: posting receives, and messages for a shared receive queue.
//! - [`complete`]: from completions of the virtual queue pair to completions of the program.
//! - [`locked_state`]: the state under the lock.

mod complete;
mod connect;
mod locked_state;
mod receive;
mod send;
#[cfg(test)]
mod tests;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mitra_failover::{ConnectInfo, VirtualQp};
use mitra_verbs::{AsyncEvent, Gid, QpInitAttr, QpState, Qpn, Result, Wc, WcOpcode, WcStatus};

use self::locked_state::LockedState;
use super::multi_rail_domain::MultiRailDomain;
use super::virtual_cq::{CompletionSource, VirtualCq};
use super::virtual_srq::{ReceiveConsumer, VirtualSrq};
use crate::common::lock::lock;

/// What a queue pair is created with.
pub(crate) struct CreateParams {
    pub(crate) init: QpInitAttr,
    pub(crate) send_cq: Arc<VirtualCq>,
    pub(crate) recv_cq: Arc<VirtualCq>,
    pub(crate) srq: Option<Arc<VirtualSrq>>,
    /// Reports an asynchronous event to the program.
    pub(crate) on_event: Box<dyn Fn(AsyncEvent) + Send + Sync>,
}

/// A reliable connection over several rails.
pub(crate) struct MultiRailQp {
    domain: Arc<MultiRailDomain>,
    params: CreateParams,
    /// The number that the program knows. It does not change across failovers and resets.
    qpn: Qpn,
    inner: Mutex<LockedState>,
    /// The peer's GIDs on all rails; while connecting, the GID that the program gave; before that, none.
    peer: Mutex<Vec<Gid>>,
    failovers: AtomicU64,
}

impl MultiRailQp {
    /// Creates a queue pair in RESET, and attaches it to its queues.
    pub(super) fn new(
        domain: Arc<MultiRailDomain>,
        vqp: VirtualQp,
        params: CreateParams,
    ) -> Arc<MultiRailQp> {
        let qpn = vqp.qpn();
        let qp = Arc::new(MultiRailQp {
            domain,
            params,
            qpn,
            inner: Mutex::new(LockedState::new(vqp)),
            peer: Mutex::default(),
            failovers: AtomicU64::new(0),
        });
        qp.params.send_cq.attach(&qp);
        qp.params.recv_cq.attach(&qp);
        if let Some(srq) = &qp.params.srq {
            srq.attach(&qp);
        }
        qp
    }

    /// Returns the queue pair's number.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the number of failovers so far.
    pub(super) fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Returns whether a query from this address is answered: any address until the peer is known, then the peer's.
    pub(super) fn accepts_peer(&self, from: Gid) -> bool {
        let peer = lock(&self.peer);
        peer.is_empty() || peer.contains(&from)
    }

    /// Returns the data that the peer needs to connect.
    ///
    /// # Errors
    /// `DeviceFatal` if a NIC is dead.
    pub(super) fn local_info(&self) -> Result<ConnectInfo> {
        lock(&self.inner).vqp.local_info()
    }

    /// Returns whether the connection has ended. The program must reset the queue pair before it can connect again.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.inner).vqp.close_reason().is_some()
    }

    /// Makes progress, and pushes new completions to the queues.
    pub(crate) fn drive(&self) {
        self.collect(&mut lock(&self.inner));
    }

    /// Takes part in a recovery and drives the queue pair, unless another thread drives it now.
    pub(super) fn make_progress(&self) {
        if let Ok(mut inner) = self.inner.try_lock() {
            inner.vqps().for_each(VirtualQp::progress);
            self.collect(&mut inner);
        }
    }

    /// Requests an event from the NIC at the next completion.
    ///
    /// # Errors
    /// The error of a NIC that is not dead.
    pub(super) fn arm(&self) -> Result<()> {
        let mut inner = lock(&self.inner);
        if inner.destroyed {
            return Ok(());
        }
        inner.vqps().try_for_each(|vqp| vqp.arm())?;
        // A completion that came before the request causes no event.
        self.collect(&mut inner);
        Ok(())
    }

    /// Requests the next event after one that brought no completion that the program waits for.
    pub(super) fn rearm(&self) {
        if self.params.send_cq.is_armed() || self.params.recv_cq.is_armed() {
            // Only a failing NIC refuses, which the virtual queue pair detects.
            let _ = self.arm();
        }
    }

    /// Ends the connection and tells the peer, unless another thread holds the lock.
    pub(super) fn try_shutdown(&self) {
        if let Ok(mut inner) = self.inner.try_lock() {
            inner.shutdown();
        }
    }

    /// Ends the connection for `ibv_destroy_qp`: removes the queue pair and its completions from all queues. The rails are freed
    /// later, by [`MultiRailQp::close`], so that the peer is told that the connection has ended.
    pub(super) fn destroy(&self) {
        let mut inner = lock(&self.inner);
        inner.shutdown();
        inner.state = QpState::Err;
        inner.destroyed = true;
        inner.deferred.clear();
        inner.region_keys.cancel_queries();
        self.params.send_cq.detach(self);
        self.params.recv_cq.detach(self);
        if let Some(srq) = &self.params.srq {
            srq.detach(self);
        }
    }

    /// Drives a destroyed queue pair, and drops its completions: the peer may not have been told yet.
    pub(super) fn drive_after_destroy(&self) {
        let mut inner = lock(&self.inner);
        let mut scratch = std::mem::take(&mut inner.scratch);
        for vqp in inner.vqps() {
            vqp.progress();
            vqp.poll(&mut scratch);
            scratch.clear();
        }
        inner.scratch = scratch;
    }

    /// Frees the rails.
    ///
    /// # Errors
    /// The error of the first NIC that refuses.
    pub(super) fn close(&self) -> Result<()> {
        let mut inner = lock(&self.inner);
        let mut closed = Ok(());
        for vqp in inner.vqps() {
            closed = closed.and(vqp.close());
        }
        inner.bounce_ring = None;
        closed
    }

    /// Returns a completion of this queue pair without data.
    fn wc(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Wc {
        Wc {
            wr_id,
            status,
            opcode,
            qpn: self.qpn,
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qp: Qpn::new(0),
            solicited: false,
            vendor_err: 0,
        }
    }
}

impl CompletionSource for MultiRailQp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn drive(&self) {
        MultiRailQp::drive(self);
    }

    fn arm(&self) -> Result<()> {
        MultiRailQp::arm(self)
    }
}

impl ReceiveConsumer for MultiRailQp {
    fn on_receives_posted(&self) {
        let mut inner = lock(&self.inner);
        if !inner.destroyed {
            self.match_receives(&mut inner);
        }
    }
}
