//! Posting receives, and the event `IBV_EVENT_QP_LAST_WQE_REACHED`.

use mitra_verbs::{AsyncEvent, Error, PostError, QpState, RecvWr, Result, WcOpcode, WcStatus};

use super::MultiRailQp;
use super::locked_state::LockedState;

impl MultiRailQp {
    /// Posts receives in order, as `ibv_post_recv(3)` does.
    ///
    /// # Errors
    /// The index and the error of the first receive that is refused. The receives before it are
    /// posted.
    pub(super) fn receive(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut locked = self.lock();
        if self.params.init.qp_type.is_xrc() {
            let error =
                Error::Invalid("XRC queue pairs have no receive queue; post to an XRC shared receive queue");
            return Err(PostError { index: 0, error });
        }
        if self.params.srq.is_some() {
            let error = Error::Invalid("the queue pair has a shared receive queue: post receives there");
            return Err(PostError { index: 0, error });
        }
        if locked.state == QpState::Reset {
            let error = Error::WrongState {
                call: "post_recv",
                qpn: self.qpn,
                needs: "INIT or later",
                state: QpState::Reset,
            };
            return Err(PostError { index: 0, error });
        }
        for (index, wr) in wrs.iter().enumerate() {
            let flushed = self.wc(wr.wr_id, WcStatus::Flushed, WcOpcode::Recv);
            if let Some(peer_closed) = &mut locked.peer_closed {
                self.check_room("receive queue", peer_closed.recvs.len(), self.params.init.cap.recv_wrs)
                    .map_err(|error| PostError { index, error })?;
                peer_closed.recvs.push_back(flushed);
            } else if locked.state == QpState::Err {
                self.params.recv_cq.push(flushed);
            } else {
                locked.vqp.post_recv(wr.clone()).map_err(|error| PostError { index, error })?;
            }
        }
        Ok(())
    }

    /// Reports the event [`AsyncEvent::LastWqeReached`] of a queue pair in ERR with a shared
    /// receive queue, once none of its messages waits for a receive.
    pub(super) fn report_last_wqe(&self, locked: &mut LockedState) {
        if self.is_last_wqe_report_due(locked) {
            self.raise_last_wqe(locked);
        }
    }

    pub(super) fn is_last_wqe_report_due(&self, locked: &LockedState) -> bool {
        locked.state == QpState::Err
            && self.params.srq.is_some()
            && !locked.last_wqe_reported
            && locked.vqp.waiting_messages() == 0
    }

    /// Reports the event (IBTA volume 1, 11.6.3.4), unless it was reported before or the queue pair
    /// has no shared receive queue.
    pub(super) fn raise_last_wqe(&self, locked: &mut LockedState) {
        if self.params.srq.is_some() && !std::mem::replace(&mut locked.last_wqe_reported, true) {
            (self.params.on_event)(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    /// Logs the messages that wait for a receive of the shared receive queue, because the queue
    /// pair is reset or destroyed.
    pub(super) fn log_dropped_messages(&self, locked: &LockedState) {
        let waiting = locked.vqp.waiting_messages();
        if waiting > 0 {
            tracing::warn!(
                "queue pair {}: {waiting} messages are dropped, whose senders have seen success: the program posts no receives for them to \
                 the shared receive queue before it resets or destroys the queue pair",
                self.qpn
            );
        }
    }
}
