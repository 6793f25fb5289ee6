//! Heartbeats, and the glue of the detector of silent rails ([`RailQuestions`]).

use core::time::Duration;

use mitra_verbs::{Qpn, Time};

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::control_message::{Body, Message};
use crate::rail_questions::{RailQuestions, Step, Wait};
use crate::vqp::datapath::Datapath;
use crate::vqp::peer_exit_watch::PeerExitWatch;
use crate::vqp::recovery::Recovery;

/// The heartbeats of idle vQPs are due at multiples of their pause divided by this number. A
/// process with many vQPs thus wakes for several of them at once.
const SLOTS_PER_PAUSE: u64 = 32;
/// The pauses of vQPs with different numbers differ by up to this many slots. vQPs that connected
/// at the same time therefore do not send all their heartbeats at once for ever.
const MAX_SLOTS_LESS: u64 = 8;

/// Sends heartbeats on every rail, and detects the peer's silence on the active one, or on all.
#[derive(Debug)]
pub(super) struct Heartbeats {
    next: Time,
    /// The time between the last heartbeat and the next one.
    pause: Duration,
    /// The rails that the last heartbeat named as unusable.
    sent_unusable: u8,
    /// Whether any rail has carried a message from the peer. Before the first message, the peer may
    /// not be connected.
    peer_heard: bool,
    /// Whether the pauses do not grow although the connection is reliable.
    pub(super) are_frequent: bool,
    /// Whether the heartbeats on the active rail were missing at the last run.
    is_active_rail_silent: bool,
    /// Whether, at the last run, the heartbeats were missing on all rails or the peer's host had
    /// refused packets since the last message. Only a message shows that the peer runs.
    is_peer_in_doubt: bool,
    /// The time at which this end began to ask questions. `None` if it asks none.
    asks_since: Option<Time>,
    /// The time at which all rails were found to be silent.
    silent_since: Option<Time>,
    peer_exit: PeerExitWatch,
    questions: RailQuestions,
}

impl Heartbeats {
    pub(super) fn new(rails: usize) -> Heartbeats {
        Heartbeats {
            next: Time::ZERO,
            pause: Duration::ZERO,
            sent_unusable: 0,
            peer_heard: false,
            are_frequent: false,
            is_active_rail_silent: false,
            is_peer_in_doubt: false,
            asks_since: None,
            silent_since: None,
            peer_exit: PeerExitWatch::default(),
            questions: RailQuestions::new(rails),
        }
    }

    /// Makes heartbeats due at once, and again after the shortest pause.
    pub(super) fn start(&mut self, now: Time) {
        self.next = now;
        self.pause = Duration::ZERO;
    }

    pub(super) fn on_peer_heard(&mut self) {
        self.peer_heard = true;
        self.is_peer_in_doubt = false;
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
        if self.is_peer_in_doubt {
            // Operations may make progress although the peer's process does not run.
            return Some(Wait { bytes: ledger.bytes_in_flight(), ..Wait::HEARTBEAT });
        }
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
        let longest_pause = self.longest_pause(dp);
        let (timeout, idle_timeout) = match self.peer_heard {
            false => [detector.timeout().max(detector.first_contact_timeout); 2].into(),
            true if longest_pause > detector.heartbeat_interval => {
                (detector.timeout(), detector.timeout().max(longest_pause.saturating_mul(2)))
            }
            true => [detector.timeout(); 2].into(),
        };
        // A long time without a run does not show that the peer was silent, because the peer may
        // have been suspended together with this end. A part of the time still counts, so that an
        // end that runs rarely notices that its peer is gone.
        dp.rails.note_unobserved(now, since_last_run.saturating_sub(idle_timeout / 2));
        // The peer may have been suspended longer than this end, and may need time to answer.
        let excluded = since_last_run.saturating_sub(dp.config().peer_timeout / 2);
        self.silent_since = self.silent_since.map(|since| (since + excluded).min(now));
        self.beat(now, recovery, dp);
        if dp.termination.is_closed() {
            return;
        }
        let silence = |rail: usize| now.saturating_since(dp.rails.get(rail).last_heard());
        self.is_active_rail_silent = silence(recovery.active_rail()) > idle_timeout;
        let silence = (0..dp.rails.len()).map(silence).min().unwrap_or_default();
        self.is_peer_in_doubt = silence > idle_timeout || self.peer_exit.detector.refusing() != 0;
        if recovery.is_active() {
            let asked_for = self.asks_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
            if silence <= idle_timeout && silence.min(asked_for) <= timeout {
                self.silent_since = None;
            } else if now.saturating_since(*self.silent_since.get_or_insert(now)) >= dp.config().peer_timeout
            {
                return recovery.close(dp, CloseReason::PeerUnreachable);
            }
        }
        self.ask(now, recovery, dp);
    }

    /// Sends a heartbeat if one is due. As long as nothing changes, each pause is twice as long as
    /// the one before, so a change is said several times in short intervals.
    fn beat(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        let detector = *dp.detector();
        let Some(negotiation) = recovery.negotiation() else { return };
        let unusable = negotiation.local_unusable();
        let is_calm = negotiation.is_move_confirmed()
            && !negotiation.is_stranded()
            && self.peer_heard
            && self.asks_since.is_none()
            && self.peer_exit.detector.refusing() == 0;
        let is_news = !is_calm || unusable != self.sent_unusable;
        if is_news {
            self.pause = Duration::ZERO;
            self.next = self.next.min(now + detector.heartbeat_interval);
        }
        if now < self.next {
            return;
        }
        if self.peer_exit.has_exited(now, dp) {
            return recovery.close(dp, CloseReason::PeerExited);
        }
        let Some(control) = &recovery.control else { return };
        let message = Message { ballot: control.negotiation.ballot(), body: Body::Heartbeat { unusable } };
        // News wakes a peer that sleeps until its own next heartbeat.
        dp.rails.broadcast(control.negotiation.active(), &control.encode(&message), is_news);
        self.sent_unusable = unusable;
        self.pause = self.pause.saturating_mul(2).clamp(detector.heartbeat_interval, self.longest_pause(dp));
        self.next = now + self.pause;
        if self.pause > detector.heartbeat_interval {
            self.next = in_slot(self.next, self.pause, dp.rails.qpn());
        }
    }

    /// The longest time between two heartbeats. The sender of an unreliable connection notices a
    /// silent rail by the peer's heartbeats only, so these do not become rare.
    fn longest_pause(&self, dp: &Datapath) -> Duration {
        let is_frequent = self.are_frequent || !dp.config().service.is_reliable();
        if is_frequent { dp.detector().heartbeat_interval } else { dp.detector().idle_interval() }
    }

    fn ask(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        let (active, wait) = (recovery.active_rail(), self.wait(recovery, dp));
        let step = self.questions.run(now, active, wait, dp.detector().heartbeat_interval);
        self.asks_since = self.questions.is_asking().then(|| self.asks_since.unwrap_or(now));
        match step {
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

/// The last slot that is not after `next`, or an earlier one that depends on the vQP's number.
fn in_slot(next: Time, pause: Duration, qpn: Qpn) -> Time {
    let slot = (u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX) / SLOTS_PER_PAUSE).max(1);
    let slots = (next.as_nanos() / slot).saturating_sub(u64::from(qpn.value()) % MAX_SLOTS_LESS);
    Time::from_nanos(slots * slot)
}
