//! A coordinator: runs many transactions at once, without I/O and without a clock.
//!
//! The driver calls [`Coordinator::poll`], executes the requests that
//! [`Coordinator::take_requests`] returns, and passes their outcomes to
//! [`Coordinator::on_outcomes`]. The driver executes the requests of one ticket to one node in
//! their order. A ticket has one list of requests in flight at a time.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use mitra_mutants::Mutant;
use xxhash_rust::xxh3::xxh3_64;

use crate::execution::{Execution, Footprint, Progress, Store};
use crate::layout::Layout;
use crate::lock_word::{Life, LockWord};
use crate::place_cache::PlaceCache;
use crate::remote_transaction::{Client, NotCommitted};
use crate::request::{NodeId, Outcome, Request};
use crate::scan::Scan;
use crate::transaction::{Abort, Access, RecordKey, TableId};
use crate::{Copies, PlaceKind, free_stale_lock};

/// The longest delay before the second attempt of a transaction. Each further attempt doubles the
/// delay, up to a limit.
const FIRST_BACK_OFF: Duration = Duration::from_micros(20);
const MAX_DOUBLINGS: u32 = 7;

/// The name of a list of requests, until its outcomes are known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// A coordinator in one of its lives.
pub struct Coordinator {
    core: Rc<RefCell<Core>>,
    tasks: FuturesUnordered<LocalBoxFuture<'static, ()>>,
}

/// The event that a transaction waits for.
pub(crate) enum Reply {
    Values(Vec<Option<Vec<u8>>>),
    /// The footprint, and the number of round trips before the commit.
    Committed(Footprint, u32),
    NotCommitted(NotCommitted),
}

/// One transaction in flight, with its slot of the log.
#[derive(Default)]
struct Slot {
    execution: Option<Execution>,
    reply: Option<Reply>,
    waker: Option<Waker>,
    /// Whether a [`RemoteTransaction`](crate::RemoteTransaction) uses the slot.
    is_used: bool,
    is_told: bool,
    /// Whether requests are in flight or parked.
    is_posted: bool,
    /// Requests that would meet locks of a committed transaction of this coordinator. They wait
    /// until the locks are free.
    parked: Option<Vec<Request>>,
    round_trips: u32,
}

pub(crate) struct Core {
    layout: Rc<Layout>,
    life: Life,
    attempts: u32,
    slots: Vec<Slot>,
    waiting_for_slot: Vec<Waker>,
    cache: PlaceCache,
    dead: BTreeSet<NodeId>,
    /// The last recovered incarnation of each coordinator.
    recovered: BTreeMap<u16, u16>,
    requests: Vec<(Ticket, Vec<Request>)>,
    /// The indexes that are read into the cache.
    scans: BTreeMap<Ticket, Scan>,
    /// The next ticket for requests that belong to no slot.
    next_ticket: u64,
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    timers_made: u64,
    is_ended: bool,
    aborts: BTreeMap<&'static str, u64>,
    committed: u64,
}

impl Coordinator {
    /// Creates the coordinator of a life that has begun. A life has one coordinator.
    pub fn new(layout: Rc<Layout>, life: Life) -> Coordinator {
        let slots = layout.schema().slots;
        let core = Core {
            layout,
            life,
            attempts: 0,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            waiting_for_slot: Vec::new(),
            cache: PlaceCache::default(),
            dead: BTreeSet::new(),
            recovered: BTreeMap::new(),
            requests: Vec::new(),
            scans: BTreeMap::new(),
            next_ticket: slots.into(),
            now: Duration::ZERO,
            timers: BTreeMap::new(),
            timers_made: 0,
            is_ended: false,
            aborts: BTreeMap::new(),
            committed: 0,
        };
        Coordinator { core: Rc::new(RefCell::new(core)), tasks: FuturesUnordered::new() }
    }

    /// Returns a handle with which tasks run transactions.
    pub fn client(&self) -> Client {
        Client::new(Rc::clone(&self.core))
    }

    /// Adds a task. It runs in [`Coordinator::poll`].
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.push(Box::pin(task));
    }

    /// Runs all tasks that are ready. `now` is the time since a fixed moment.
    pub fn poll(&mut self, now: Duration) {
        let due = {
            let core = &mut *self.core.borrow_mut();
            core.now = now;
            let later = core.timers.split_off(&(now + Duration::from_nanos(1), 0));
            core::mem::replace(&mut core.timers, later)
        };
        due.into_values().for_each(Waker::wake);
        let context = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(())) = self.tasks.poll_next_unpin(context) {}
    }

    /// Takes the requests to execute.
    pub fn take_requests(&mut self) -> Vec<(Ticket, Vec<Request>)> {
        core::mem::take(&mut self.core.borrow_mut().requests)
    }

    /// Reads the indexes of partitions into the cache of places, so that transactions find the
    /// records there in one round trip. The coordinator is not idle until all these indexes are
    /// read. Partitions whose primary is declared dead are left out, and so are records that exceed
    /// the cache.
    pub fn warm_up(&mut self, partitions: impl IntoIterator<Item = (TableId, u32)>) {
        let core = &mut *self.core.borrow_mut();
        let indexes = partitions.into_iter().map(|(table, partition)| (table, partition, PlaceKind::Bucket));
        let ticket = Ticket(core.next_ticket);
        core.next_ticket += 1;
        core.scans.insert(ticket, Scan::new(Rc::clone(&core.layout), indexes.collect(), 1));
        core.go_on_with_scan(ticket);
    }

    /// Takes the outcomes of a ticket's requests, in the same order.
    pub fn on_outcomes(&mut self, ticket: Ticket, outcomes: &[Outcome]) {
        let core = &mut *self.core.borrow_mut();
        if let Some(scan) = core.scans.get_mut(&ticket) {
            let piece = scan.on_outcomes(outcomes);
            piece.into_iter().for_each(|piece| core.cache.learn(&core.layout, &piece));
            return core.go_on_with_scan(ticket);
        }
        let slot = ticket.0 as usize;
        // A ticket without a slot frees a stale lock. Its outcome is ignored, because a lock that
        // was not freed is met again.
        if slot < core.slots.len() && core.slots[slot].is_posted && !core.is_ended {
            core.slots[slot].is_posted = false;
            core.with_execution(slot, |execution, store| execution.on_outcomes(store, outcomes));
        }
    }

    /// The time at which [`Coordinator::poll`] is due even if no outcome arrives.
    pub fn next_timer(&self) -> Option<Duration> {
        self.core.borrow().timers.keys().next().map(|(at, _)| *at)
    }

    /// Returns whether all tasks have ended, all transactions are applied, and nothing is read into
    /// the cache.
    pub fn is_idle(&self) -> bool {
        let core = self.core.borrow();
        self.tasks.is_empty()
            && core.scans.is_empty()
            && core.slots.iter().all(|slot| slot.execution.is_none())
    }

    /// Returns whether every transaction has ended and is applied. Tasks may still wait for other
    /// events.
    pub fn is_settled(&self) -> bool {
        self.core.borrow().slots.iter().all(|slot| slot.execution.is_none())
    }

    /// Reports that a life and all earlier lives of its coordinator are recovered, so that their
    /// locks may be freed.
    pub fn set_recovered(&mut self, life: Life) {
        let core = &mut *self.core.borrow_mut();
        let last = core.recovered.entry(life.coordinator).or_default();
        *last = life.incarnation.max(*last);
    }

    /// Reports that a node is declared dead. The driver ends all requests to the node with
    /// [`Outcome::NodeDead`].
    pub fn set_dead(&mut self, node: NodeId) {
        self.core.borrow_mut().dead.insert(node);
    }

    /// Ends the life: the coordinator posts nothing more, and waiting transactions end.
    pub fn end_life(&mut self) {
        self.core.borrow_mut().end_life();
    }

    #[cfg(test)]
    pub(crate) fn leave_attempts(&self, left: u32) {
        self.core.borrow_mut().attempts = u32::MAX - left;
    }

    /// Returns whether the life has ended: by [`Coordinator::end_life`], by a transaction whose
    /// effect is unknown, or after 2³² − 1 attempts.
    pub fn is_ended(&self) -> bool {
        self.core.borrow().is_ended
    }

    /// The attempts whose log entries are being written, with their footprints. If the life ends
    /// now, the recovery of the life decides whether they take effect.
    pub fn undecided(&self) -> Vec<(LockWord, Footprint)> {
        let core = self.core.borrow();
        let executions = core.slots.iter().filter_map(|slot| slot.execution.as_ref());
        let logging = executions.filter(|execution| execution.is_logging());
        logging.map(|execution| (execution.lock(), execution.footprint())).collect()
    }

    /// The number of committed transactions.
    pub fn committed(&self) -> u64 {
        self.core.borrow().committed
    }

    /// The number of attempts that had no effect, by [`Abort::name`].
    pub fn aborts(&self) -> BTreeMap<&'static str, u64> {
        self.core.borrow().aborts.clone()
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let core = self.core.borrow();
        let Core { life, attempts, committed, is_ended, .. } = &*core;
        f.debug_struct("Coordinator")
            .field("life", life)
            .field("attempts", attempts)
            .field("committed", committed)
            .field("is_ended", is_ended)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn begin(&mut self, context: &Context<'_>) -> Poll<Result<(usize, LockWord), NotCommitted>> {
        if self.attempts == u32::MAX {
            self.end_life(); // numbers are not used again
        }
        if self.is_ended {
            return Poll::Ready(Err(NotCommitted::Aborted(Abort::LifeEnded)));
        }
        let free = self.slots.iter().position(|slot| !slot.is_used && slot.execution.is_none());
        let Some(index) = free else {
            self.waiting_for_slot.push(context.waker().clone());
            return Poll::Pending;
        };
        self.attempts += 1;
        let lock = LockWord::new(self.life, self.attempts);
        let log = self.layout.log_slot(self.life.coordinator, index as u16);
        let execution = Execution::new(lock, log, self.layout.log_copies());
        self.slots[index] = Slot { execution: Some(execution), is_used: true, ..Slot::default() };
        Poll::Ready(Ok((index, lock)))
    }

    pub(crate) fn get_all(&mut self, slot: usize, items: &[(RecordKey, Access)]) {
        self.with_execution(slot, |execution, store| execution.get_all(store, items));
    }

    pub(crate) fn commit(&mut self, slot: usize) {
        self.with_execution(slot, |execution, store| execution.commit(store));
    }

    /// Validates the reads of a program that has refused to commit, and then ends the transaction.
    pub(crate) fn refuse(&mut self, slot: usize, why: Abort) {
        self.with_execution(slot, |execution, store| execution.refuse(store, why));
    }

    fn roll_back(&mut self, slot: usize) {
        self.with_execution(slot, |execution, _| execution.roll_back());
    }

    pub(crate) fn write(&mut self, slot: usize, write: impl FnOnce(&mut Execution)) {
        if let Some(execution) = &mut self.slots[slot].execution {
            write(execution);
        }
    }

    /// Returns the reply for the transaction of a slot, or [`Abort::LifeEnded`] after the end of
    /// the life.
    pub(crate) fn reply(&mut self, slot: usize, context: &Context<'_>) -> Poll<Reply> {
        match self.slots[slot].reply.take() {
            Some(reply) => Poll::Ready(reply),
            None if self.is_ended => {
                Poll::Ready(Reply::NotCommitted(NotCommitted::Aborted(Abort::LifeEnded)))
            }
            None => {
                self.slots[slot].waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Releases the slot of a transaction that has ended or was dropped. The execution of a dropped
    /// transaction goes on while it has requests in flight.
    pub(crate) fn release(&mut self, slot: usize) {
        self.slots[slot].is_used = false;
        if !self.slots[slot].is_posted && !self.is_ended {
            self.roll_back(slot);
        }
        self.on_free(slot);
    }

    /// The time of the next attempt, after this many attempts.
    pub(crate) fn back_off(&self, attempts: u32) -> Duration {
        let longest = FIRST_BACK_OFF * 2_u32.pow(attempts.saturating_sub(1).min(MAX_DOUBLINGS));
        let lock = LockWord::new(self.life, self.attempts);
        // Coordinators draw different times, because their lock words differ.
        let part = xxh3_64(&lock.bits().to_le_bytes()) >> 44;
        self.now + longest.mul_f64(part as f64 / f64::from(1 << 20))
    }

    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Waits until a moment, or the end of the life.
    pub(crate) fn wait_until(&mut self, at: Duration, context: &Context<'_>) -> Poll<()> {
        if self.now >= at || self.is_ended {
            return Poll::Ready(());
        }
        self.timers_made += 1;
        self.timers.insert((at, self.timers_made), context.waker().clone());
        Poll::Pending
    }

    /// Returns whether the transaction of a slot has a reply, or will get one.
    pub(crate) fn is_busy(&self, slot: usize) -> bool {
        self.slots[slot].reply.is_some() || self.slots[slot].is_posted && !self.is_ended
    }

    fn with_execution(
        &mut self,
        index: usize,
        step: impl FnOnce(&mut Execution, &mut Store<'_>) -> Progress,
    ) {
        let Slot { execution, is_told, .. } = &mut self.slots[index];
        let Some(execution) = execution else { return };
        let store = &mut Store { layout: &self.layout, cache: &mut self.cache, dead: &self.dead };
        let progress = step(execution, store);
        if execution.is_committed() && !core::mem::replace(is_told, true) {
            let footprint = execution.footprint();
            self.committed += 1;
            let round_trips = self.slots[index].round_trips;
            self.tell(index, Reply::Committed(footprint, round_trips));
        }
        match progress {
            Progress::Post(requests) => {
                self.slots[index].is_posted = true;
                self.post(index, requests);
            }
            Progress::Values(values) => {
                self.tell(index, Reply::Values(values));
                if !self.slots[index].is_used {
                    self.roll_back(index);
                }
            }
            Progress::Applied => self.end(index),
            Progress::Aborted(why, lock) => {
                *self.aborts.entry(why.name()).or_default() += 1;
                if let Some((place, lock)) = lock
                    && let Some(life) = lock.life()
                    && (self.recovered.get(&life.coordinator).is_some_and(|&last| life.incarnation <= last)
                        || Mutant::LiveLockFreed.is_on())
                    && let Some(Copies { primary, .. }) = self.layout.copies_of(place)
                {
                    self.requests.push((Ticket(self.next_ticket), vec![free_stale_lock(primary, lock)]));
                    self.next_ticket += 1;
                }
                self.tell(index, Reply::NotCommitted(NotCommitted::Aborted(why)));
                self.end(index);
            }
            Progress::Undecided => self.end_life(),
        }
    }

    /// Posts the requests of a transaction, or parks them while they would meet a lock of a
    /// committed transaction. A committed transaction waits for no other transaction, so there is
    /// no deadlock.
    fn post(&mut self, index: usize, requests: Vec<Request>) {
        let mut executions = self.slots.iter().filter_map(|slot| slot.execution.as_ref());
        let is_committed = self.slots[index].execution.as_ref().is_some_and(Execution::is_committed);
        if !is_committed && executions.any(|execution| execution.applies_at(&requests)) {
            self.slots[index].parked = Some(requests);
            return;
        }
        self.slots[index].round_trips += 1;
        self.requests.push((Ticket(index as u64), requests));
    }

    /// Posts the next READs of a scan, or ends the scan.
    fn go_on_with_scan(&mut self, ticket: Ticket) {
        match self.scans.get_mut(&ticket).and_then(Scan::requests).filter(|_| !self.is_ended) {
            Some(requests) => self.requests.push((ticket, requests)),
            None => _ = self.scans.remove(&ticket),
        }
    }

    fn tell(&mut self, index: usize, reply: Reply) {
        let slot = &mut self.slots[index];
        slot.reply = Some(reply);
        slot.waker.take().into_iter().for_each(Waker::wake);
    }

    fn end(&mut self, index: usize) {
        self.slots[index].execution = None;
        self.on_free(index);
        for index in 0..self.slots.len() {
            if let Some(requests) = self.slots[index].parked.take() {
                self.post(index, requests);
            }
        }
    }

    fn on_free(&mut self, index: usize) {
        let slot = &self.slots[index];
        if slot.execution.is_none() && !slot.is_used {
            // All waiters are woken: the first waiter may no longer want the slot.
            self.waiting_for_slot.drain(..).for_each(Waker::wake);
        }
    }

    fn end_life(&mut self) {
        self.is_ended = true;
        self.requests.clear();
        self.scans.clear();
        core::mem::take(&mut self.timers).into_values().for_each(Waker::wake);
        for index in 0..self.slots.len() {
            let Some(execution) = self.slots[index].execution.take() else { continue };
            if !self.slots[index].is_told {
                let why = if execution.is_logging() {
                    NotCommitted::Unknown
                } else {
                    NotCommitted::Aborted(Abort::LifeEnded)
                };
                self.tell(index, Reply::NotCommitted(why));
            }
        }
        self.waiting_for_slot.drain(..).for_each(Waker::wake);
    }
}
