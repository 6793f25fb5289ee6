//! A queue pair with the registered memory of its operations.

mod staging;
#[cfg(test)]
mod tests;

use core::mem;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use mitra_failover::{
    Completion, Config, Domain, FailoverReport, Outcome, OwnedRegion, RemoteRegion, UnresolvedError,
    VirtualQp, WritePolicy,
};
use mitra_verbs::{
    Data, Ended, Error, InlineData, RecvWr, Result, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use self::staging::{Space, Staging};
use crate::queue_pair::{ConnectionError, QpInfo, QpKind, QueuePair};

/// An event that a poll of a [`Connection`] passes on.
#[derive(Debug)]
pub enum Event<'a> {
    /// An operation has ended.
    Ended {
        /// The number that the caller gave the operation.
        id: u64,
        /// How the operation ended. The peer never executes it later.
        ended: Ended,
        /// The bytes that a successful READ or atomic has fetched, else none.
        fetched: Staged<'a>,
    },
    /// A message of the peer has arrived.
    Message(Staged<'a>),
}

/// Bytes in the registered memory of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Staged<'a> {
    region: &'a OwnedRegion,
    offset: usize,
    len: usize,
}

impl Staged<'_> {
    /// Returns a copy of the bytes. No bytes need no allocation.
    pub fn to_vec(self) -> Vec<u8> {
        self.region.read(self.offset, self.len)
    }

    /// Returns the 8 bytes as a word in the byte order of the machine. Returns `None` unless there
    /// are 8 bytes.
    pub fn word(self) -> Option<u64> {
        let mut word = [0; size_of::<u64>()];
        (self.len == word.len()).then(|| {
            self.region.read_into(self.offset, &mut word);
            u64::from_ne_bytes(word)
        })
    }
}

/// One end of a connection that executes one-sided operations and sends messages, from registered
/// memory of its own.
///
/// The caller pushes operations ([`Connection::put`], [`Connection::fetch`]) and then posts all of
/// them as one list ([`Connection::post`]). Operations are executed and end in the order in which
/// they were pushed. After an operation that did not succeed, nothing can be pushed until all
/// earlier operations have ended.
#[derive(Debug)]
pub struct Connection {
    /// Declared before the registered memory, because the queue pair must be closed before the
    /// memory is freed.
    qp: QueuePair,
    staging: Staging,
    receives: Option<Receives>,
    /// The largest number of pending operations.
    depth: usize,
    /// The longest inline payload, in bytes.
    inline: usize,
    /// The operations that are pushed and not posted.
    pushed: Vec<(SendWr, WritePolicy)>,
    /// The operations that are pushed and have not ended, in their order.
    pending: VecDeque<Pending>,
    completions: Vec<Completion>,
    /// The error that has ended the connection.
    lost: Option<ConnectionError>,
    /// Whether a poll has returned `lost`. Such a poll is the last one with events.
    has_ended: bool,
}

#[derive(Debug)]
struct Pending {
    id: u64,
    space: Space,
    /// The number of bytes that the operation fetches.
    fetches: usize,
}

/// The memory for the peer's messages.
#[derive(Debug)]
struct Receives {
    region: OwnedRegion,
    slot_bytes: usize,
}

impl Connection {
    /// Creates an unconnected end. At most `config.send_wrs` operations are under way, and their
    /// payload takes at most `staging_bytes` bytes of registered memory.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn new(
        domain: &Arc<Domain>,
        kind: QpKind,
        config: &Config,
        staging_bytes: usize,
    ) -> Result<Connection> {
        let qp = QueuePair::new(domain, kind, config)?;
        Ok(Connection::with_queue_pair(qp, Staging::new(domain, staging_bytes)?, config))
    }

    /// Creates an end of a virtual queue pair that has no other user and that nothing was posted
    /// to. The virtual queue pair may be connected. `staging_bytes` is as in [`Connection::new`].
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn over(vqp: VirtualQp, staging_bytes: usize) -> Result<Connection> {
        let (staging, config) = (Staging::new(vqp.domain(), staging_bytes)?, vqp.config());
        Ok(Connection::with_queue_pair(QueuePair::over(vqp), staging, &config))
    }

    fn with_queue_pair(qp: QueuePair, staging: Staging, config: &Config) -> Connection {
        // Inline data beyond the inline size of `InlineData` would need an allocation for each
        // operation.
        let limit = staging.region.domain().limits().inline.min(InlineData::new().inline_size() as u32);
        let depth = config.send_wrs as usize;
        Connection {
            qp,
            staging,
            receives: None,
            depth,
            inline: config.inline.min(limit) as usize,
            pushed: Vec::with_capacity(depth),
            pending: VecDeque::with_capacity(depth),
            completions: Vec::with_capacity(depth),
            lost: None,
            has_ended: false,
        }
    }

    /// Lets the peer send messages of at most `slot_bytes` bytes. At most `slots` messages wait for
    /// a poll. The queue pair must be a virtual one with room for as many receives.
    ///
    /// # Errors
    /// Any error of a NIC, and those of [`VirtualQp::post_recv`]; `Invalid` the second time.
    pub fn with_receives(mut self, slots: usize, slot_bytes: usize) -> Result<Connection> {
        if self.receives.is_some() {
            return Err(Error::Invalid("a connection has receives once; ask for all of them at once"));
        }
        let region = OwnedRegion::new(self.staging.region.domain(), slots * slot_bytes)?;
        let receives = self.receives.insert(Receives { region, slot_bytes });
        (0..slots).try_for_each(|slot| receives.post(slot, &mut self.qp))?;
        Ok(self)
    }

    /// Returns the connection data for the peer.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn info(&self) -> Result<QpInfo> {
        self.qp.info()
    }

    /// Connects to the peer. Returns false if the peer's end is of another kind.
    ///
    /// # Errors
    /// As [`QueuePair::connect`].
    pub fn connect(&mut self, peer: &QpInfo) -> Result<bool> {
        self.qp.connect(peer)
    }

    /// Makes memory of the peer known, so that operations can name it.
    ///
    /// # Errors
    /// As [`VirtualQp::import`].
    pub fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        self.qp.import(region)
    }

    /// The length of the longest operation that can ever be pushed, in bytes.
    pub fn staging_bytes(&self) -> usize {
        self.staging.bytes()
    }

    /// Returns whether all operations that were pushed have ended.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns how many operations can be pushed now, if the staging memory has space for them.
    pub fn free_slots(&self) -> usize {
        self.depth - self.pending.len()
    }

    /// Pushes a WRITE or SEND of `bytes`, which are copied. Returns false if the operation cannot
    /// be pushed now: the queue or the staging memory is full, an earlier operation did not
    /// succeed and others are pending, or the connection has ended. `policy` is for WRITEs.
    #[must_use]
    pub fn put(&mut self, id: u64, op: SendOp, bytes: &[u8], policy: WritePolicy) -> bool {
        let is_inline = bytes.len() <= self.inline;
        let Some(space) = self.admit(if is_inline { 0 } else { bytes.len() }) else { return false };
        let data = if is_inline {
            Data::inline(bytes)
        } else {
            self.staging.region.write(space.offset, bytes);
            Data::sge(self.staging.region.sge(space.offset, bytes.len()))
        };
        let mut wr = SendWr::new(id, op, data);
        // The receiver may sleep, and wake for messages only.
        wr.flags.set(SendFlags::SOLICITED, matches!(op, SendOp::Send));
        self.pushed.push((wr, policy));
        self.pending.push_back(Pending { id, space, fetches: 0 });
        true
    }

    /// Pushes a READ of `len` bytes, or an atomic, which fetches 8 bytes. Returns false as
    /// [`Connection::put`] does.
    #[must_use]
    pub fn fetch(&mut self, id: u64, op: SendOp, len: usize) -> bool {
        let Some(space) = self.admit(len) else { return false };
        let data = Data::sge(self.staging.region.sge(space.offset, len));
        self.pushed.push((SendWr::new(id, op, data), WritePolicy::Strict));
        self.pending.push_back(Pending { id, space, fetches: len });
        true
    }

    fn admit(&mut self, bytes: usize) -> Option<Space> {
        if self.is_idle() {
            self.staging.reset();
            self.qp.resume();
        }
        let may_push = self.pending.len() < self.depth && self.lost.is_none() && self.qp.may_post();
        if may_push { self.staging.take(bytes) } else { None }
    }

    /// Posts the pushed operations as one list.
    ///
    /// # Errors
    /// A [`ConnectionError`], which ends the connection.
    pub fn post(&mut self) -> Result<(), ConnectionError> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if self.pushed.is_empty() {
            return Ok(());
        }
        let posted = self.qp.post(&mut self.pushed).map_err(|error| {
            let reason = self.qp.vqp().and_then(VirtualQp::close_reason);
            reason.map_or(ConnectionError::Nic(error), ConnectionError::Closed)
        });
        posted.inspect_err(|error| self.lost = Some(error.clone()))
    }

    /// Drives the connection, including a failover, and passes what has happened to `event`. The
    /// peer of a virtual queue pair that has ended learns of it sooner if it is still polled.
    ///
    /// # Errors
    /// A [`ConnectionError`], now and in every later call: the connection has ended. The first call
    /// passes what had happened before, and later calls pass nothing. The peer may still execute
    /// the operations without an event, until it has closed its end.
    pub fn poll(&mut self, event: impl FnMut(Event<'_>)) -> Result<(), ConnectionError> {
        self.poll_with(VirtualQp::poll, event)
    }

    /// As [`Connection::poll`], without driving a failover. This takes less time.
    ///
    /// # Errors
    /// As [`Connection::poll`].
    pub fn poll_completions(&mut self, event: impl FnMut(Event<'_>)) -> Result<(), ConnectionError> {
        self.poll_with(VirtualQp::poll_completions, event)
    }

    /// As [`Connection::poll`], for a virtual queue pair with completion channels of its own
    /// ([`VirtualQp::handle_events`]).
    ///
    /// # Errors
    /// As [`Connection::poll`].
    pub fn handle_events(&mut self, event: impl FnMut(Event<'_>)) -> Result<(), ConnectionError> {
        let mut handled = Ok(());
        let drive = |vqp: &mut VirtualQp, out: &mut Vec<Completion>| {
            handled = vqp.handle_events();
            vqp.take_completions(out)
        };
        self.poll_with(drive, event)?;
        handled.map_err(ConnectionError::Nic).inspect_err(|error| self.lost = Some(error.clone()))
    }

    /// Sets whether the end of an operation makes a descriptor readable
    /// ([`VirtualQp::wake_for_sends`]). A message always does.
    pub fn wake_for_operations(&mut self, on: bool) {
        self.qp.wake_for_sends(on);
    }

    /// The descriptors that are readable when [`Connection::handle_events`] has something to do.
    pub fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.qp.event_fds()
    }

    /// Returns after which time [`Connection::handle_events`] is due even if no event arrives.
    pub fn due_in(&self) -> Option<Duration> {
        let due = self.qp.event_timeout()?;
        Some(due.saturating_since(self.staging.region.domain().nics()[0].provider.now()))
    }

    /// Drives a virtual queue pair without events, which a later poll passes on. An end that only
    /// takes part in failovers calls this method every few hundred microseconds.
    pub fn progress(&mut self) {
        self.qp.progress();
    }

    fn poll_with(
        &mut self,
        drive: impl FnOnce(&mut VirtualQp, &mut Vec<Completion>) -> usize,
        mut event: impl FnMut(Event<'_>),
    ) -> Result<(), ConnectionError> {
        // Nothing that was pushed waits while the queue pair may halt or close.
        let posted = self.post();
        let mut completions = mem::take(&mut self.completions);
        let (successes, polled) = self.qp.poll(|vqp| drive(vqp, &mut completions));
        if self.has_ended {
            completions.clear();
            self.completions = completions;
            return posted;
        }
        for _ in 0..successes {
            self.end(Some(Ended::Success), &mut event);
        }
        let mut handled = posted;
        for completion in completions.drain(..) {
            let result = self.on_completion(&completion, &mut event);
            handled = handled.and(result);
        }
        self.completions = completions;
        handled.and(polled).inspect_err(|error| {
            self.lost = Some(error.clone());
            self.has_ended = true;
        })
    }

    fn on_completion(
        &mut self,
        completion: &Completion,
        event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), ConnectionError> {
        if matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) {
            self.on_receive(completion, event);
            return Ok(());
        }
        match completion.outcome {
            Outcome::Unresolved(UnresolvedError::Undecided(reason)) => {
                self.end(None, event);
                Err(ConnectionError::Closed(reason))
            }
            outcome => {
                self.end(Some(outcome.ended()), event);
                match outcome {
                    Outcome::Failed(status) if status != WcStatus::Flushed => {
                        Err(ConnectionError::Request(status))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Ends the oldest operation. Without `ended`, the operation is undecided.
    fn end(&mut self, ended: Option<Ended>, event: &mut impl FnMut(Event<'_>)) {
        let Some(Pending { id, space, fetches }) = self.pending.pop_front() else { return };
        if let Some(ended) = ended {
            let len = if ended == Ended::Success { fetches } else { 0 };
            let fetched = Staged { region: &self.staging.region, offset: space.offset, len };
            event(Event::Ended { id, ended, fetched });
        }
        self.staging.free(space);
    }

    fn on_receive(&mut self, completion: &Completion, event: &mut impl FnMut(Event<'_>)) {
        let Some(receives) = &self.receives else { return };
        let slot = completion.wr_id as usize;
        if completion.is_success() {
            let len = (completion.byte_len as usize).min(receives.slot_bytes);
            event(Event::Message(Staged {
                region: &receives.region,
                offset: slot * receives.slot_bytes,
                len,
            }));
        }
        // The post fails only after the connection has ended.
        let _ = receives.post(slot, &mut self.qp);
    }

    /// Returns whether an operation did not succeed and nothing was pushed since.
    pub fn is_halted(&self) -> bool {
        self.qp.vqp().is_some_and(VirtualQp::is_halted)
    }

    /// Returns whether the connection has ended.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some() || self.qp.vqp().is_some_and(|vqp| vqp.close_reason().is_some())
    }

    /// Returns the virtual queue pair; `None` for an RC queue pair.
    pub fn vqp(&self) -> Option<&VirtualQp> {
        self.qp.vqp()
    }

    /// Requests an event at the next completion. Fails only on a failed NIC, which the next poll
    /// reports.
    pub fn arm(&self) {
        self.qp.arm();
    }

    /// Returns the report of the last failover.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.qp.vqp()?.last_failover()
    }

    /// Destroys the end. When `close` returns, the peer can no longer access memory through the
    /// connection. Has no effect the second time.
    ///
    /// # Errors
    /// The first error of a NIC.
    pub fn close(&mut self) -> Result<(), Error> {
        self.qp.close()
    }
}

impl Receives {
    fn post(&self, slot: usize, qp: &mut QueuePair) -> Result<()> {
        let sge = self.region.sge(slot * self.slot_bytes, self.slot_bytes);
        qp.post_recv(RecvWr::new(slot as u64, sge))
    }
}
