use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_verbs::{Error, Mtu, Psn, Qpn, RecvWr, Result, SendOp, SendWr, Time, Wc, WcStatus};

use super::SharedBackup;
use super::backed_qp_info::BackedQpInfo;
use super::member::Step;
use super::message::{Grant, MemberId, OfferedQp};
use super::own_qp::{Fenced, OwnQp};
use super::state::{Event, State};
use crate::activity::CountedVqp;
use crate::builder::{BuildError, check};
use crate::close_reason::CloseReason;
use crate::completion::{Completion, Outcome, UnresolvedError};
use crate::config::{Config, Policy, Service};
use crate::domain::Domain;
use crate::evidence::{Contradiction, Evidence};
use crate::home_rail::MemberId as OwnerId;
use crate::ledger::RecoveryInput;
use crate::memory_region::RemoteRegion;
use crate::secret::SecretWord;
use crate::vqp::maintenance_schedule::MaintenanceSchedule;
use crate::vqp::receive_queue::ReceiveQueue;
use crate::vqp::send_queue::{PostFailure, SendQueue};
use crate::vqp::termination::Termination;
use crate::vqp::{Cause, wr_id_flags};

const NOT_CONNECTED: Error = Error::Invalid("this queue pair is not connected yet");
/// The number of polls after which a queue pair that closes is not drained. This process cannot wait: it may exit.
const MAX_CLOSING_POLLS: u32 = 100;
/// The maximum number of completions taken from the queue pair at once.
const POLL_BATCH: usize = 32;

/// The failure of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// A request was invalid.
    Refused,
    /// The queue pair failed although all requests are valid.
    Failed(Cause),
}

/// A reliable connection with one queue pair and a [`SharedBackup`].
///
/// It keeps the promises of a [`VirtualQp`](crate::VirtualQp) with the policy exact. It has no windows, completion log, mode durable or shared
/// receive queue. [`BackedQp::poll`] drives it and the backup.
///
/// Dropping it closes it.
pub struct BackedQp {
    backup: Arc<SharedBackup>,
    domain: Arc<Domain>,
    /// Present until the queue pair closes.
    counted: Option<CountedVqp>,
    /// This queue pair as a user of the home rail and as the owner of keys.
    owner: OwnerId,
    id: MemberId,
    /// Set by the backup when [`BackedQp::run`] has something to do.
    attention: Arc<AtomicBool>,
    config: Config,
    secret: SecretWord,
    is_connected: bool,
    own: Option<OwnQp>,
    /// Whether sends are posted on the own queue pair.
    uses_own: bool,
    send: SendQueue,
    recv: ReceiveQueue,
    /// The peer's regions for which a grant was asked.
    asked: Vec<RemoteRegion>,
    /// The peer's memory that may be used on the backup.
    grants: Vec<UsableGrant>,
    /// The number of operations in flight on the backup.
    on_backup: usize,
    /// The epoch whose `Resumed` message the receives wait for.
    awaited_resume: Option<u16>,
    /// The last `Resumed` message, if it came before this end had fenced its queue pair.
    early_resume: Option<(u16, u32)>,
    ready: VecDeque<Completion>,
    /// A failure that is to be handled after the completions.
    trouble: Option<Trouble>,
    schedule: MaintenanceSchedule,
    termination: Termination,
    wcs: Vec<Wc>,
}

impl BackedQp {
    pub(super) fn new(backup: &Arc<SharedBackup>, config: Config) -> Result<BackedQp, BuildError> {
        let mut state = backup.lock();
        let domain = Arc::clone(state.backup().domain());
        check(&domain, &config)?;
        if config.completion_log || config.durable || config.policy != Policy::Exact {
            let refused = "a shared backup with a completion log, mode durable or another policy than exact";
            return Err(Error::Unsupported(refused).into());
        }
        let secret = SecretWord::new(domain.nics()[0].provider.random_u64()?);
        let unusable = Error::Invalid("the shared backup is not connected, or has closed");
        // The home rail does not move it, so it must not be in a domain that shares atomics.
        let owner = domain.new_home_member();
        domain.join_home(owner, Qpn::new(0), false)?;
        let Some((id, attention)) = state.add(owner, config.access) else {
            domain.leave_home(owner, false);
            return Err(unusable.into());
        };
        let mtu = state.peer_nic(0).map_or(Mtu::M256, |(_, mtu, _)| mtu);
        drop(state);
        let max_message = domain.limits().message_bytes.into();
        Ok(BackedQp {
            backup: Arc::clone(backup),
            counted: Some(domain.counters().count_vqp()),
            domain,
            owner,
            id,
            attention,
            config,
            secret,
            is_connected: false,
            own: None,
            uses_own: false,
            send: SendQueue::new(&config, max_message, mtu, Psn::new(0), None),
            recv: ReceiveQueue::new(max_message, Service::Reliable),
            asked: Vec::new(),
            grants: Vec::new(),
            on_backup: 0,
            awaited_resume: None,
            early_resume: None,
            ready: VecDeque::new(),
            trouble: None,
            schedule: MaintenanceSchedule::new(),
            termination: Termination::default(),
            wcs: Vec::new(),
        })
    }

    /// Returns the parameters that the peer needs for [`BackedQp::connect`].
    pub fn local_info(&self) -> BackedQpInfo {
        BackedQpInfo { id: self.id, rd_atomic: self.config.rd_atomic }
    }

    /// Connects to the peer's end, which was made with the other end of the same backup. Sends may be posted at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair is connected already, or if the two ends have different `rd_atomic`.
    pub fn connect(&mut self, peer: &BackedQpInfo) -> Result<()> {
        if core::mem::replace(&mut self.is_connected, true) {
            return Err(Error::Invalid("this queue pair is connected already"));
        }
        if peer.rd_atomic != self.config.rd_atomic {
            return Err(Error::Invalid("the two ends have different rd_atomic; give both the same"));
        }
        self.backup.lock().start(self.id, peer.id);
        self.run();
        Ok(())
    }

    /// Makes the peer's region known, so that sends may name it, and asks the peer for access to it on the backup.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair is not connected, or if the region is registered for another number of rails.
    pub fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        if !self.is_connected {
            return Err(NOT_CONNECTED);
        }
        if region.rail_count() != self.domain.nics().len() {
            return Err(Error::Invalid("the region is registered for another number of rails"));
        }
        self.send.import(region.clone());
        self.asked.push(region.clone());
        self.backup.lock().ask_grant(self.id, region.at(0).rkey);
        Ok(())
    }

    /// Posts a send with the configured [`WritePolicy`](crate::WritePolicy), and returns its sequence number. While the queue pair has no rail, a WRITE or READ of
    /// memory that the peer has granted goes over the backup, and other sends wait.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send`](crate::VirtualQp::post_send); [`Error::Unsupported`] for binds and invalidations of windows.
    pub fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        self.check_open()?;
        if wr.op.is_local() || matches!(wr.op, SendOp::SendWithInvalidate(_)) {
            return Err(Error::Unsupported("memory windows on a queue pair with a shared backup"));
        }
        let (config, slot) = (&self.config, self.id.slot);
        let seq = self.send.push(wr, config.write_policy, config, || Error::QueueFull {
            queue: "send queue",
            qpn: Qpn::new(slot),
            depth: config.send_wrs,
        })?;
        self.post_sends();
        Ok(seq)
    }

    /// Posts a receive. It stays outstanding across failovers.
    ///
    /// # Errors
    /// As [`VirtualQp::post_recv`](crate::VirtualQp::post_recv).
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        self.check_not_closed()?;
        if self.recv.len() >= self.config.recv_wrs as usize {
            return Err(Error::QueueFull {
                queue: "receive queue",
                qpn: Qpn::new(self.id.slot),
                depth: self.config.recv_wrs,
            });
        }
        self.recv.push(wr, self.config.recv_sges)?;
        self.post_receives();
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        if !self.is_connected {
            return Err(NOT_CONNECTED);
        }
        self.check_not_closed()
    }

    fn check_not_closed(&self) -> Result<()> {
        self.close_reason().map_or(Ok(()), |reason| Err(reason.refusal()))
    }

    /// The reason for which the queue pair closed. `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.termination.reason()
    }

    /// The contradiction, if the queue pair closed with [`CloseReason::Contradiction`].
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.termination.contradiction()
    }

    /// Returns whether the queue pair has a rail, so that sends of every kind are posted at once.
    pub fn has_rail(&self) -> bool {
        self.uses_own
    }

    /// Returns whether the send queue has stopped at an operation that ended in an error; see [`BackedQp::resume`].
    pub fn is_halted(&self) -> bool {
        self.send.ledger().is_halted()
    }

    /// Lets the application post sends again after an operation ended in an error. Does nothing if the queue pair is closed.
    pub fn resume(&mut self) {
        if self.close_reason().is_none() {
            self.send.resume();
        }
    }

    /// The number of sends that have not completed.
    pub fn outstanding(&self) -> usize {
        self.send.ledger().len()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The domain whose NICs and memory the queue pair uses.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn now(&self) -> Time {
        self.domain.nics()[0].provider.now()
    }

    /// Drives the queue pair and the backup, and appends completions to `out`: those of sends in posting order, those of receives in order of arrival.
    /// Returns the number of completions.
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.poll_own();
        let domain = &self.domain;
        let is_due = self.schedule.on_poll(|| domain.nics()[0].provider.now());
        if is_due || !self.uses_own || self.attention.load(Ordering::Acquire) {
            if is_due {
                self.schedule.begin_maintenance(self.now());
                self.schedule.on_maintenance_from_poll();
            }
            self.run();
        }
        if self.close_reason().is_none() && self.send.ledger().unposted() > 0 {
            self.post_sends();
        }
        self.send.take_completions(&mut self.ready);
        let n = self.ready.len();
        out.extend(self.ready.drain(..));
        n
    }

    /// Handles the completions of the own queue pair: one batch, or all while it is fenced, because the peer waits for the fence.
    fn poll_own(&mut self) {
        while self.poll_batch() && self.own.as_ref().is_some_and(|own| own.fence.is_draining()) {}
        if self.trouble.is_some() {
            let backup = Arc::clone(&self.backup);
            self.handle_trouble(&mut backup.lock());
        }
        self.flush_if_closed();
    }

    /// Handles a batch of completions of the own queue pair. Returns whether there may be more.
    fn poll_batch(&mut self) -> bool {
        let Some(own) = &mut self.own else { return false };
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        let polled = own.poll(POLL_BATCH, &mut wcs);
        if wcs.is_empty() {
            own.is_emptied = own.is_emptied.or(own.fence.on_empty_poll());
        }
        wcs.iter().for_each(|wc| self.on_completion(wc));
        let is_full_batch = wcs.len() == POLL_BATCH;
        self.wcs = wcs;
        if polled.is_err() {
            self.trouble.get_or_insert(Trouble::Failed(Cause::Device));
        }
        is_full_batch
    }

    fn on_completion(&mut self, wc: &Wc) {
        let is_recv = wc.wr_id & wr_id_flags::RECV != 0;
        let Some(own) = &mut self.own else { return };
        match wc.status {
            _ if wc.wr_id & wr_id_flags::MARKER != 0 => own.fence.on_marker(is_recv),
            WcStatus::Success if is_recv => self.recv.on_success(wc, &mut self.ready),
            WcStatus::Success => {
                self.send.on_success(wc.wr_id, wc.byte_len);
            }
            status if is_recv && status != WcStatus::Flushed => {
                self.recv.on_error(wc, &mut self.ready);
                self.trouble.get_or_insert(Trouble::Refused);
            }
            status => self.on_flush_or_error(wc, status),
        }
    }

    /// Handles a failed send or a flushed receive.
    fn on_flush_or_error(&mut self, wc: &Wc, status: WcStatus) {
        let Some(own) = &self.own else { return };
        // The other errors result from the fence and the closing.
        let is_decided =
            !matches!(status, WcStatus::Flushed | WcStatus::RetryExceeded | WcStatus::LocalQpOperation);
        if is_decided {
            let reason = self.termination.reason().unwrap_or(CloseReason::RequestError);
            self.send.on_request_error(wc.wr_id, status, UnresolvedError::Undecided(reason));
            self.trouble.get_or_insert(Trouble::Refused);
        } else if own.fence.is_idle() {
            // A flush without another error: a request of the peer was invalid, or the device failed.
            let event = own.take_error(&self.domain).filter(|_| status == WcStatus::Flushed);
            if let Some(event) = event {
                self.termination.set_qp_error_event(event, own.qp().qpn());
            }
            let failed = Trouble::Failed(Cause::Completion(status));
            self.trouble.get_or_insert(if event.is_some() { Trouble::Refused } else { failed });
        }
    }

    /// Closes the queue pair because of an invalid request, or reports to the backup that the own queue pair failed, so that the backup moves.
    fn handle_trouble(&mut self, state: &mut State) {
        match self.trouble.take() {
            Some(Trouble::Refused) => self.close_locked(state, CloseReason::RequestError),
            Some(Trouble::Failed(cause)) => {
                if let Some(own) = self.own.as_mut().filter(|own| own.fence.is_idle())
                    && !core::mem::replace(&mut own.is_failure_reported, true)
                {
                    state.report_failure(own.epoch, cause);
                }
            }
            None => {}
        }
    }

    /// Drives the backup, and does what the state machine asks for.
    fn run(&mut self) {
        let backup = Arc::clone(&self.backup);
        let mut state = backup.lock();
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
        let is_halted = self.send.ledger().is_halted();
        match outcome {
            Outcome::Success => {
                self.send.on_success(seq, byte_len);
            }
            // An operation of another queue pair failed, and the backup did not execute those behind it, apart from READs. A READ that a later
            // operation has passed must not be repeated if that one was posted with FENCE.
            Outcome::Failed(WcStatus::Flushed) if !is_halted && is_passed => {
                self.send.end(seq, Outcome::Unresolved(UnresolvedError::ValueLost));
            }
            Outcome::Failed(WcStatus::Flushed) if !is_halted => self.send.unpost_from(seq),
            Outcome::Unresolved(UnresolvedError::ExecutedBehindError) if !is_halted => {
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
                if self.on_backup > 0 {
                    return false;
                }
                self.send.take_completions(&mut self.ready);
                let Some(own) = &self.own else { return false };
                self.send.begin_epoch(own.first_psn());
                state.with_core(self.id, |core| core.switched());
            }
            Step::Close => self.close_locked(state, CloseReason::PeerClosed),
        }
        true
    }

    fn drive_fence(&mut self, now: Time) -> Fenced {
        let used = [self.send.ledger().has_in_flight(), self.recv.is_posted()];
        self.own.as_mut().map_or(Fenced::Pending, |own| own.drive_fence(now, used))
    }

    /// Returns what the fenced queue pair executed for the peer.
    fn evidence(&self, nic_alive: bool) -> Option<Evidence> {
        let own = self.own.as_ref()?;
        let (received, lacks_receive) = (self.recv.received_in_epoch(), self.recv.len() == 0);
        Some(Evidence { received, lacks_receive, ..own.evidence(nic_alive) })
    }

    /// Passes the evidence of the fenced queue pair on to the peer.
    fn finish_fence(&mut self, state: &mut State, nic_alive: bool) {
        let Some(evidence) = self.evidence(nic_alive) else { return };
        let Some(own) = &mut self.own else { return };
        own.fence.finish(nic_alive);
        self.recv.on_flushed(own.rail);
        if own.is_connected {
            // The peer may have torn a WRITE with immediate.
            self.recv.begin_epoch();
            self.awaited_resume = Some(own.epoch);
            if let Some((_, bytes)) = self.early_resume.filter(|(epoch, _)| *epoch == own.epoch) {
                self.awaited_resume = None;
                self.recv.release_held(Some(bytes), &mut self.ready);
            }
        }
        state.with_core(self.id, |core| core.fenced(evidence));
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
            durable: false,
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
        if own.connect(&self.config, peer, (gid, mtu)).is_err() {
            return false; // the NIC has failed, which the backup notices
        }
        let offer = own.offer();
        self.recv.switch_rail(own.rail);
        self.post_receives();
        state.with_core(self.id, |core| core.connected(offer.qpn, offer.psn));
        true
    }

    /// Posts the receives that are not posted yet, if the own queue pair is connected.
    fn post_receives(&mut self) {
        if let Some(own) = self.own.as_ref().filter(|own| own.is_connected && own.fence.is_idle()) {
            self.recv.post(own.qp(), &self.domain);
        }
    }

    /// Posts pending sends: on the own queue pair, or on the backup those that it can carry.
    fn post_sends(&mut self) {
        if self.uses_own {
            let Some(own) = self.own.as_ref().filter(|own| own.fence.is_idle()) else { return };
            match self.send.post(own.qp(), own.rail, own.epoch, &self.domain, false) {
                Ok(()) => {}
                Err(failure) => {
                    self.trouble.get_or_insert(match failure {
                        PostFailure::Device => Trouble::Failed(Cause::Device),
                        PostFailure::Request => Trouble::Refused,
                    });
                }
            }
            return; // the next poll handles the trouble
        }
        let mut state = self.backup.lock();
        if !state.with_core(self.id, |core| core.may_use_backup()).unwrap_or(false) {
            return;
        }
        let (id, grants, posted) = (self.id, &self.grants, &mut self.on_backup);
        self.send.post_with(
            |wr| on_backup(wr, grants),
            |wr, policy| {
                let seq = wr.wr_id;
                let is_posted = state.has_room() && state.post(id, seq, wr, policy);
                *posted += usize::from(is_posted);
                is_posted
            },
        );
    }

    // Closing.

    /// Closes the queue pair: operations in flight end in [`UnresolvedError::Undecided`], and the peer's end closes.
    pub fn close(&mut self) {
        self.close_with(CloseReason::Closed);
    }

    fn close_with(&mut self, reason: CloseReason) {
        let backup = Arc::clone(&self.backup);
        self.close_locked(&mut backup.lock(), reason);
        self.flush_if_closed();
    }

    fn close_locked(&mut self, state: &mut State, reason: CloseReason) {
        if self.termination.is_closed() {
            return;
        }
        let is_stopped =
            self.own.as_ref().is_none_or(OwnQp::stop) & self.domain.revoke_grants_of(self.owner).is_ok();
        self.termination.close(if is_stopped { reason } else { CloseReason::Unfenced });
        self.counted = None;
        self.domain.leave_home(self.owner, false);
        self.uses_own = false;
        let evidence = self.final_evidence();
        state.with_core(self.id, |core| core.closed(evidence));
    }

    /// Drains the own queue pair, which is stopped, and returns its evidence with its epoch. `None` if the peer has it already, or if the NIC does not
    /// flush the queues at once.
    fn final_evidence(&mut self) -> Option<(u16, Evidence)> {
        let is_unfenced = self.close_reason() == Some(CloseReason::Unfenced);
        let (epoch, is_fenced) = self.own.as_ref().map(|own| (own.epoch, own.fence.is_done()))?;
        for _ in 0..MAX_CLOSING_POLLS {
            if is_unfenced || is_fenced {
                break;
            }
            if let Fenced::Done { nic_alive } = self.drive_fence(self.now()) {
                self.own.as_mut()?.fence.finish(nic_alive);
                return Some((epoch, self.evidence(nic_alive)?));
            }
            while self.poll_batch() {}
        }
        None
    }

    /// Completes every outstanding request after the queue pair has closed. Operations on the backup end first, because it may still
    /// access their memory.
    fn flush_if_closed(&mut self) {
        if self.on_backup > 0 {
            return;
        }
        let Some(reason) = self.termination.take_flush() else { return };
        let mut wcs = Vec::new();
        while let Some(own) = self.own.as_ref().filter(|own| !own.fence.is_done())
            && own.poll(POLL_BATCH, &mut wcs).is_ok()
            && !wcs.is_empty()
        {
            wcs.drain(..).for_each(|wc| self.on_completion(&wc));
        }
        (self.own, self.trouble) = (None, None);
        self.send.abandon(UnresolvedError::Undecided(reason), &mut self.ready);
        self.recv.release_held(None, &mut self.ready);
        self.recv.flush(&mut self.ready);
    }
}

/// Memory of the peer that may be used on the backup.
#[derive(Debug)]
struct UsableGrant {
    /// The address with which requests name the first byte.
    base: u64,
    len: u64,
    grant: Grant,
}

/// Returns the request as the backup can carry it: a WRITE or READ of memory that the peer has granted, with the key of the grant.
fn on_backup(wr: &SendWr, grants: &[UsableGrant]) -> Option<SendWr> {
    let (SendOp::Write(at) | SendOp::Read(at)) = wr.op else { return None };
    let usable = grants.iter().find(|usable| usable.grant.rkey == at.rkey)?;
    let offset = at.addr.checked_sub(usable.base)?;
    let end = offset.checked_add(wr.data.len())?;
    let granted = usable.grant.region.at(offset);
    let op = match wr.op {
        SendOp::Write(_) if usable.grant.writable => SendOp::Write(granted),
        SendOp::Read(_) if usable.grant.readable => SendOp::Read(granted),
        _ => return None,
    };
    (end <= usable.len.min(usable.grant.region.len())).then(|| SendWr { op, ..wr.clone() })
}

impl Drop for BackedQp {
    /// Closes the queue pair, if [`BackedQp::close`] was not called. Otherwise the peer could still access memory through it.
    fn drop(&mut self) {
        self.close();
        self.backup.lock().remove(self.id);
    }
}

impl fmt::Debug for BackedQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackedQp")
            .field("id", &self.id)
            .field("outstanding", &self.outstanding())
            .field("close_reason", &self.close_reason())
            .finish_non_exhaustive()
    }
}
