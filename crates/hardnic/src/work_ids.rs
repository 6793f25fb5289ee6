//! The numbers that requests have at the device, and the program's numbers behind them.
//!
//! A request goes to the device with its place in its queue as its number. The completion then says
//! which entries of the queue are free, whether it is that of a send or a receive (the opcode of a
//! failed request is undefined), and whether its request was posted before the last change to RESET
//! or on an earlier queue pair with the same number, whose completions are dropped.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The kind of queue of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QueueKind {
    Send,
    Recv,
    /// A shared receive queue.
    Shared,
}

const EPOCH_BITS: u32 = 14;
const EPOCH_MASK: u32 = (1 << EPOCH_BITS) - 1;
const PLACE_BITS: u32 = 48;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

/// The number of a request at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WorkId {
    pub(crate) kind: QueueKind,
    /// Which use of the queue the request belongs to.
    pub(crate) epoch: u32,
    /// The number of requests that were posted before, or the place in a shared receive queue.
    pub(crate) place: u64,
}

impl WorkId {
    pub(crate) fn encode(self) -> u64 {
        (self.kind as u64) << 62 | u64::from(self.epoch & EPOCH_MASK) << PLACE_BITS | self.place & PLACE_MASK
    }

    /// Returns `None` for a number that [`WorkId::encode`] does not return.
    pub(crate) fn decode(number: u64) -> Option<WorkId> {
        let kind = match number >> 62 {
            0 => QueueKind::Send,
            1 => QueueKind::Recv,
            2 => QueueKind::Shared,
            _ => return None,
        };
        let epoch = (number >> PLACE_BITS) as u32 & EPOCH_MASK;
        Some(WorkId { kind, epoch, place: number & PLACE_MASK })
    }
}

/// The send queue or the receive queue of a queue pair.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    kind: QueueKind,
    /// The capacity that the program requested. The device's may be greater.
    pub(crate) depth: u32,
    epoch: AtomicU32,
    /// The number of requests that were ever posted. Posts hold the lock, so that the device gets
    /// the requests in this order.
    posted: Mutex<u64>,
    /// One more than the place of the last request that has completed.
    freed: AtomicU64,
    /// The program's number of the request at each place, modulo the length.
    wr_ids: Box<[AtomicU64]>,
}

/// A locked [`WorkQueue`], to which requests are posted.
pub(crate) struct Posting<'a> {
    queue: &'a WorkQueue,
    posted: MutexGuard<'a, u64>,
}

impl WorkQueue {
    pub(crate) fn new(kind: QueueKind, depth: u32, epoch: u32) -> WorkQueue {
        let length = (depth as usize).next_power_of_two();
        WorkQueue {
            kind,
            depth,
            epoch: AtomicU32::new(epoch & EPOCH_MASK),
            posted: Mutex::new(0),
            freed: AtomicU64::new(0),
            wr_ids: (0..length).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn lock(&self) -> Posting<'_> {
        Posting { queue: self, posted: self.posted.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Empties the queue: completions of earlier requests are dropped.
    pub(crate) fn reset(&self) {
        let posted = self.lock();
        self.epoch.store((self.epoch.load(Ordering::Relaxed) + 1) & EPOCH_MASK, Ordering::Release);
        self.freed.store(*posted.posted & PLACE_MASK, Ordering::Release);
    }

    fn slot(&self, place: u64) -> &AtomicU64 {
        &self.wr_ids[place as usize & (self.wr_ids.len() - 1)]
    }

    /// Returns the program's number of a request that has completed, and frees its entry and those
    /// before it. Returns `None` if the request belongs to an earlier use of the queue.
    pub(crate) fn complete(&self, id: WorkId) -> Option<u64> {
        if id.epoch != self.epoch.load(Ordering::Acquire) {
            return None;
        }
        let wr_id = self.slot(id.place).load(Ordering::Relaxed);
        self.freed.fetch_max(id.place + 1, Ordering::AcqRel);
        Some(wr_id)
    }
}

impl Posting<'_> {
    /// Returns the number of free entries.
    pub(crate) fn free(&self) -> u32 {
        let used = self.posted.saturating_sub(self.queue.freed.load(Ordering::Acquire));
        self.queue.depth.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX))
    }

    /// Returns the number at the device of the request that is posted after `before` others.
    pub(crate) fn id(&self, before: usize, wr_id: u64) -> u64 {
        let place = *self.posted + before as u64;
        self.queue.slot(place).store(wr_id, Ordering::Relaxed);
        WorkId { kind: self.queue.kind, epoch: self.queue.epoch.load(Ordering::Relaxed), place }.encode()
    }

    /// Counts requests that the device has taken.
    pub(crate) fn advance(&mut self, count: usize) {
        *self.posted += count as u64;
    }
}

/// The receives of a shared receive queue, which complete in any order.
#[derive(Debug, Default)]
pub(crate) struct SharedIds {
    pub(crate) depth: u32,
    wr_ids: Vec<u64>,
    free: Vec<u32>,
}

impl SharedIds {
    pub(crate) fn new(depth: u32) -> SharedIds {
        SharedIds { depth, ..SharedIds::default() }
    }

    /// Returns the number at the device of a new receive.
    pub(crate) fn add(&mut self, wr_id: u64) -> WorkId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.wr_ids.push(0);
            (self.wr_ids.len() - 1) as u32
        });
        self.wr_ids[place as usize] = wr_id;
        WorkId { kind: QueueKind::Shared, epoch: 0, place: place.into() }
    }

    /// Returns the program's number of a receive that has completed, or was not taken.
    pub(crate) fn remove(&mut self, id: WorkId) -> Option<u64> {
        let wr_id = *self.wr_ids.get(id.place as usize)?;
        self.free.push(id.place as u32);
        Some(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(number: u64) -> WorkId {
        WorkId::decode(number).unwrap()
    }

    #[test]
    fn number_says_kind_epoch_and_place() {
        for kind in [QueueKind::Send, QueueKind::Recv, QueueKind::Shared] {
            let id = WorkId { kind, epoch: EPOCH_MASK, place: PLACE_MASK - 1 };
            assert_eq!(decoded(id.encode()), id);
        }
        assert_eq!(WorkId::decode(u64::MAX), None);
    }

    #[test]
    fn signalled_completion_frees_the_entries_before_it() {
        let queue = WorkQueue::new(QueueKind::Send, 4, 9);
        let mut posting = queue.lock();
        let ids: Vec<u64> = (0..4).map(|n| posting.id(n, 100 + n as u64)).collect();
        posting.advance(4);
        assert_eq!(posting.free(), 0);
        drop(posting);
        assert_eq!(queue.complete(decoded(ids[2])), Some(102));
        assert_eq!(queue.lock().free(), 3);
        assert_eq!(queue.complete(decoded(ids[3])), Some(103));
        assert_eq!(queue.lock().free(), 4);
    }

    #[test]
    fn completion_of_request_before_reset_is_dropped() {
        let queue = WorkQueue::new(QueueKind::Recv, 2, EPOCH_MASK);
        let mut posting = queue.lock();
        let old = posting.id(0, 1);
        posting.advance(1);
        drop(posting);
        queue.reset();
        assert_eq!(queue.lock().free(), 2);
        assert_eq!(queue.complete(decoded(old)), None);
        let new = queue.lock().id(0, 2);
        assert_eq!(queue.complete(decoded(new)), Some(2));
    }

    #[test]
    fn receives_of_shared_queue_complete_in_any_order() {
        let mut ids = SharedIds::new(3);
        let (a, b) = (ids.add(10), ids.add(11));
        assert_eq!(ids.remove(a), Some(10));
        let c = ids.add(12);
        assert_eq!((ids.remove(b), ids.remove(c)), (Some(11), Some(12)));
        assert_eq!(ids.remove(WorkId { place: 7, ..a }), None);
    }
}
