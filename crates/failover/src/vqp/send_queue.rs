use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{Error, Key, Limits, Mtu, PostError, Psn, Qpn, Result, SendOp, SendWr, WcStatus};

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::completion::{Completion, Outcome, UnresolvedError};
use crate::completion_log;
use crate::config::{Config, WritePolicy};
use crate::data_qp::DataQp;
use crate::domain::Domain;
use crate::evidence::{Contradiction, Placed};
use crate::key_translation::{self, RemoteKeys};
use crate::ledger::{Ledger, RecoveryInput, RecoveryStats};
use crate::memory_region::RemoteRegion;
use crate::vqp::failure::Failure;
use crate::vqp::wr_id_flags;

/// The number of work requests at which a list is posted. It is large enough for the NIC to send
/// several packets with one system call, and small enough that the first completion is not delayed.
/// A list is one longer if its last request is a completion log entry.
const BURST: usize = 16;

const NUMBERS_USED_UP: Error =
    Error::Invalid("2^48 operations were posted, as many as the queue pair can number: connect a new one");

const HALTED: Error = Error::Invalid("an operation ended in an error: take its completions, then resume()");

/// The send queue: the ledger of operations, and the translation and posting of requests.
#[derive(Debug)]
pub(super) struct SendQueue {
    ledger: Ledger,
    /// The list of requests to post. It keeps its allocation between calls of [`SendQueue::post`].
    burst: Vec<SendWr>,
    remote_keys: RemoteKeys,
    /// The completion log in the peer's memory, for this end's operations. `None` if the ends keep
    /// no log, or if the peer does not permit WRITEs.
    log_region: Option<RemoteRegion>,
    /// The length of the longest message that every rail accepts, in bytes.
    max_message: u64,
}

impl SendQueue {
    /// Creates an empty queue for rails whose NICs have these limits.
    pub(super) fn new(
        config: &Config,
        limits: &Limits,
        mtu: Mtu,
        first_psn: Psn,
        log_region: Option<RemoteRegion>,
    ) -> SendQueue {
        let (depth, rd_atomic, log) = (config.ledger_depth(), config.rd_atomic, log_region.is_some());
        let log_interval = config.completion_log.map_or(1, |log| log.interval);
        SendQueue {
            ledger: Ledger::new(depth, rd_atomic, log, mtu, first_psn)
                .with_max_posted(config.posted_depth(limits.wrs))
                .with_log_interval(log_interval)
                .with_service(config.service),
            burst: Vec::new(),
            remote_keys: RemoteKeys::default(),
            log_region,
            max_message: limits.message_bytes.into(),
        }
    }

    /// Adds a region of the peer to those that sends may name.
    pub(super) fn import(&mut self, region: RemoteRegion) {
        self.remote_keys.insert(region);
    }

    /// Removes the region with this rkey on rail 0. No operation that names it is in the ledger.
    pub(super) fn forget(&mut self, rkey: Key) {
        self.remote_keys.remove(rkey);
    }

    #[inline]
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Checks whether a request may be appended to the ledger of the vQP with this number. The
    /// caller has checked that the vQP is open.
    #[inline]
    pub(super) fn check(&self, wr: &SendWr, config: &Config, qpn: Qpn) -> Result<()> {
        if self.ledger.is_halted() {
            return Err(HALTED);
        }
        if !self.ledger.has_room() {
            return Err(Error::QueueFull { queue: "send queue", qpn, depth: config.send_wrs });
        }
        if !self.ledger.has_number() {
            return Err(NUMBERS_USED_UP);
        }
        key_translation::check_shape(wr, config, self.max_message)?;
        key_translation::check_rkey(wr, &self.remote_keys)
    }

    /// Records a request in the ledger, and returns its sequence number. If `path` names a queue
    /// pair and its rail, and nothing waits before the request ([`Ledger::admit_new`]), posts it
    /// first: it is recorded while its packets are on their way. Otherwise [`SendQueue::post`]
    /// posts it. The caller has called [`SendQueue::check`]: a function that may still refuse a
    /// request copies it.
    #[inline]
    pub(super) fn submit(
        &mut self,
        mut wr: SendWr,
        write_policy: WritePolicy,
        path: Option<(&DataQp, usize)>,
        domain: &Domain,
    ) -> (u64, Option<Failure>) {
        if let Some((qp, rail)) = path
            && let Some(entry) = self.ledger.admit_new(&mut wr)
        {
            let posted = post_one(&wr, qp, rail, domain, &self.remote_keys);
            let seq = wr.wr_id;
            self.ledger.push_posted(wr, write_policy, entry);
            return (seq, posted.err().and_then(|error| self.on_refused(rail, seq, error)));
        }
        (self.ledger.push(wr, write_policy), None)
    }

    /// Checks a request, except for its remote key and the state of the queue.
    pub(super) fn check_shape(&self, wr: &SendWr, config: &Config) -> Result<()> {
        key_translation::check_shape(wr, config, self.max_message)
    }

    /// Removes the operations from this sequence number on. None of them has been posted.
    pub(super) fn truncate(&mut self, from: u64) {
        self.ledger.truncate(from);
    }

    /// Allows operations to be posted again after an error.
    pub(super) fn resume(&mut self) {
        self.ledger.resume();
    }

    /// Returns whether the next pending operation sends nothing to the peer: a bind or a local
    /// invalidation. Nothing is posted behind it before it has completed.
    pub(super) fn next_is_local(&self) -> bool {
        self.ledger.next_pending().is_some_and(|(wr, _)| wr.op.is_local())
    }

    /// Posts the next pending operations that the limits allow, on the rail with this index, and
    /// their log entries if there is a log. A call posts one list. If `replaying`, operations that
    /// were in flight at a failure are outstanding, and a list has either replays or one new
    /// request: the NIC sends a list before the next poll, so the completions of the replays would
    /// wait for longer ones.
    pub(super) fn post(
        &mut self,
        qp: &DataQp,
        rail: usize,
        epoch: u16,
        domain: &Domain,
        replaying: bool,
    ) -> Option<Failure> {
        let is_single = self.ledger.unposted() == 1;
        let first = self.ledger.next_posting()?;
        if is_single && first.log_seq.is_none() {
            let id = first.wr.wr_id;
            let posted = post_one(first.wr, qp, rail, domain, &self.remote_keys);
            return posted.err().and_then(|error| self.on_refused(rail, id, error));
        }
        self.burst.clear();
        let mut next = Some(first);
        let mut failed = None;
        while let Some(posting) = next {
            let mut wr = posting.wr.clone();
            if let Err(error) = key_translation::translate_send(&mut wr, rail, domain, &self.remote_keys) {
                failed = Some((wr.wr_id, error));
                break;
            }
            self.burst.push(wr);
            if let Some((seq, region)) = posting.log_seq.zip(self.log_region.as_ref()) {
                self.burst.push(completion_log::entry(region, rail, wr_id_flags::LOG | seq, epoch, seq));
            }
            let may_continue = self.burst.len() < BURST && (!replaying || self.ledger.next_is_replay());
            next = if may_continue { self.ledger.next_posting() } else { None };
        }
        let posted = if self.burst.is_empty() { Ok(()) } else { qp.post_send(&self.burst) };
        match (posted, failed) {
            (Err(PostError { index, error }), _) if !matches!(error, Error::WrongState { .. }) => {
                self.on_refused(rail, self.burst[index].wr_id, error)
            }
            (_, Some((id, error))) => self.on_refused(rail, id, error),
            _ => None,
        }
    }

    /// Handles the refusal of an operation or a log entry, whose `wr_id` on the rail is `id`.
    #[cold]
    fn on_refused(&mut self, rail: usize, id: u64, error: Error) -> Option<Failure> {
        match error {
            // The queue pair is in ERR. An error completion will report the cause, and a failover
            // replays the operations that were not sent.
            Error::WrongState { .. } => return None,
            Error::DeviceFatal => return Some(Failure::Rail { rail, cause: Cause::Device }),
            _ => {}
        }
        if id & wr_id_flags::LOG == 0 {
            // The request passed all checks when it was pushed, and the NIC checks keys only when
            // it executes a request.
            self.ledger.fail_unpostable(id, WcStatus::LocalQpOperation);
        } else {
            self.ledger.unpost_after(id & !wr_id_flags::LOG);
        }
        Some(Failure::Close(CloseReason::RequestError))
    }

    /// Posts the next pending operations with `post`, which returns false if it does not accept an
    /// operation, after their translation. Stops at the first one for which `translate` returns
    /// `None`.
    pub(super) fn post_with(
        &mut self,
        translate: impl Fn(&SendWr) -> Option<SendWr>,
        mut post: impl FnMut(SendWr, WritePolicy) -> bool,
    ) {
        while let Some((wr, write_policy)) = self.ledger.next_pending()
            && let Some(wr) = translate(wr)
        {
            let Some(posting) = self.ledger.next_posting() else { return };
            let seq = posting.wr.wr_id;
            if !post(wr, write_policy) {
                return self.ledger.unpost(seq);
            }
        }
    }

    /// See [`Ledger::refuse`].
    pub(super) fn refuse(&mut self, id: u64, status: WcStatus) {
        if id & wr_id_flags::LOG == 0 {
            self.ledger.refuse(id, status);
        }
    }

    /// See [`Ledger::cancel`].
    pub(super) fn cancel(&mut self, user: u64) {
        self.ledger.cancel(user);
    }

    /// See [`Ledger::begin_at`].
    pub(super) fn begin_at(&mut self, seq: u64) {
        self.ledger.begin_at(seq);
    }

    /// See [`Ledger::begin_epoch`].
    pub(super) fn begin_epoch(&mut self, first_psn: Psn) {
        self.ledger.begin_epoch(first_psn);
    }

    /// See [`Ledger::unpost`].
    pub(super) fn unpost(&mut self, seq: u64) {
        self.ledger.unpost(seq);
    }

    /// See [`Ledger::end`].
    pub(super) fn end(&mut self, seq: u64, outcome: Outcome) {
        self.ledger.end(seq, outcome);
    }

    /// Records the successful completion of an operation or a log entry. `id` is the `wr_id` on the
    /// rail. Returns the operation if it is a local one, which [`SendQueue::complete_local`]
    /// completes.
    #[inline]
    pub(super) fn on_success(&mut self, id: u64, byte_len: u32) -> Option<SendOp> {
        if id & wr_id_flags::LOG != 0 {
            return None;
        }
        let executed = self.ledger.execute_locally(id);
        if executed.is_none() {
            self.ledger.complete(id, byte_len);
        }
        executed
    }

    /// See [`Ledger::drain`].
    pub(super) fn drain(&mut self) -> bool {
        self.ledger.drain()
    }

    /// See [`Ledger::undrain`].
    pub(super) fn undrain(&mut self) {
        self.ledger.undrain();
    }

    /// See [`Ledger::set_drained`].
    pub(super) fn set_drained(&mut self) {
        self.ledger.set_drained();
    }

    /// See [`Ledger::set_durable`].
    pub(super) fn set_durable(&mut self, is_on: bool) {
        self.ledger.set_durable(is_on);
    }

    /// See [`Ledger::confirm`].
    pub(super) fn confirm(&mut self, placed: Placed) {
        self.ledger.confirm(placed);
    }

    /// Completes a local operation.
    pub(super) fn complete_local(&mut self, seq: u64) {
        self.ledger.complete(seq, 0);
    }

    /// Records that an operation or a log entry failed although the rail works. The caller must
    /// close the vQP.
    pub(super) fn on_request_error(&mut self, id: u64, status: WcStatus, undecided: UnresolvedError) {
        if id & wr_id_flags::LOG == 0 {
            self.ledger.fail(id, status, undecided);
        }
    }

    /// Moves the completions of ended operations to `ready`.
    #[inline]
    pub(super) fn take_completions(&mut self, ready: &mut VecDeque<Completion>) {
        if self.ledger.has_done() {
            self.move_completions(ready);
        }
    }

    fn move_completions(&mut self, ready: &mut VecDeque<Completion>) {
        while let Some(completion) = self.ledger.pop() {
            ready.push_back(completion);
        }
    }

    /// Ends every operation because the vQP has closed, and moves their completions to `ready`.
    pub(super) fn abandon(&mut self, error: UnresolvedError, ready: &mut VecDeque<Completion>) {
        self.ledger.abandon(error);
        self.take_completions(ready);
    }

    /// Decides the operations in flight and stores the values of recovered atomics in local memory.
    /// Returns `None` if a value could not be stored. The operation of that value ends in an error,
    /// and the caller must close the vQP.
    ///
    /// # Errors
    /// A contradiction in the evidence.
    pub(super) fn decide(
        &mut self,
        input: &RecoveryInput<'_>,
        domain: &Domain,
    ) -> Result<Option<RecoveryStats>, Contradiction> {
        let mut values = Vec::new();
        let stats = self.ledger.decide(input, &mut values)?;
        let mut stored = true;
        for recovered in values {
            if !Mutant::RecoveredValueNotStored.is_on()
                && !domain.store_atomic_result(recovered.at, recovered.value)
            {
                self.ledger.lose_value(recovered.seq);
                stored = false;
            }
        }
        Ok(stored.then_some(stats))
    }
}

/// Posts one request on the rail with this index. Its keys need no translation on rail 0.
#[inline]
fn post_one(wr: &SendWr, qp: &DataQp, index: usize, domain: &Domain, remote_keys: &RemoteKeys) -> Result<()> {
    let post = |wr: &SendWr| qp.post_send(core::slice::from_ref(wr)).map_err(|refused| refused.error);
    if index == 0 {
        return post(wr);
    }
    let mut wr = wr.clone();
    key_translation::translate_send(&mut wr, index, domain, remote_keys)?;
    post(&wr)
}
