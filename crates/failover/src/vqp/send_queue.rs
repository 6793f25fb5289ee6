use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{Error, Key, Limits, Mtu, PostError, Psn, Qpn, Result, SendOp, SendWr, WcStatus};

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::completion::{Completion, UnresolvedError};
use crate::completion_log;
use crate::config::{Config, WritePolicy};
use crate::data_qp::DataQp;
use crate::domain::Domain;
use crate::evidence::Contradiction;
use crate::key_translation::{self, RemoteKeys};
use crate::ledger::{Ledger, RecoveryInput, RecoveryStats};
use crate::memory_region::RemoteRegion;
use crate::vqp::failure::Failure;
use crate::vqp::replay::PostLimit;
use crate::vqp::wr_id_flags;

const NUMBERS_USED_UP: Error =
    Error::Invalid("2^48 operations were posted, as many as the queue pair can number: connect a new one");

const HALTED: Error = Error::Invalid("an operation ended in an error: take its completions, then resume()");

/// Where and how sends are posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostPath {
    pub(super) rail: usize,
    /// The epoch of the rail.
    pub(super) epoch: u16,
    pub(super) limit: PostLimit,
}

/// The send queue: the ledger of operations, and the translation and posting of requests.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) ledger: Ledger,
    /// The list of requests to post, which keeps its allocation between calls of
    /// [`SendQueue::post`].
    burst: Vec<SendWr>,
    remote_keys: RemoteKeys,
    /// The completion log in the peer's memory, for this end's operations. `None` if the ends keep
    /// no log, or if the peer does not permit WRITEs.
    log_region: Option<RemoteRegion>,
    /// The longest message that every rail accepts, in bytes.
    max_message: u64,
}

impl SendQueue {
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

    pub(super) fn import(&mut self, region: RemoteRegion) {
        self.remote_keys.insert(region);
    }

    /// Removes the region with this rkey on rail 0. No operation in the ledger names the region.
    pub(super) fn forget(&mut self, rkey: Key) {
        self.remote_keys.remove(rkey);
    }

    /// Checks whether a request may be appended to the ledger. The caller has checked that the vQP
    /// is open. Errors name the queue pair number `qpn`.
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

    /// Records a request in the ledger and posts it, and returns its sequence number. If the ledger
    /// admits the request at once ([`Ledger::admit_new`]), posts the request before recording it:
    /// the ledger records the request while its packets are on their way. Otherwise posts a list as
    /// [`SendQueue::post`] does. The caller has called [`SendQueue::check`]. The check is a
    /// function of its own, because the compiler copies a request that is passed by value to a
    /// function that may refuse it.
    #[inline]
    pub(super) fn submit(
        &mut self,
        mut wr: SendWr,
        write_policy: WritePolicy,
        path: PostPath,
        qp: &DataQp,
        domain: &Domain,
    ) -> (u64, Option<Failure>) {
        let Some(entry) = self.ledger.admit_new(&mut wr) else {
            let seq = self.ledger.push(wr, write_policy);
            return (seq, self.post(path, qp, domain));
        };
        let posted = post_one(&wr, qp, path.rail, domain, &self.remote_keys);
        let seq = wr.wr_id;
        self.ledger.push_posted(wr, write_policy, entry);
        (seq, posted.err().and_then(|error| self.on_refused(path.rail, seq, error)))
    }

    pub(super) fn check_shape(&self, wr: &SendWr, config: &Config) -> Result<()> {
        key_translation::check_shape(wr, config, self.max_message)
    }

    /// Returns whether the next operation to post is a bind or a local invalidation, which sends
    /// nothing to the peer. Nothing is posted behind such an operation before it has completed.
    /// `new` is a request that is not recorded yet.
    pub(super) fn next_is_local(&self, new: Option<&SendWr>) -> bool {
        self.ledger.next_pending().map(|(wr, _)| wr).or(new).is_some_and(|wr| wr.op.is_local())
    }

    /// Posts one list of the pending operations that the limits allow, and their log entries if
    /// there is a log.
    pub(super) fn post(&mut self, path: PostPath, qp: &DataQp, domain: &Domain) -> Option<Failure> {
        let PostPath { rail, epoch, limit } = path;
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
            let may_continue =
                self.burst.len() < limit.per_list && (!limit.is_new_alone || self.ledger.next_is_replay());
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

    /// Handles the refusal of the operation or log entry whose `wr_id` on the rail is `id`.
    #[cold]
    fn on_refused(&mut self, rail: usize, id: u64, error: Error) -> Option<Failure> {
        match error {
            // The queue pair is in ERR. An error completion reports the cause, and a failover
            // replays the operations that were not sent.
            Error::WrongState { .. } => return None,
            Error::DeviceFatal => return Some(Failure::Rail { rail, cause: Cause::Device }),
            // The vQP that moves the home rail has destroyed the queue pair.
            Error::NoSuchObject { .. } => {
                return Some(Failure::Rail { rail, cause: Cause::Completion(WcStatus::Flushed) });
            }
            _ => {}
        }
        if id & wr_id_flags::LOG == 0 {
            // The request passed all checks when it was recorded. The NIC checks keys only when it
            // executes a request.
            self.ledger.fail_unpostable(id, WcStatus::LocalQpOperation);
        } else {
            self.ledger.unpost_after(id & !wr_id_flags::LOG);
        }
        Some(Failure::Close(CloseReason::RequestError))
    }

    /// Posts pending operations with `post`, after their translation. Stops at the first operation
    /// for which `translate` returns `None` or `post` returns false.
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

    pub(super) fn refuse(&mut self, id: u64, status: WcStatus) {
        if id & wr_id_flags::LOG == 0 {
            self.ledger.refuse(id, status);
        }
    }

    /// Records the success of the operation or log entry with this `wr_id` on the rail. Returns the
    /// operation if it is local: it completes only when all NICs have executed it.
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

    /// Records that an operation or a log entry failed although the rail works. The caller must
    /// close the vQP.
    pub(super) fn on_request_error(&mut self, id: u64, status: WcStatus, undecided: UnresolvedError) {
        if id & wr_id_flags::LOG == 0 {
            self.ledger.fail(id, status, undecided);
        }
    }

    #[inline]
    pub(super) fn take_completions(&mut self, ready: &mut VecDeque<Completion>) {
        if self.ledger.has_done() {
            ready.extend(core::iter::from_fn(|| self.ledger.pop()));
        }
    }

    pub(super) fn abandon(&mut self, error: UnresolvedError, ready: &mut VecDeque<Completion>) {
        self.ledger.abandon(error);
        self.take_completions(ready);
    }

    /// Decides the operations in flight and stores the values of recovered atomics in local memory.
    /// Returns `None` if a value could not be stored. The operation of that value then ends in an
    /// error, and the caller must close the vQP.
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

/// Posts one request on rail `index`. On rail 0, the application's keys are the NIC's keys.
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
