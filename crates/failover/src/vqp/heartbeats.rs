//! Heartbeats, and the glue of the detector of silent rails ([`RailQuestions`]).

use core::time::Duration;

use mitra_verbs::Time;

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::control_message::{Body, Message};
use crate::rail_questions::{RailQuestions, Step, Wait};
use crate::vqp::datapath::Datapath;
use crate::vqp::peer_exit_watch::PeerExitWatch;
use crate::vqp::recovery::Recovery;

/// Sends heartbeats on every rail, and detects the peer's silence on the active one, or on all.
#[derive(Debug)]
pub(super) struct Heartbeats {
    next: Time,
    /// Whether any rail has carried a message from the peer. Before the first message, the peer may
    /// not be connected.
    peer_heard: bool,
    /// Whether the heartbeats on the active rail were missing at the last run.
    is_active_rail_silent: bool,
    /// The time at which the heartbeats were found to be missing on all rails.
    silent_since: Option<Time>,
    peer_exit: PeerExitWatch,
    questions: RailQuestions,
}

impl Heartbeats {
    pub(super) fn new(rails: usize) -> Heartbeats {
        Heartbeats {
            next: Time::ZERO,
            peer_heard: false,
            is_active_rail_silent: false,
            silent_since: None,
            peer_exit: PeerExitWatch::default(),
            questions: RailQuestions::new(rails),
        }
    }

    /// Makes heartbeats due at once.
    pub(super) fn start(&mut self, now: Time) {
        self.next = now;
    }

    pub(super) fn on_peer_heard(&mut self) {
        self.peer_heard = true;
        self.silent_since = None;
        self.peer_exit.detector.on_peer_heard();
    }

    /// Handles a question or an answer of the peer that has arrived on `rail`.
    pub(super) fn on_message(&mut self, now: Time, rail: usize, body: &Body) {
        match *body {
            Body::Question { number } => self.questions.on_question(rail, number),
            Body::Answer { number } => self.questions.on_answer(now, rail, number),
            _ => {}
        }
    }

    /// Answers the peer's questions, each on its rail. To be called after the messages of all rails
    /// were read, so that an end that was suspended answers on every rail or on none.
    pub(super) fn answer(&mut self, recovery: &Recovery, dp: &Datapath) {
        let Some(control) = &recovery.control else { return };
        for rail in 0..dp.rails.len() {
            for number in self.questions.take_owed(rail, dp.termination.is_closed()) {
                let message = Message { ballot: control.negotiation.ballot(), body: Body::Answer { number } };
                dp.rails.get(rail).send_control(&control.encode(&message), message.body.wakes());
            }
        }
    }

    /// `None` if heartbeats are off or the vQP is not active.
    pub(super) fn next(&self, recovery: &Recovery, dp: &Datapath) -> Option<Time> {
        (dp.has_heartbeats() && recovery.is_active()).then_some(self.next)
    }

    /// The time of the next question or of the decision about the active rail. `last_run` is the
    /// time of the last maintenance run. `None` if this end waits for nothing.
    pub(super) fn next_question(&self, recovery: &Recovery, dp: &Datapath, last_run: Time) -> Option<Time> {
        let wait = self.wait(recovery, dp)?;
        self.questions.next_of(recovery.active_rail(), wait, last_run)
    }

    /// Records progress of an end that runs maintenance only when it is due.
    #[inline]
    pub(super) fn note_wait(&mut self, now: Time, recovery: &Recovery, dp: &Datapath) {
        let wait = self.wait(recovery, dp);
        self.questions.note_wait(now, recovery.active_rail(), wait);
    }

    /// What this end waits for on the active rail. Without heartbeats the peer's silence shows
    /// nothing, because the peer may never be driven. A vQP that is not active waits for the end of
    /// its move, whose messages are repeated anyway.
    #[inline]
    fn wait(&self, recovery: &Recovery, dp: &Datapath) -> Option<Wait> {
        if !dp.has_heartbeats() || !recovery.is_active() {
            return None;
        }
        let ledger = &dp.send.ledger;
        // A request of an unreliable connection completes although its rail is silent.
        let awaited = dp.config().service.is_reliable() && ledger.awaits_completion();
        let operations = awaited.then(|| Wait { progress: ledger.ended(), bytes: ledger.bytes_in_flight() });
        operations.or(self.is_active_rail_silent.then_some(Wait::HEARTBEAT))
    }

    /// Sends due heartbeats and questions, and reports the active rail as failed if the peer
    /// answers on another rail only. Closes the vQP if the peer's process has ended, or if no rail
    /// has carried a message of the peer for the peer timeout after the heartbeats were missed.
    /// Without heartbeats, does nothing. `since_last_run` is the time since the last maintenance
    /// run. During this time, this end has read no messages.
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
        let timeout = if self.peer_heard { timeout } else { timeout.max(detector.first_contact_timeout) };
        let silence = |rail: usize| now.saturating_since(dp.rails.get(rail).last_heard());
        self.is_active_rail_silent = silence(recovery.active_rail()) > timeout;
        if recovery.is_active() && (0..dp.rails.len()).map(silence).min().is_some_and(|s| s > timeout) {
            let since = *self.silent_since.get_or_insert(now);
            if now.saturating_since(since) >= dp.config().peer_timeout {
                return recovery.close(dp, CloseReason::PeerUnreachable);
            }
        }
        self.ask(now, recovery, dp);
    }

    fn ask(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        let (active, wait) = (recovery.active_rail(), self.wait(recovery, dp));
        match self.questions.run(now, active, wait, dp.detector().heartbeat_interval) {
            Step::Rest => {}
            Step::Ask(number) => {
                let Some(negotiation) = recovery.negotiation() else { return };
                let message = Message { ballot: negotiation.ballot(), body: Body::Question { number } };
                recovery.broadcast(dp, &message);
            }
            Step::Condemn => recovery.rail_failed(dp, active, Cause::Silence),
        }
    }
}
