//! Posting receives, and matching messages with receives of a shared receive queue.

use mitra_verbs::{AsyncEvent, Error, PostError, QpState, RecvWr, Result, Wc, WcOpcode, WcStatus};

use super::MultiRailQp;
use super::complete::{wc_status, with_message};
use super::locked_state::LockedState;
use crate::common::lock::lock;
use crate::rails::srq_arrival_ring::{BounceRing, MatchedMessage};
use crate::rails::virtual_srq::VirtualSrq;

impl MultiRailQp {
    /// Posts receives in order, as `ibv_post_recv(3)` does.
    ///
    /// # Errors
    /// The index and the error of the first receive that is refused. The receives before it are posted.
    pub(crate) fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut locked = lock(&self.locked);
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
                self.check_room("receive queue", peer_closed.recvs(), self.params.init.cap.recv_wrs)
                    .map_err(|error| PostError { index, error })?;
                peer_closed.withhold_recv(flushed);
            } else if locked.state == QpState::Err {
                self.params.recv_cq.push(flushed);
            } else {
                locked.vqp.post_recv(wr.clone()).map_err(|error| PostError { index, error })?;
            }
        }
        Ok(())
    }

    /// Copies messages in the bounce ring to receives of the shared receive queue. If a queue pair in ERR takes no more receives, reports the
    /// event [`AsyncEvent::LastWqeReached`] once. Does nothing without a shared receive queue.
    pub(super) fn match_receives(&self, locked: &mut LockedState) {
        let Some(srq) = &self.params.srq else { return };
        self.match_messages(locked, srq);
        // The event is defined in IBTA volume 1, 11.6.3.4.
        if locked.state == QpState::Err
            && locked.bounce_ring.as_ref().is_none_or(BounceRing::is_empty)
            && !std::mem::replace(&mut locked.last_wqe_reported, true)
        {
            (self.params.on_event)(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    fn match_messages(&self, locked: &mut LockedState, srq: &VirtualSrq) {
        if locked.bounce_ring.is_none()
            && matches!(locked.state, QpState::Rtr | QpState::Rts)
            && locked.vqp.close_reason().is_none()
            && srq.is_used()
        {
            // If the ring cannot be created, the virtual queue pair has no receives, and the peer's sends are answered with RNR NAKs
            // until a later attempt succeeds.
            locked.bounce_ring = BounceRing::new(srq, &mut locked.vqp).ok();
        }
        let Some(ring) = &mut locked.bounce_ring else { return };
        let mut failed = false;
        while let Some(MatchedMessage { wr_id, copied, completion }) = ring.match_next(srq, &mut locked.vqp) {
            let (received, vendor_err) = wc_status(completion.outcome);
            let status = if received == WcStatus::Success { copied } else { received };
            failed |= status != WcStatus::Success;
            let wc = with_message(self.wc(wr_id, status, completion.opcode), &completion);
            self.params.recv_cq.push(Wc { vendor_err, ..wc });
        }
        if failed {
            locked.fail();
        }
    }
}
