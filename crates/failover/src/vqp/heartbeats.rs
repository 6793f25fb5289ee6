use core::time::Duration;

use mitra_verbs::Time;

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::control_message::{Body, Message};
use crate::vqp::datapath::Datapath;
use crate::vqp::peer_exit_watch::PeerExitWatch;
use crate::vqp::recovery::Recovery;

/// Sends heartbeats on every rail, and detects the peer's silence on the active one.
#[derive(Debug, Default)]
pub(super) struct Heartbeats {
    next: Time,
    /// Whether any rail has carried a message from the peer. Before the first message, the peer may
    /// not be connected.
    peer_heard: bool,
    peer_exit: PeerExitWatch,
}

impl Heartbeats {
    /// Makes heartbeats due at once.
    pub(super) fn start(&mut self, now: Time) {
        self.next = now;
    }

    pub(super) fn on_peer_heard(&mut self) {
        self.peer_heard = true;
        self.peer_exit.detector.on_peer_heard();
    }

    /// `None` if heartbeats are off or the vQP is not active.
    pub(super) fn next(&self, recovery: &Recovery, dp: &Datapath) -> Option<Time> {
        (dp.has_heartbeats() && recovery.is_active()).then_some(self.next)
    }

    /// Sends due heartbeats, and reports the active rail as failed if the peer is silent there.
    /// Closes the vQP if the peer's process has ended. Without heartbeats, does nothing, because
    /// the silence of the peer then shows nothing. `since_last_run` is the time since the last
    /// maintenance run. During this time, this end has read no messages.
    pub(super) fn run(
        &mut self,
        now: Time,
        since_last_run: Duration,
        recovery: &mut Recovery,
        dp: &mut Datapath,
    ) {
        let detector = *dp.detector();
        if detector.max_missed_heartbeats == 0 {
            return;
        }
        let timeout = detector.heartbeat_interval.saturating_mul(detector.max_missed_heartbeats);
        // A long time without a run does not show that the peer was silent, because the peer may
        // have been suspended together with this end. A part of the time still counts, so that an
        // end that runs rarely notices that its peer is gone.
        dp.rails.note_unobserved(now, since_last_run.saturating_sub(timeout / 2));
        if now >= self.next {
            self.next = now + detector.heartbeat_interval;
            if self.peer_exit.has_exited(now, dp) {
                return recovery.close(dp, CloseReason::PeerExited);
            }
            let Some(negotiation) = recovery.negotiation() else { return };
            let body = Body::Heartbeat { unusable: negotiation.local_unusable() };
            let message = Message { ballot: negotiation.ballot(), body };
            recovery.broadcast(dp, &message);
        }
        let active = recovery.active_rail();
        let silence = now.saturating_since(dp.rails.get(active).last_heard());
        let timeout = if self.peer_heard { timeout } else { timeout.max(detector.first_contact_timeout) };
        if recovery.is_active() && silence > timeout {
            recovery.rail_failed(dp, active, Cause::Heartbeat);
        }
    }
}
