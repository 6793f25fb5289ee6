//! The steps of a member's state machine after the backup has moved, and the outcomes of the
//! member's operations on the backup.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mitra_verbs::{Psn, WcStatus};

use super::super::member::Step;
use super::super::message::{Body, OfferedQp};
use super::super::own_qp::OwnQp;
use super::super::state::{Event, State};
use super::completions::Fenced;
use super::{MemberPath, SharedFailover, UsableGrant, on_backup};
use crate::close_reason::CloseReason;
use crate::completion::{Outcome, UnresolvedError};
use crate::config::Policy;
use crate::evidence::{Evidence, Placed};
use crate::ledger::RecoveryInput;
use crate::vqp::failover::sealed::Failover as _;

impl SharedFailover {
    /// Drives the backup, and takes the steps of the state machine.
    pub(super) fn run(&mut self, dp: &mut MemberPath) {
        let backup = Arc::clone(&self.backup);
        let mut state = backup.lock();
        self.tell_placed(dp, &mut state);
        self.note_waiting(dp, &mut state);
        let has_news = self.attention.swap(false, Ordering::AcqRel);
        state.drive_for_member(has_news);
        let events = state.take_events(self.id);
        let last_executed = events.iter().filter_map(Event::executed_behind_error).max();
        for event in events {
            self.on_event(dp, event, last_executed);
        }
        if let Some(reason) = state.backup.close_reason()
            && !dp.termination.is_closed()
        {
            drop(state);
            return self.close(dp, reason);
        }
        while !dp.termination.is_closed()
            && let Some(step) = state.with_core(self.id, |core| core.next_step()).flatten()
            && self.take_step(dp, &mut state, step)
        {}
        self.uses_own = state.with_core(self.id, |core| core.is_calm()).unwrap_or(false);
        drop(state);
        self.flush_if_closed(dp);
    }

    /// With [`Config::is_durable`](crate::Config::is_durable), tells the peer what this end's
    /// processor has seen of the peer's operations on the own queue pair, if that has changed. The
    /// backup delivers these messages exactly once and in order, so no end asks for them.
    fn tell_placed(&mut self, dp: &MemberPath, state: &mut State) {
        let Some(own) = dp.rails.own.as_ref().filter(|own| own.is_connected && self.fence.is_idle()) else {
            return;
        };
        let Some(placed) = dp.placed(own.rail, own.epoch) else { return };
        let is_new = self.told.replace((own.epoch, placed)) != Some((own.epoch, placed));
        if is_new && placed != Placed::default() {
            state.tell(self.id, Body::Placed { epoch: own.epoch, placed });
        }
    }

    /// Tells the backup whether operations wait for the peer's confirmation, or for a receive.
    fn note_waiting(&self, dp: &MemberPath, state: &mut State) {
        let ledger = &dp.send.ledger;
        let awaits_receive = !state.backup.datapath.has_heartbeats() && ledger.awaited_receive().is_some();
        state.with_entry(self.id, |entry| entry.awaits_program = ledger.awaits_placement() || awaits_receive);
    }

    /// `last_executed` is this member's last operation that the backup executed although an
    /// operation of another member had failed.
    fn on_event(&mut self, dp: &mut MemberPath, event: Event, last_executed: Option<u64>) {
        match event {
            Event::Done { seq, outcome, byte_len } => {
                let is_passed = last_executed.is_some_and(|last| seq < last);
                self.on_backup_done(dp, seq, outcome, byte_len, is_passed);
            }
            Event::Resumed { epoch, partial_imm_bytes } => {
                if self.awaited_resume == Some(epoch) {
                    self.awaited_resume = None;
                    dp.release_held_recvs(Some(partial_imm_bytes));
                } else if dp.rails.own.as_ref().is_some_and(|own| own.epoch == epoch) {
                    self.early_resume = Some((epoch, partial_imm_bytes));
                }
            }
            // A message about an earlier queue pair is ignored, because the evidence decides the
            // operations there.
            Event::Placed { epoch, placed }
                if dp.rails.own.as_ref().is_some_and(|own| own.epoch == epoch) =>
            {
                dp.confirm_sends(placed);
            }
            Event::Placed { .. } => {}
            Event::Granted(grant) => {
                if let Some(at) = self.asked.iter().position(|region| region.at(0).rkey == grant.rkey) {
                    let imported = self.asked.swap_remove(at);
                    self.grants.retain(|old| old.grant.rkey != grant.rkey);
                    self.grants.push(UsableGrant { base: imported.at(0).addr, len: imported.len(), grant });
                }
            }
        }
    }

    /// Handles the outcome of an operation on the backup. `is_passed` says whether a later
    /// operation of this member was executed.
    fn on_backup_done(
        &mut self,
        dp: &mut MemberPath,
        seq: u64,
        outcome: Outcome,
        byte_len: u32,
        is_passed: bool,
    ) {
        self.on_backup -= 1;
        let is_behind_error = dp.send.ledger.is_behind_error(seq);
        match outcome {
            Outcome::Success if is_behind_error => {
                dp.send.ledger.end(seq, Outcome::Unresolved(UnresolvedError::ExecutedBehindError));
            }
            Outcome::Success => {
                dp.send.on_success(seq, byte_len);
            }
            // An operation of another member failed before this operation. The status says that
            // this operation was not executed, unless it is a READ, which may have been executed.
            // If a later operation was executed, this operation was executed before it, and is a
            // READ. The READ must not be repeated, because the later operation may have been posted
            // with FENCE.
            Outcome::Failed(WcStatus::Flushed) if !is_behind_error && is_passed => {
                dp.send.ledger.end(seq, Outcome::Unresolved(UnresolvedError::ValueLost));
            }
            Outcome::Failed(WcStatus::Flushed) if !is_behind_error => dp.send.ledger.unpost(seq),
            Outcome::Unresolved(UnresolvedError::ExecutedBehindError) if !is_behind_error => {
                dp.send.on_success(seq, byte_len);
            }
            _ => dp.send.ledger.end(seq, outcome),
        }
        dp.take_send_completions();
    }

    /// Performs a step. Returns whether the next step may follow at once.
    fn take_step(&mut self, dp: &mut MemberPath, state: &mut State, step: Step) -> bool {
        match step {
            Step::Fence => {
                self.uses_own = false;
                if let Some(own) = &dp.rails.own {
                    dp.windows.cut_off(own.rail);
                }
                let mut fenced = self.drive_fence(dp);
                if fenced == Fenced::Pending {
                    while self.poll_batch(dp) {}
                    fenced = self.drive_fence(dp);
                }
                match fenced {
                    Fenced::Done { nic_alive } => self.finish_fence(dp, state, nic_alive),
                    Fenced::Failed => self.close_locked(dp, state, CloseReason::Unfenced),
                    Fenced::Pending => return false,
                }
            }
            Step::Decide(evidence) => self.decide(dp, state, &evidence),
            Step::Create { epoch, rail } => return self.create(dp, state, epoch, rail),
            Step::Connect(offer) => return self.connect_own(dp, state, offer),
            Step::Switch => {
                if self.on_backup > 0 || !dp.windows.is_settled() {
                    return false;
                }
                dp.take_send_completions();
                let Some(own) = &dp.rails.own else { return false };
                dp.send.ledger.begin_epoch(own.qp().first_psn());
                let acks_after_placement = state.peer_nic(own.rail as u8).is_none_or(|(_, _, acks)| acks);
                dp.send.ledger.set_durable(dp.config().is_durable() && !acks_after_placement);
                state.with_core(self.id, |core| core.switched());
            }
            Step::Close => {
                // If this end has refused a request of the peer, the peer closes for that reason.
                let refused = dp
                    .rails
                    .own
                    .as_ref()
                    .and_then(|own| Some((own.take_refusal(&dp.domain)?, own.qp().qpn())));
                if let Some((event, qpn)) = refused {
                    dp.termination.set_qp_error_event(event, qpn);
                }
                let reason =
                    if refused.is_some() { CloseReason::RequestError } else { CloseReason::PeerClosed };
                self.close_locked(dp, state, reason);
            }
        }
        true
    }

    fn finish_fence(&mut self, dp: &mut MemberPath, state: &mut State, nic_alive: bool) {
        let Some(own) = &dp.rails.own else { return };
        let (rail, epoch, is_connected) = (own.rail, own.epoch, own.is_connected);
        let evidence = dp.collect_evidence(rail, epoch, nic_alive);
        self.fence.finish(nic_alive);
        dp.recv.on_flushed(rail);
        dp.domain.unbind_at_home(dp.home.id, rail as u8);
        if is_connected {
            // The peer's WRITE with immediate may be torn, so completions wait for the `Resumed`
            // message.
            dp.recv.begin_epoch();
            self.awaited_resume = Some(epoch);
            if let Some((_, bytes)) = self.early_resume.filter(|(resumed, _)| *resumed == epoch) {
                self.awaited_resume = None;
                dp.release_held_recvs(Some(bytes));
            }
        }
        let imm_bytes_kept = dp.send.ledger.imm_bytes_kept();
        state.with_core(self.id, |core| core.fenced(evidence, imm_bytes_kept));
    }

    fn decide(&mut self, dp: &mut MemberPath, state: &mut State, evidence: &Evidence) {
        let Some(own) = &dp.rails.own else { return };
        let acks_after_placement = state.peer_nic(own.rail as u8).is_none_or(|(_, _, acks)| acks);
        let input = RecoveryInput {
            policy: Policy::Exact,
            evidence,
            local_placed: self.fence.is_done_with_live_nic(),
            acks_after_placement,
            first_psn: Psn::new(0),
            durable: false, // operations on the backup complete durably there
        };
        match dp.decide(&input) {
            Ok(Some(stats)) => {
                state.with_core(self.id, |core| core.decided(stats.imm_bytes_kept));
            }
            Ok(None) => self.close_locked(dp, state, CloseReason::RequestError),
            Err(contradiction) => {
                dp.termination.set_contradiction(contradiction);
                self.close_locked(dp, state, CloseReason::Contradiction);
            }
        }
    }

    fn create(&mut self, dp: &mut MemberPath, state: &mut State, epoch: u16, rail: u8) -> bool {
        let needs_it =
            dp.send.ledger.next_pending().is_some_and(|(wr, _)| on_backup(wr, &self.grants).is_none());
        if !needs_it && state.defers_own_qps(dp.now()) {
            return false;
        }
        dp.rails.own = None; // destroys the fenced queue pair
        self.fence.clear();
        (self.is_emptied, self.is_failure_reported) = (None, false);
        // An error means that resources are lacking for a time, or that the NIC has failed and the
        // backup is about to move.
        let Ok(own) = OwnQp::create(&dp.domain, rail.into(), epoch, dp.config(), self.secret) else {
            return false;
        };
        let offer = own.offer();
        dp.rails.own = Some(own);
        state.with_core(self.id, |core| core.created(offer.qpn, offer.psn));
        true
    }

    fn connect_own(&mut self, dp: &mut MemberPath, state: &mut State, peer: OfferedQp) -> bool {
        let (Some(own), Some((gid, mtu, _))) = (&mut dp.rails.own, state.peer_nic(peer.rail)) else {
            return false;
        };
        let (rail, offer, handle) = (own.rail, own.offer(), own.qp().handle().clone());
        if !own.is_connected {
            let (config, sends) = (&dp.rails.config, self.may_send && self.fence.is_idle());
            let connect = || {
                own.connect(config, peer, (gid, mtu))?;
                if sends { own.start_sending(config) } else { Ok(()) }
            };
            if dp.domain.connect_at_home(dp.home.id, rail as u8, &handle, connect).is_err() {
                return false; // the backup notices a failed NIC or a moved home
            }
            own.is_connected = true;
            dp.recv.switch_rail(rail);
            self.post_added_recvs(dp);
            dp.on_qp_connected(rail);
            self.drive_windows(dp);
        }
        // The peer may post as soon as it knows that the queue pair is connected, so the windows
        // must be in step first.
        let is_ready = dp.windows.is_in_step(rail);
        if is_ready {
            state.with_core(self.id, |core| core.connected(offer.qpn, offer.psn));
        }
        is_ready
    }
}
