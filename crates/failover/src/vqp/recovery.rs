//! A failover at this end: detection, fence, evidence, decision and move.
//!
//! [`Recovery`] executes the actions of the negotiation on the datapath, and queues each failure on
//! the way as a [`Failure`]. One loop, [`Recovery::settle`], handles the failures and the actions
//! until none is left. A method that is called from the loop only queues failures, and never runs
//! the loop itself. A method for other parts of the vQP runs the loop before it returns.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_mutants::Mutant;
use mitra_verbs::{AsyncEvent, Time, Wc, WcStatus};

use crate::ballot::Ballot;
use crate::cause::Cause;
use crate::control_message::{Body, Message};
use crate::evidence::Evidence;
use crate::ledger::RecoveryInput;
use crate::negotiation::{Action, CloseReason, RailFailure, RailNegotiation};
use crate::telemetry::VqpTelemetry;
use crate::vqp::control_protocol::ControlProtocol;
use crate::vqp::datapath::Datapath;
use crate::vqp::failure::Failure;
use crate::vqp::fence::{Fence, FenceStep};
use crate::vqp::futile_move_detector::FutileMoveDetector;
use crate::vqp::replay::Replay;
use crate::vqp::report_recorder::ReportRecorder;
use standby_fence::StandbyFence;

mod closing;
mod completions;
mod home_moves;
mod standby_fence;

#[derive(Debug)]
pub struct Recovery {
    /// `None` until the vQP is connected.
    pub(super) control: Option<ControlProtocol>,
    fence: Fence,
    /// Whether the fence began before the move, because another vQP has moved the home and waits
    /// for this fence.
    is_fence_early: bool,
    standby_fence: StandbyFence,
    /// Whether a step of the move waits until other vQPs have fenced their queue pairs on the old
    /// home.
    waits_for_home: bool,
    pub(super) replay: Replay,
    pub(super) report: ReportRecorder,
    futile_moves: FutileMoveDetector,
    /// The failures that are not handled yet, in the order of their detection.
    pub(super) failures: VecDeque<Failure>,
    /// The completions of a poll. The list keeps its allocation between polls.
    wcs: Vec<Wc>,
    /// Whether a failure or an action was handled since the last maintenance run. The times at
    /// which maintenance is due may have changed since then.
    pub(super) has_settled: bool,
}

impl Recovery {
    pub(super) fn new(telemetry: Arc<VqpTelemetry>) -> Recovery {
        Recovery {
            control: None,
            fence: Fence::default(),
            is_fence_early: false,
            standby_fence: StandbyFence::default(),
            waits_for_home: false,
            replay: Replay::default(),
            report: ReportRecorder::new(telemetry),
            futile_moves: FutileMoveDetector::default(),
            failures: VecDeque::new(),
            wcs: Vec::new(),
            has_settled: false,
        }
    }

    #[inline]
    pub(super) fn negotiation(&self) -> Option<&RailNegotiation> {
        self.control.as_ref().map(|control| &control.negotiation)
    }

    pub(super) fn negotiation_mut(&mut self) -> Option<&mut RailNegotiation> {
        self.control.as_mut().map(|control| &mut control.negotiation)
    }

    /// The active rail; during a move, the old rail.
    #[inline]
    pub(super) fn active_rail(&self) -> usize {
        self.negotiation().map_or(0, RailNegotiation::active)
    }

    /// The ballot of the active rail; during a move, of the old rail. `None` if the vQP is not
    /// connected or has closed.
    pub(super) fn ballot(&self, dp: &Datapath) -> Option<Ballot> {
        self.negotiation().filter(|_| !dp.termination.is_closed()).map(RailNegotiation::ballot)
    }

    /// Returns whether the vQP is open and no move is in progress.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.negotiation().is_some_and(RailNegotiation::is_active)
    }

    pub(super) fn may_post(&self) -> bool {
        self.negotiation().is_some_and(RailNegotiation::may_post)
    }

    /// Returns whether the peer has confirmed the last move and no other move is in progress.
    pub(super) fn is_move_confirmed(&self) -> bool {
        self.negotiation().is_some_and(RailNegotiation::is_move_confirmed)
    }

    /// Returns whether this end has left the queue pair of `rail` and has not connected a
    /// replacement yet.
    fn is_qp_missing(&self, rail: usize) -> bool {
        self.negotiation().is_some_and(|negotiation| negotiation.is_local_qp_missing(rail))
    }

    /// Returns whether the active rail has failed and no move can begin yet.
    pub(super) fn is_stranded(&self) -> bool {
        self.negotiation().is_some_and(RailNegotiation::is_stranded)
    }

    /// Handles the queued failures and the actions of the negotiation until none is left. If the
    /// vQP has closed, completes its outstanding requests.
    pub(super) fn settle(&mut self, dp: &mut Datapath) {
        self.settle_in_batch(dp);
        if let Some(reason) = dp.termination.take_flush() {
            self.flush(dp, reason);
            self.settle_in_batch(dp);
        }
    }

    /// Like [`Recovery::settle`], but leaves the outstanding requests of a closed vQP, because some
    /// may complete later in the batch of completions. A failure comes before the actions that were
    /// queued earlier.
    fn settle_in_batch(&mut self, dp: &mut Datapath) {
        loop {
            if let Some(failure) = self.failures.pop_front() {
                self.handle_failure(dp, failure);
            } else if let Some(action) = self.negotiation_mut().and_then(RailNegotiation::poll_action) {
                self.perform(dp, action);
            } else {
                return;
            }
            self.has_settled = true;
        }
    }

    /// Returns whether the next poll has work even if nothing completes: a failover is in progress,
    /// or a failure is not handled yet.
    pub(super) fn needs_poll(&self) -> bool {
        self.has_settled
            || self.replay.is_failover_in_progress()
            || !self.failures.is_empty()
            || !self.fence.is_idle()
            || !self.standby_fence.is_idle()
    }

    pub(super) fn fail(&mut self, dp: &mut Datapath, failure: Failure) {
        self.failures.push_back(failure);
        self.settle(dp);
    }

    pub(super) fn rail_failed(&mut self, dp: &mut Datapath, rail: usize, cause: Cause) {
        self.fail(dp, Failure::Rail { rail, cause });
    }

    /// Handles a failure of the active rail, unless the vQP already fences the rail. A failure that
    /// is recorded during the fence would make the rail unusable until its port changes.
    pub(super) fn active_rail_failed(&mut self, dp: &mut Datapath, cause: Cause) {
        if self.fence.is_idle() {
            self.rail_failed(dp, self.active_rail(), cause);
        }
    }

    fn handle_failure(&mut self, dp: &mut Datapath, failure: Failure) {
        let (rail, cause) = match failure {
            Failure::Rail { rail, cause } => (rail, cause),
            Failure::Close(reason) => return self.begin_close(dp, reason),
        };
        let now = dp.now();
        let Some(negotiation) = self.negotiation() else { return };
        let is_active = negotiation.is_active() && negotiation.active() == rail;
        let is_futile = is_active
            && cause == Cause::Completion(WcStatus::RetryExceeded)
            && self.futile_moves.on_retries_exhausted(
                now,
                dp.send.ledger.first_seq(),
                dp.rails.len(),
                dp.config().peer_timeout,
            );
        if is_futile || is_active && dp.config().policy.closes_with_rail() {
            return self.begin_close(dp, CloseReason::NoRail);
        }
        if is_active {
            self.on_detected(dp, rail, cause);
            // The choice of the next rail needs the current state of every other rail.
            for other in (0..dp.rails.len()).filter(|&other| other != rail) {
                if let Some(Failure::Rail { rail, cause }) = self.observe_device(dp, other, true) {
                    self.record_rail_failure(dp, rail, cause);
                }
            }
        }
        self.record_rail_failure(dp, rail, cause);
        self.end_failover_if_no_move();
    }

    fn on_detected(&mut self, dp: &Datapath, rail: usize, cause: Cause) {
        if self.replay.on_detected(dp.send.ledger.next_seq()) {
            self.report.on_detected(rail, cause, dp.now());
        }
    }

    fn record_rail_failure(&mut self, dp: &Datapath, rail: usize, cause: Cause) {
        let failure = match cause {
            _ if !dp.rails.nic_answers(rail) => RailFailure::NicDead,
            Cause::Device => RailFailure::LinkDown,
            Cause::Silence => RailFailure::Silent,
            Cause::Completion(_) | Cause::Peer | Cause::Address | Cause::Failback => RailFailure::QpFailed,
        };
        self.read_home(dp);
        if let Some(negotiation) = self.negotiation_mut() {
            negotiation.rail_failed(dp.now(), rail, failure);
        }
    }

    /// Handles the events of a rail's NIC. With `query`, also queries the NIC, because a NIC may
    /// die without an event.
    pub(super) fn check_device(&mut self, dp: &mut Datapath, rail: usize, query: bool) {
        let failure = self.observe_device(dp, rail, query);
        self.end_failover_if_no_move();
        self.failures.extend(failure);
        self.settle(dp);
    }

    /// Like [`Recovery::check_device`], but returns the failure that the events report.
    fn observe_device(&mut self, dp: &mut Datapath, rail: usize, query: bool) -> Option<Failure> {
        let event_says_down = dp.domain.poll_rail_down(rail);
        if rail == self.active_rail()
            && self.fence.is_idle()
            && let Some(failure) = dp.take_qp_error(rail)
        {
            return Some(failure);
        }
        if !event_says_down && !query {
            return None;
        }
        let is_dead = query && !dp.domain.nic_answers(rail);
        let (is_down, was_down) = (event_says_down || is_dead, dp.rails.is_down(rail));
        if is_down && !was_down {
            dp.rails.set_down(rail, true);
            return Some(Failure::Rail { rail, cause: Cause::Device });
        }
        let negotiation = self.negotiation_mut()?;
        if is_dead {
            // The rail was down already, perhaps only because its link is down. The negotiation
            // must know that the NIC is dead, because a dead NIC makes the rail broken and a link
            // that is down does not.
            negotiation.rail_failed(dp.now(), rail, RailFailure::NicDead);
        } else if !is_down && was_down {
            dp.rails.set_down(rail, false);
            negotiation.rail_recovered(dp.now(), rail);
        }
        None
    }

    /// Makes a rail usable again after a change of its address.
    pub(super) fn rail_usable(&mut self, dp: &mut Datapath, now: Time, rail: usize) {
        if let Some(negotiation) = self.negotiation_mut() {
            negotiation.rail_recovered(now, rail);
        }
        self.settle(dp);
    }

    /// Ends the failover if the vQP stays on the active rail.
    fn end_failover_if_no_move(&mut self) {
        if self.is_active() && !self.is_stranded() {
            self.end_failover();
        }
    }

    fn end_failover(&mut self) {
        if self.replay.on_stay() {
            self.report.discard();
        }
    }

    pub(super) fn fence_timeout(&self) -> Option<Time> {
        self.fence.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, dp: &mut Datapath, now: Time) {
        if let Some(negotiation) = self.negotiation_mut() {
            negotiation.handle_timeout(now);
            negotiation.drive_failback(now);
        }
        self.settle(dp);
        self.follow_home(dp);
        self.retry_home_move();
        let step = self.fence.drive(dp.rails.get(self.active_rail()).data(), dp.now());
        self.on_fence_step(dp, step);
        self.settle(dp);
    }

    fn perform(&mut self, dp: &mut Datapath, action: Action) {
        match action {
            Action::Send(message) => {
                let new_rail = match message.body {
                    Body::Evidence { rail, .. } => Some(usize::from(rail)),
                    _ => None,
                };
                let new_rail = new_rail.filter(|&rail| rail != self.active_rail());
                if new_rail.is_some_and(|rail| !dp.windows.is_in_step(rail)) {
                    // With the evidence, the peer could use the new rail before its windows are in
                    // step. The negotiation sends the evidence again.
                    return;
                }
                let Some(message) = self.with_home_moved(dp, message) else { return };
                if let Some(rail) = new_rail
                    && self.fence.is_done()
                    && !Mutant::ReceivesPostedLate.is_on()
                {
                    // The peer may replay a SEND as soon as it has the evidence, so the receives
                    // come first.
                    self.post_recvs(dp, rail);
                }
                self.broadcast(dp, &message);
            }
            Action::Fence { rail } => self.start_fence(dp, usize::from(rail)),
            Action::Decide { rail, peer_evidence } => {
                let negotiation = self.negotiation();
                let ballot = negotiation.and_then(RailNegotiation::move_ballot);
                let to = negotiation.and_then(RailNegotiation::home_of_move);
                if ballot.zip(to).is_some_and(|(ballot, to)| self.move_home(dp, ballot, to)) {
                    self.decide_and_move(dp, usize::from(rail), &peer_evidence);
                }
            }
            Action::PeerMoved { partial_imm_bytes } => dp.release_held_recvs(Some(partial_imm_bytes)),
            Action::Stay => {
                let now = dp.now();
                dp.rails.get_mut(self.active_rail()).note_heard(now);
                self.end_failover_if_no_move();
                self.post_list(dp);
            }
            Action::Close { reason, peer_evidence } => self.on_close(dp, reason, peer_evidence),
        }
    }

    /// Sends a control message on every rail whose device is up. During a move, the new rail is
    /// first, because the old rail has probably failed.
    pub(super) fn broadcast(&self, dp: &Datapath, message: &Message) {
        if let Some(control) = &self.control {
            let first = control.negotiation.destination();
            dp.rails.broadcast(first, &control.encode(message), message.body.wakes());
        }
    }

    /// Starts the fence of the old rail. Under a policy that does not fence, skips the fence, or
    /// waits in its place.
    fn start_fence(&mut self, dp: &mut Datapath, rail: usize) {
        let is_failback = self.negotiation().is_some_and(RailNegotiation::is_failback);
        let cause = if is_failback { Cause::Failback } else { Cause::Peer };
        self.on_detected(dp, rail, cause);
        self.report.on_fence_began(dp.now());
        dp.windows.cut_off(rail);
        if !dp.rails.is_down(rail)
            && let Some(negotiation) = self.negotiation_mut()
        {
            negotiation.rail_recovered(dp.now(), rail); // the device is up, so only the path or the queue pair has failed
        }
        if let Some(delay) = dp.config().policy.evidence_delay() {
            return self.fence.skip_at(dp.now() + delay);
        }
        let is_early = core::mem::take(&mut self.is_fence_early);
        // If the rail has no queue pair, nothing was posted there since the last move, and nothing
        // is to be fenced.
        if self.is_qp_missing(rail) || !dp.config().requires_fence() || Mutant::FenceSkipped.is_on() {
            return self.fence.skip();
        }
        if is_early && self.fence.is_done() {
            return self.finish_fence(dp, self.fence.is_done_with_live_nic());
        }
        let (qp, now) = (dp.rails.get(rail).data(), dp.now());
        let step = match is_early {
            true => self.fence.drive(qp, now),
            false => self.fence.start(qp, now, [true; 2]),
        };
        self.on_fence_step(dp, step);
    }

    fn on_fence_step(&mut self, dp: &mut Datapath, step: FenceStep) {
        match step {
            FenceStep::Pending => {}
            FenceStep::Drained => self.finish_fence(dp, true),
            FenceStep::Reset if Mutant::HungNicNotReset.is_on() => self.finish_fence(dp, false),
            FenceStep::Reset => {
                if !self.fence.reset_nic(dp.rails.get(self.active_rail()).data())
                    && let Some(negotiation) = self.negotiation_mut()
                {
                    negotiation.fence_failed();
                }
            }
        }
    }

    /// Collects the evidence, now that the old rail executes nothing more, and passes the evidence
    /// to the negotiation.
    fn finish_fence(&mut self, dp: &mut Datapath, nic_alive: bool) {
        dp.home.on_fenced(&dp.domain, self.active_rail());
        self.fence.finish(nic_alive);
        if self.is_fence_early {
            return; // the move calls this function again
        }
        let now = dp.now();
        Recovery::keep_qp_error(dp, self.active_rail());
        let Some(negotiation) = self.negotiation() else { return };
        let (rail, epoch) = (negotiation.active(), negotiation.ballot().epoch);
        let is_qp_readable = nic_alive && !self.is_qp_missing(rail);
        let evidence = dp.collect_evidence(rail, epoch, is_qp_readable);
        dp.packets.on_fenced(evidence.psn, dp.rails.get(rail));
        self.report.on_fenced(now);
        dp.recv.on_flushed(rail);
        if let Some(negotiation) = self.negotiation_mut() {
            negotiation.fenced(now, evidence);
        }
    }

    /// Keeps the event if `rail` has refused a request of the peer. If the peer has received the
    /// NAK, the peer closes the vQP, and the event tells this end the reason. Otherwise the peer
    /// sends the request again, and this end refuses the request again.
    fn keep_qp_error(dp: &mut Datapath, rail: usize) {
        let _ = dp.domain.poll_rail_down(rail); // reads the events
        let event = dp.domain.take_qp_error(rail, dp.rails.get(rail).qpn());
        if let Some(event @ (AsyncEvent::QpAccessError(_) | AsyncEvent::QpRequestError(_))) = event {
            dp.termination.set_qp_error_event(event, dp.rails.qpn());
        }
    }

    /// Decides the operations in flight, moves to `rail`, and starts the replay there.
    fn decide_and_move(&mut self, dp: &mut Datapath, rail: usize, peer_evidence: &Evidence) {
        self.report.on_evidence(dp.now());
        let old = self.active_rail();
        let Some(ballot) = self.negotiation().and_then(RailNegotiation::move_ballot) else { return };
        let first_psn =
            if rail == old { dp.rails.replacement_psn(rail, ballot) } else { dp.rails.get(rail).first_psn() };
        let input = RecoveryInput {
            policy: dp.config().policy,
            evidence: peer_evidence,
            local_placed: self.fence.is_done_with_live_nic(),
            acks_after_placement: dp.acks_after_placement(old),
            first_psn,
            durable: dp.is_durable(rail),
        };
        let posted = dp.send.ledger.packets_posted();
        let stats = match dp.decide(&input) {
            Ok(Some(stats)) => stats,
            Ok(None) => return self.begin_close(dp, CloseReason::RequestError),
            Err(contradiction) => {
                dp.termination.set_contradiction(contradiction);
                return self.begin_close(dp, CloseReason::Contradiction);
            }
        };
        dp.packets.on_move(posted, stats.packets_replayed, first_psn);
        if stats.carried_data {
            self.futile_moves.on_carried_data();
        }
        let now = dp.now();
        let Some(negotiation) = self.negotiation_mut() else { return };
        negotiation.moved(now, stats.imm_bytes_kept);
        self.fence.clear();
        self.standby_fence.on_moved(rail);
        self.is_fence_early = false;
        if !Mutant::ReceivesOfEarlierEpochCounted.is_on() {
            dp.recv.begin_epoch();
        }
        dp.rails.get_mut(rail).note_heard(now);
        if self.replay.on_move() {
            dp.domain.counters().count_failover();
            self.report.on_decided(now, (old, rail), ballot, stats);
        }
        self.post_recvs(dp, rail);
        self.post_list(dp);
    }
}
