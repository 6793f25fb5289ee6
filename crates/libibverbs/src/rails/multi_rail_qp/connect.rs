//! `ibv_modify_qp` and `ibv_query_qp` for a queue pair over several rails.

use std::sync::Arc;
use std::task::Poll;

use mitra_failover::{ConnectInfo, VirtualQp};
use mitra_verbs::{
    Access, Error, Gid, ModifyError, Psn, QpAttr, QpAttribute, QpState, QpStatus, Qpn, Result, RnrTimer,
    SqDrain, check_modify,
};

use super::locked_state::LockedState;
use super::pending_connection::PendingConnection;
use super::{MultiRailQp, Peer};
use crate::common::lock::lock;
use crate::common::random::random;
use crate::rails::rail_address::Endpoint;
use crate::rails::rendezvous::PeerConnection;

impl MultiRailQp {
    /// Modifies the queue pair as `ibv_modify_qp(3)` does. The transition from INIT to RTR queries
    /// the peer for the connection data of all rails, and waits for the answer. If the peer must
    /// reset its queue pair before it can connect, the transition does not wait for that, and the
    /// queue pair connects later ([`super::pending_connection`]).
    ///
    /// # Errors
    /// `WrongState` or `Invalid` if the transition is not allowed, `Invalid` if the peer does not
    /// answer or its data does not fit, or the error of a NIC.
    pub(super) fn change(&self, attr: &QpAttr) -> Result<()> {
        let from = self.lock().state;
        let to = check_modify(self.params.init.qp_type, from, attr)?;
        if from == QpState::Sqd && attr.dest_gid.is_some_and(|to| Some(to) != self.lock().attr.dest_gid) {
            return Err(Error::Unsupported(
                "another destination in SQD on a device with several rails; reset the queue pair and connect it again",
            ));
        }
        self.check_limits(attr)?;
        if to == QpState::Reset {
            return self.reset();
        }
        if attr.access.is_some() && to != QpState::Rtr {
            self.lock().set_access(attr.access)?;
        }
        if (from, to) == (QpState::Init, QpState::Rtr)
            && let (Some(gid), Some(qpn)) = (attr.dest_gid, attr.dest_qpn)
        {
            self.connect(gid, qpn, attr)?;
        }
        let mut locked = self.lock();
        match (from, to) {
            (QpState::Rtr, QpState::Rts) => {
                if locked.pending.is_none() {
                    let rnr_retry = attr.rnr_retry.unwrap_or_default();
                    locked.vqps().try_for_each(|vqp| vqp.modify_to_rts(rnr_retry))?;
                }
                self.report_established(&mut locked);
            }
            // The virtual queue pair refuses SQD and the return from SQD only if it is closed or
            // not yet connected. Then no send has begun.
            (QpState::Rts, QpState::Sqd) => {
                locked.drain_reported = false;
                let _ = locked.sender().drain_sends();
            }
            (QpState::Sqd, QpState::Rts) => {
                let _ = locked.sender().restart_sends();
            }
            (QpState::Sqe, QpState::Rts) => locked.sender().resume(),
            _ => {}
        }
        locked.attr.update(&QpAttr { state: None, ..*attr });
        locked.state = to;
        if to == QpState::Sqd {
            self.report_drained(&mut locked);
        }
        if to == QpState::Err {
            locked.shutdown();
            self.collect(&mut locked);
            // Reported even if messages wait for a receive, because the program may wait for this
            // event before it destroys the queue pair. If the program posts more receives instead,
            // these messages still take them.
            self.raise_last_wqe(&mut locked);
        }
        Ok(())
    }

    fn check_limits(&self, attr: &QpAttr) -> Result<(), ModifyError> {
        let limit = self.domain.limits().rd_atomic;
        let requested = [
            (QpAttribute::MaxRdAtomic, attr.max_rd_atomic),
            (QpAttribute::MaxDestRdAtomic, attr.max_dest_rd_atomic),
        ];
        for (attribute, value) in requested {
            if value.is_some_and(|n| n > limit) {
                let rule = "at most the limit `rd_atomic` of the device";
                return Err(ModifyError::OutOfRange { attribute, rule });
            }
        }
        Ok(())
    }

    /// Connects all rails to the peer for receiving (INIT to RTR). Without access flags in `attr`,
    /// the earlier flags stay.
    fn connect(&self, gid: Gid, qpn: Qpn, attr: &QpAttr) -> Result<()> {
        if !self.enter_pd_of_xrc_domain()? {
            return Err(Error::Unsupported(
                "an XRC receive queue pair in RTR before its XRC domain has a shared receive queue, on a device with several rails; create the queue first",
            ));
        }
        *lock(&self.peer) = Peer::Connecting(gid);
        {
            let mut locked = self.lock();
            let access = attr.access.or(locked.attr.access);
            locked.set_access(access)?;
            attr.path_mtu.iter().for_each(|mtu| locked.vqp.set_max_path_mtu(*mtu));
        }
        let min_rnr_timer = RnrTimer::from_code(attr.min_rnr_timer.unwrap_or_default());
        match self.connect_to(gid, qpn, min_rnr_timer) {
            Ok(Some(peer)) => *lock(&self.peer) = peer,
            // The connection is pending. Another thread may have completed it by now, and set the
            // peer.
            Ok(None) => {}
            Err(error) => {
                *lock(&self.peer) = Peer::Unknown;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns `None` if the connection is pending.
    fn connect_to(&self, gid: Gid, qpn: Qpn, min_rnr_timer: RnrTimer) -> Result<Option<Peer>> {
        if qpn == self.qpn && self.local_info().gids().any(|own| own == gid) {
            return self.lock().connect_to_itself(min_rnr_timer, Arc::clone(&self.waker).into()).map(Some);
        }
        // The lock is not held during the query, because answering the peer's query for this queue
        // pair needs the lock.
        let ids = [random()?, random()?];
        let found = self.domain.rendezvous.query_connection(ids, gid, qpn, self.terms());
        let mut locked = self.lock();
        let found = found.map_err(|error| locked.explain_missing_data(error, gid))?;
        match found {
            // The program has passed a former GID of its own device.
            PeerConnection::Data(info, _)
                if qpn == self.qpn && info.gids().eq(locked.vqp.local_info().gids()) =>
            {
                locked.connect_to_itself(min_rnr_timer, Arc::clone(&self.waker).into()).map(Some)
            }
            PeerConnection::Data(info, endpoint) => {
                locked.connect_to(&info, endpoint, min_rnr_timer).map(Some)
            }
            PeerConnection::AwaitsReset(query) => {
                locked.pending = Some(PendingConnection::new(query, min_rnr_timer));
                Ok(None)
            }
        }
    }

    /// Moves an XRC receive queue pair to the protection domain of its XRC domain's shared receive
    /// queues. Returns false if the XRC domain has no shared receive queue yet. Without one, the
    /// queue pair can neither connect nor be connected to.
    ///
    /// # Errors
    /// The errors of [`VirtualQp::replacement_in`](mitra_failover::VirtualQp::replacement_in).
    pub(in crate::rails) fn enter_pd_of_xrc_domain(&self) -> Result<bool> {
        let Some(xrc) = &self.params.xrc else { return Ok(true) };
        let Some(pd) = xrc.pd() else { return Ok(false) };
        let mut locked = self.lock();
        if !Arc::ptr_eq(locked.vqp.domain(), &pd.failover) {
            let replacement = locked.vqp.replacement_in(&pd.failover)?;
            self.domain.retire(std::mem::replace(&mut locked.vqp, replacement));
        }
        Ok(true)
    }

    /// Sends the query of a pending connection at once, because the peer has just been reset. Does
    /// nothing if another thread holds the lock, because the query is sent again anyway.
    pub(in crate::rails) fn hasten_connection(&self) {
        if let Some(mut locked) = self.try_lock()
            && let Some(pending) = &mut locked.pending
        {
            pending.query.resend_soon();
        }
    }

    /// Completes a pending connection if the peer has answered. Never blocks.
    pub(super) fn continue_connecting(&self, locked: &mut LockedState) {
        let terms = locked.terms();
        let Some(pending) = &mut locked.pending else { return };
        self.domain.rendezvous.poll();
        let Poll::Ready(answer) = pending.poll(&terms) else { return };
        let (min_rnr_timer, endpoint) = (pending.min_rnr_timer, pending.query.endpoint());
        let peer = lock(&self.peer).gids().first().copied();
        let answer = answer.map_err(|error| match peer {
            Some(peer) => locked.explain_missing_data(error, peer),
            None => error,
        });
        match answer.and_then(|info| finish(locked, &info, endpoint, min_rnr_timer)) {
            Ok(peer) => {
                locked.pending = None;
                *lock(&self.peer) = peer;
            }
            Err(error) => {
                // The first send fails, as on a NIC whose peer does not exist.
                tracing::warn!("queue pair {}: not connected: {error}", self.qpn);
                locked.pending.iter_mut().for_each(|pending| pending.failed = true);
            }
        }
    }

    /// Returns to RESET. Drops the outstanding requests without completions, and the completions
    /// that were not polled. The queue pair number does not change.
    fn reset(&self) -> Result<()> {
        let mut locked = self.lock();
        if locked.state == QpState::Reset {
            return Ok(());
        }
        self.log_dropped_messages(&locked);
        let mut replacement = locked.vqp.reset_replacement()?;
        replacement.set_access(Access::empty())?;
        let LockedState { vqp, sender, .. } = std::mem::replace(&mut *locked, LockedState::new(replacement));
        [Some(vqp), sender].into_iter().flatten().for_each(|replaced| self.domain.retire(replaced));
        self.params.send_cq.discard(self.qpn);
        self.params.recv_cq.discard(self.qpn);
        *lock(&self.peer) = Peer::Unknown;
        Ok(())
    }

    /// Returns the state, the attributes as the program has set them, and the PSNs. A PSN begins
    /// with the value that the program has set, and advances by the packets of all rails, whose own
    /// PSNs differ.
    ///
    /// Drives the queue pair first: the peer may have the NAK of a request that has moved the queue
    /// pair of a rail to ERR, before any thread here has polled.
    pub(super) fn status(&self) -> QpStatus {
        self.domain.drive_in_background();
        let mut locked = self.lock();
        if !locked.destroyed {
            locked.vqps().for_each(VirtualQp::progress);
            self.collect(&mut locked);
        }
        let [sent, received] = [locked.sender().packet_counts().sent, locked.vqp.packet_counts().received];
        QpStatus {
            state: locked.state,
            init: self.params.init,
            rq_psn: locked.attr.rq_psn.unwrap_or(Psn::new(0)).add(received),
            sq_psn: locked.attr.sq_psn.unwrap_or(Psn::new(0)).add(sent),
            attr: locked.attr,
            sq_drain: match locked.state {
                QpState::Sqd if locked.drain_reported => SqDrain::Drained,
                QpState::Sqd => SqDrain::Draining,
                _ => SqDrain::NotInSqd,
            },
        }
    }
}

/// Connects all rails after the queue pair has waited for its peer, up to the state that the
/// program has requested.
fn finish(
    locked: &mut LockedState,
    info: &ConnectInfo,
    endpoint: Endpoint,
    min_rnr_timer: RnrTimer,
) -> Result<Peer> {
    let peer = locked.connect_to(info, endpoint, min_rnr_timer)?;
    if matches!(locked.state, QpState::Rts | QpState::Sqe | QpState::Sqd) {
        locked.vqp.modify_to_rts(locked.attr.rnr_retry.unwrap_or_default())?;
    }
    if locked.state == QpState::Sqd {
        locked.vqp.drain_sends()?;
    }
    Ok(peer)
}
