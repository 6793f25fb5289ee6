//! The conversion of completions of the virtual queue pair to completions of the program.

use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use mitra_failover::{CloseReason, Completion, Outcome, UnresolvedError};
use mitra_verbs::{AsyncEvent, QpState, Wc, WcOpcode, WcStatus};

use super::MultiRailQp;
use super::locked_state::LockedState;
use crate::rails::peer_closed::PeerClosed;
use crate::rails::virtual_cq::VirtualCq;

/// The maximum number of errors that are logged for each queue pair.
const MAX_LOGGED_ERRORS: u32 = 8;

impl MultiRailQp {
    /// Polls the virtual queue pair, pushes its completions to the program's queues, posts deferred
    /// sends, and reports events. Enters ERR if the connection has ended, except while completions
    /// are withheld because the peer has closed its end. In ERR, no completion is withheld. Does
    /// nothing for a destroyed queue pair.
    pub(super) fn collect(&self, locked: &mut LockedState) {
        if locked.destroyed {
            return;
        }
        self.continue_connecting(locked);
        self.take_completions(locked);
        self.report_last_wqe(locked);
        match locked.state {
            QpState::Rtr => self.report_established(locked),
            QpState::Sqd => self.report_drained(locked),
            _ => {}
        }
        if let Some(event) = locked.vqp.qp_error_event()
            && !std::mem::replace(&mut locked.request_error_reported, true)
        {
            locked.fail();
            (self.params.on_event)(event);
        }
        match locked.vqp.close_reason() {
            Some(CloseReason::PeerClosed) if locked.state != QpState::Err => {
                locked.peer_closed.get_or_insert_default();
            }
            // An event reports the end, because there may be no outstanding request that could
            // fail. Later requests are flushed.
            Some(reason)
                if reason != CloseReason::Closed
                    && matches!(locked.state, QpState::Rts | QpState::Sqd | QpState::Sqe) =>
            {
                tracing::warn!("queue pair {}: the connection has ended: {reason}", self.qpn);
                locked.fail();
                (self.params.on_event)(AsyncEvent::QpFatal(self.qpn));
            }
            _ => {}
        }
        if self.any_cq(VirtualCq::has_overflowed) {
            locked.fail();
        }
        self.post_deferred(locked);
        if locked.peer_closed.as_ref().is_some_and(PeerClosed::is_expired) {
            tracing::warn!("queue pair {}: a send fails: the peer has closed its end", self.qpn);
            locked.state = QpState::Err;
            self.release_withheld(locked, WcStatus::RetryExceeded);
        } else if locked.state == QpState::Err {
            // A queue pair in ERR flushes all requests, whatever the reason.
            self.release_withheld(locked, WcStatus::Flushed);
        }
        self.log_failover(locked);
    }

    /// Polls the virtual queue pair, and pushes its completions to the program's queues.
    pub(super) fn take_completions(&self, locked: &mut LockedState) {
        let mut scratch = std::mem::take(&mut locked.scratch);
        locked.vqps().for_each(|vqp| {
            vqp.poll(&mut scratch);
        });
        for completion in scratch.drain(..) {
            self.complete(locked, &completion);
        }
        locked.scratch = scratch;
    }

    fn complete(&self, locked: &mut LockedState, completion: &Completion) {
        let is_receive = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm);
        let (status, vendor_err) = wc_status(completion.outcome, self.is_unreliable());
        let is_ended_by_peer = matches!(
            completion.outcome,
            Outcome::Failed(WcStatus::Flushed) | Outcome::Unresolved(UnresolvedError::Undecided(_))
        );
        // A send of UC does not depend on the peer, so its completion is not withheld.
        if is_ended_by_peer
            && (is_receive || !self.is_unreliable())
            && locked.vqp.close_reason() == Some(CloseReason::PeerClosed)
            && locked.state != QpState::Err
        {
            let wc = self.wc(completion.wr_id, status, completion.opcode);
            let peer_closed = locked.peer_closed.get_or_insert_default();
            if is_receive {
                peer_closed.recvs.push_back(wc);
            } else {
                peer_closed.withhold_send(wc);
            }
            return;
        }
        if let Outcome::Unresolved(error) = completion.outcome
            // A NIC flushes these requests too, without a report.
            && !matches!(error, UnresolvedError::Undecided(CloseReason::Closed | CloseReason::RequestError))
            && locked.logged_errors < MAX_LOGGED_ERRORS
        {
            locked.logged_errors += 1;
            tracing::warn!(
                "queue pair {}: {}, wr_id {:#x}: {}",
                self.qpn,
                completion.opcode,
                completion.wr_id,
                explain(error, locked.vqp.config().completion_log.is_some())
            );
        }
        if status != WcStatus::Success {
            if is_receive { locked.fail() } else { self.fail_sends(locked) }
        }
        if matches!(
            status,
            WcStatus::RemoteInvalidRequest | WcStatus::RemoteAccess | WcStatus::RemoteOperation
        ) {
            self.drive_responder();
        }
        let Completion { wr_id, opcode, byte_len, imm, invalidated, solicited, .. } = *completion;
        let wc = Wc { vendor_err, byte_len, imm, invalidated, solicited, ..self.wc(wr_id, status, opcode) };
        match completion.srq {
            None if is_receive => self.params.recv_cq.push(wc),
            None => self.params.send_cq.push(wc),
            // If the shared receive queue was destroyed meanwhile, the receive completes nowhere,
            // as on a NIC.
            Some(number) => {
                if let Some(cq) = self.params.xrc.as_ref().and_then(|xrc| xrc.cq(number)) {
                    cq.push(wc);
                }
            }
        }
    }

    /// Drives the queue pairs that have something to do before the completion of a refused
    /// request, because the responder may be one of them. Its NIC completes the receive before it
    /// sends the NAK, and programs rely on this order.
    ///
    /// This thread waits for the locks of the other queue pairs of the completion queue while it
    /// holds the lock of this one. A second thread that did so could wait for this thread, so the
    /// second thread drives nothing.
    fn drive_responder(&self) {
        static IS_WAITING: Mutex<()> = Mutex::new(());
        if let Ok(_waiting) = IS_WAITING.try_lock() {
            let cq = Arc::as_ptr(&self.params.send_cq).addr();
            self.domain.drive(|qp| !ptr::addr_eq(qp, self) && qp.completes_in(cq));
        }
    }

    /// Enters the state that a NIC's queue pair has after a send has failed: ERR, or SQE if the
    /// queue pair is unreliable and its connection has not ended.
    pub(super) fn fail_sends(&self, locked: &mut LockedState) {
        let has_ended =
            locked.sender().close_reason().is_some_and(|reason| reason != CloseReason::PeerClosed);
        if has_ended || !self.is_unreliable() {
            locked.fail();
        } else if matches!(locked.state, QpState::Rts | QpState::Sqd) {
            locked.state = QpState::Sqe;
        }
    }

    /// Pushes the completions that were withheld since the peer closed its end: the oldest send
    /// with the status `oldest`, all other requests as flushed.
    pub(super) fn release_withheld(&self, locked: &mut LockedState, oldest: WcStatus) {
        for wc in locked.peer_closed.take().into_iter().flat_map(|withheld| withheld.fail(oldest)) {
            let cq = if wc.opcode == WcOpcode::Recv { &self.params.recv_cq } else { &self.params.send_cq };
            cq.push(wc);
        }
    }

    /// Reports the event of the first packet in RTR, once (IBTA volume 1, 11.6.3.2).
    pub(super) fn report_established(&self, locked: &mut LockedState) {
        if !locked.established_reported && locked.vqp.take_established() {
            locked.established_reported = true;
            (self.params.on_event)(AsyncEvent::CommunicationEstablished(self.qpn));
        }
    }

    /// Reports the event of a send queue that has drained, once for each change to SQD. A queue
    /// pair that waits for its connection has begun no send, so its send queue is drained.
    pub(super) fn report_drained(&self, locked: &mut LockedState) {
        if !locked.drain_reported && (locked.pending.is_some() || locked.sender().are_sends_drained()) {
            locked.drain_reported = true;
            (self.params.on_event)(AsyncEvent::SqDrained(self.qpn));
        }
    }

    /// Logs and counts the last failover, unless that was done before.
    fn log_failover(&self, locked: &mut LockedState) {
        let Some(report) = locked.sender().last_failover() else { return };
        if locked.logged_epoch == Some(report.epoch) {
            return;
        }
        locked.logged_epoch = Some(report.epoch);
        self.failovers.fetch_add(1, Ordering::Relaxed);
        let stats = report.stats;
        let consequence = if self.is_unreliable() {
            "messages may be lost".to_owned()
        } else {
            format!(
                "of {} in flight, {} had been executed, {} are sent again, {} end in errors",
                stats.in_flight, stats.executed, stats.replayed, stats.failed
            )
        };
        tracing::warn!(
            "queue pair {} moved from rail {} to rail {} ({}) in {:.1?}: {consequence}",
            self.qpn,
            report.from,
            report.to,
            report.cause,
            report.decided_at.saturating_since(report.detected_at),
        );
    }
}

/// Explains an unresolved error to the user of an unmodified program. The texts of the errors
/// themselves name calls of the Rust interface.
fn explain(error: UnresolvedError, has_log: bool) -> String {
    match error {
        UnresolvedError::Indeterminate => {
            let advice = if has_log {
                ""
            } else {
                ", or use --log at both ends, which decides all but one such operation"
            };
            format!(
                "not, partly or fully executed: no evidence tells which; read the peer's memory to find out{advice}"
            )
        }
        UnresolvedError::ValueLost => {
            "executed exactly once, but its value is lost; do not repeat it".to_owned()
        }
        UnresolvedError::ExecutedBehindError => {
            "executed exactly once, behind an operation that ended in an error; do not repeat it".to_owned()
        }
        error => error.to_string(),
    }
}

/// Returns the completion status of an outcome, and a `vendor_err` that identifies the unresolved
/// error, or 0.
///
/// An operation that may have been executed ends with [`WcStatus::RetryExceeded`], as on a NIC. An
/// executed operation whose value is lost ends with [`WcStatus::RemoteOperation`].
fn wc_status(outcome: Outcome, is_unreliable: bool) -> (WcStatus, u32) {
    match outcome {
        Outcome::Success => (WcStatus::Success, 0),
        Outcome::Failed(status) => (status, 0),
        // UC has no acknowledgements, so the outcome of a send is never known.
        Outcome::Unresolved(UnresolvedError::Undecided(_)) if is_unreliable => (WcStatus::Flushed, 2),
        Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::Closed)) => (WcStatus::Flushed, 0),
        // A NIC flushes the requests after a failed one, whether or not they were executed.
        Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::RequestError)) => (WcStatus::Flushed, 2),
        Outcome::Unresolved(UnresolvedError::Indeterminate) => (WcStatus::RetryExceeded, 1),
        Outcome::Unresolved(UnresolvedError::Undecided(_)) => (WcStatus::RetryExceeded, 2),
        Outcome::Unresolved(UnresolvedError::ValueLost) => (WcStatus::RemoteOperation, 3),
        Outcome::Unresolved(_) => (WcStatus::RemoteOperation, 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that reads only the status must not use a lost value.
    #[test]
    fn unresolved_errors_are_no_successes_and_differ() {
        let undecided = UnresolvedError::Undecided;
        let cases = [
            (UnresolvedError::Indeterminate, (WcStatus::RetryExceeded, 1)),
            (undecided(CloseReason::PeerUnreachable), (WcStatus::RetryExceeded, 2)),
            (undecided(CloseReason::RequestError), (WcStatus::Flushed, 2)),
            (undecided(CloseReason::Closed), (WcStatus::Flushed, 0)),
            (UnresolvedError::ValueLost, (WcStatus::RemoteOperation, 3)),
            (UnresolvedError::ExecutedBehindError, (WcStatus::RemoteOperation, 4)),
        ];
        for (error, expected) in cases {
            assert_eq!(wc_status(Outcome::Unresolved(error), false), expected, "{error}");
        }
    }

    #[test]
    fn explanations_name_no_call_of_the_rust_interface() {
        let unresolved = [
            UnresolvedError::Indeterminate,
            UnresolvedError::ValueLost,
            UnresolvedError::ExecutedBehindError,
        ];
        for error in unresolved {
            assert!(error.to_string().contains("resume()"), "{error}");
            let text = explain(error, false);
            assert!(!text.contains("resume()"), "{text}");
            let what_is_known = |text: &str| text.split(';').next().map(str::to_owned);
            assert_eq!(what_is_known(&text), what_is_known(&error.to_string()));
        }
    }

    #[test]
    fn log_is_recommended_where_there_is_none() {
        assert!(explain(UnresolvedError::Indeterminate, false).contains("--log"));
        assert!(!explain(UnresolvedError::Indeterminate, true).contains("--log"));
    }
}
