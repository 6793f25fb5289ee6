//! What a member does when the backup has moved: the steps of its state machine, and the outcomes of its operations on the backup.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mitra_verbs::{Psn, Time, WcStatus};

use super::super::member::Step;
use super::super::message::OfferedQp;
use super::super::own_qp::{Fenced, OwnQp};
use super::super::state::{Event, State};
use super::{BackedQp, UsableGrant, on_backup};
use crate::close_reason::CloseReason;
use crate::completion::{Outcome, UnresolvedError};
use crate::config::Policy;
use crate::evidence::Evidence;
use crate::ledger::RecoveryInput;

impl BackedQp {
    /// Drives the backup, and does what the state machine asks for.
    pub(super) fn run(&mut self) {
        let backup = Arc::clone(&self.backup);
        let mut state = backup.lock();
        self.tell_placed(&mut state);
        self.note_waiting(&mut state);
        let has_news = self.attention.swap(false, Ordering::AcqRel);
        state.drive_for_member(has_news);
        let events = state.take_events(self.id);
        let last_executed = events.iter().filter_map(Event::executed_behind_error).max();
        for event in events {
            self.on_event(event, last_executed);
        }
        if let Some(reason) = state.close_reason()
            && self.close_reason().is_none()
        {
            drop(state);
            return self.close_with(reason);
        }
        while self.close_reason().is_none()
            && let Some(step) = state.with_core(self.id, |core| core.next_step()).flatten()
            && self.take_step(&mut state, step)
        {}
        self.uses_own = state.with_core(self.id, |core| core.is_calm()).unwrap_or(false);
        drop(state);
        self.flush_if_closed();
    }

    /// Handles an event. `last_executed` is the last operation that the backup executed although one of another queue pair failed before it.
    fn on_event(&mut self, event: Event, last_executed: Option<u64>) {
        match event {
            Event::Done { seq, outcome, byte_len } => {
                let is_passed = last_executed.is_some_and(|last| seq < last);
                self.on_backup_done(seq, outcome, byte_len, is_passed);
            }
            Event::Resumed { epoch, partial_imm_bytes } => {
                if self.awaited_resume == Some(epoch) {
                    self.awaited_resume = None;
                    self.recv.release_held(Some(partial_imm_bytes), &mut self.ready);
                } else if self.own.as_ref().is_some_and(|own| own.epoch == epoch) {
                    self.early_resume = Some((epoch, partial_imm_bytes));
                }
            }
            Event::Placed { epoch, placed } => self.on_placed(epoch, placed),
            Event::Granted(grant) => {
                if let Some(at) = self.asked.iter().position(|region| region.at(0).rkey == grant.rkey) {
                    let imported = self.asked.swap_remove(at);
                    self.grants.retain(|old| old.grant.rkey != grant.rkey);
                    self.grants.push(UsableGrant { base: imported.at(0).addr, len: imported.len(), grant });
                }
            }
        }
    }

    /// Handles the outcome of an operation that was posted on the backup. `is_passed` says whether a later one was executed.
    fn on_backup_done(&mut self, seq: u64, outcome: Outcome, byte_len: u32, is_passed: bool) {
        self.on_backup -= 1;
        let is_behind_error = self.send.ledger().is_behind_error(seq);
        match outcome {
            Outcome::Success if is_behind_error => {
                self.send.end(seq, Outcome::Unresolved(UnresolvedError::ExecutedBehindError));
            }
            Outcome::Success => {
                self.send.on_success(seq, byte_len);
            }
            // An operation of another queue pair failed, and the backup did not execute those behind it, apart from READs. A READ that a later
            // operation has passed must not be repeated if that one was posted with FENCE.
            Outcome::Failed(WcStatus::Flushed) if !is_behind_error && is_passed => {
                self.send.end(seq, Outcome::Unresolved(UnresolvedError::ValueLost));
            }
            Outcome::Failed(WcStatus::Flushed) if !is_behind_error => self.send.unpost(seq),
            Outcome::Unresolved(UnresolvedError::ExecutedBehindError) if !is_behind_error => {
                self.send.on_success(seq, byte_len);
            }
            _ => self.send.end(seq, outcome),
        }
        self.send.take_completions(&mut self.ready);
    }

    /// Performs a step. Returns whether the next one may follow at once.
    fn take_step(&mut self, state: &mut State, step: Step) -> bool {
        match step {
            Step::Fence => {
                self.uses_own = false;
                if let Some(rail) = self.own.as_ref().map(|own| own.rail) {
                    self.cut_off_windows(rail);
                }
                let now = self.now();
                let mut fenced = self.drive_fence(now);
                if fenced == Fenced::Pending {
                    while self.poll_batch() {}
                    fenced = self.drive_fence(now);
                }
                match fenced {
                    Fenced::Done { nic_alive } => self.finish_fence(state, nic_alive),
                    Fenced::Failed => self.close_locked(state, CloseReason::Unfenced),
                    Fenced::Pending => return false,
                }
            }
            Step::Decide(evidence) => self.decide(state, &evidence),
            Step::Create { epoch, rail } => return self.create(state, epoch, rail),
            Step::Connect(offer) => return self.connect_own(state, offer),
            Step::Switch => {
                if self.on_backup > 0 || !self.windows_are_settled() {
                    return false;
                }
                self.send.take_completions(&mut self.ready);
                let Some(own) = &self.own else { return false };
                self.send.begin_epoch(own.first_psn());
                let acks_after_placement = state.peer_nic(own.rail as u8).is_none_or(|(_, _, acks)| acks);
                self.send.set_durable(self.config.durable && !acks_after_placement);
                state.with_core(self.id, |core| core.switched());
            }
            Step::Close => {
                // The peer closes because its request was refused.
                let refused =
                    self.own.as_ref().and_then(|own| Some((own.take_refusal(&self.domain)?, own.qp().qpn())));
                if let Some((event, qpn)) = refused {
                    self.termination.set_qp_error_event(event, qpn);
                }
                let reason =
                    if refused.is_some() { CloseReason::RequestError } else { CloseReason::PeerClosed };
                self.close_locked(state, reason);
            }
        }
        true
    }

    pub(super) fn drive_fence(&mut self, now: Time) -> Fenced {
        let used = [self.send.ledger().has_in_flight(), self.recv.is_posted()];
        self.own.as_mut().map_or(Fenced::Pending, |own| own.drive_fence(now, used))
    }

    /// Returns what the fenced queue pair executed for the peer.
    pub(super) fn evidence(&self, nic_alive: bool) -> Option<Evidence> {
        let own = self.own.as_ref()?;
        let mut evidence = Evidence {
            log: self.log.as_ref().and_then(|log| log.last_seq(own.epoch)),
            received: self.recv.received_in_epoch(),
            lacks_receive: self.recv.len() == 0,
            ..Evidence::default()
        };
        own.qp().add_evidence(nic_alive, &mut evidence);
        Some(evidence)
    }

    /// Passes the evidence of the fenced queue pair on to the peer.
    fn finish_fence(&mut self, state: &mut State, nic_alive: bool) {
        let Some(evidence) = self.evidence(nic_alive) else { return };
        let Some(own) = &mut self.own else { return };
        own.fence.finish(nic_alive);
        self.recv.on_flushed(own.rail);
        self.domain.unbind_at_home(self.owner, own.rail as u8);
        if own.is_connected {
            // The peer may have torn a WRITE with immediate.
            self.recv.begin_epoch();
            self.awaited_resume = Some(own.epoch);
            if let Some((_, bytes)) = self.early_resume.filter(|(epoch, _)| *epoch == own.epoch) {
                self.awaited_resume = None;
                self.recv.release_held(Some(bytes), &mut self.ready);
            }
        }
        let imm_bytes_kept = self.send.ledger().imm_bytes_kept();
        state.with_core(self.id, |core| core.fenced(evidence, imm_bytes_kept));
    }

    /// Decides the operations that were in flight on the fenced queue pair.
    fn decide(&mut self, state: &mut State, evidence: &Evidence) {
        let Some(own) = &self.own else { return };
        self.send.take_completions(&mut self.ready);
        let acks_after_placement = state.peer_nic(own.rail as u8).is_none_or(|(_, _, acks)| acks);
        let input = RecoveryInput {
            policy: Policy::Exact,
            evidence,
            local_placed: own.fence.is_done_with_live_nic(),
            acks_after_placement,
            first_psn: Psn::new(0),
            durable: false, // the backup completes durably what it carries
        };
        match self.send.decide(&input, &self.domain) {
            Ok(Some(stats)) => {
                state.with_core(self.id, |core| core.decided(stats.imm_bytes_kept));
            }
            Ok(None) => self.close_locked(state, CloseReason::RequestError),
            Err(contradiction) => {
                self.termination.set_contradiction(contradiction);
                self.close_locked(state, CloseReason::Contradiction);
            }
        }
    }

    fn create(&mut self, state: &mut State, epoch: u16, rail: u8) -> bool {
        let needs_it =
            self.send.ledger().next_pending().is_some_and(|(wr, _)| on_backup(wr, &self.grants).is_none());
        if !needs_it && state.defers_own_qps(self.now()) {
            return false;
        }
        self.own = None; // the fenced queue pair has no use any more
        // An error may be a temporary lack of resources, or the NIC has failed and the backup is about to move.
        let Ok(own) = OwnQp::create(&self.domain, rail.into(), epoch, &self.config, self.secret) else {
            return false;
        };
        let offer = own.offer();
        self.own = Some(own);
        state.with_core(self.id, |core| core.created(offer.qpn, offer.psn));
        true
    }

    fn connect_own(&mut self, state: &mut State, peer: OfferedQp) -> bool {
        let (Some(own), Some((gid, mtu, _))) = (&mut self.own, state.peer_nic(peer.rail)) else {
            return false;
        };
        let (rail, offer) = (own.rail, own.offer());
        if !own.is_connected {
            let (config, may_send) = (&self.config, self.may_send);
            let connect = || {
                own.connect(config, peer, (gid, mtu))?;
                if may_send { own.start_sending(config) } else { Ok(()) }
            };
            if self.domain.connect_at_home(self.owner, rail as u8, offer.qpn, connect).is_err() {
                return false; // the NIC has failed or the home has moved, which the backup notices
            }
            self.recv.switch_rail(rail);
            self.post_receives();
            self.rebind(rail);
            self.drive_windows();
        }
        // The peer may post as soon as it knows that the queue pair is connected.
        let is_ready = self.is_rebound(rail);
        if is_ready {
            state.with_core(self.id, |core| core.connected(offer.qpn, offer.psn));
        }
        is_ready
    }
}
