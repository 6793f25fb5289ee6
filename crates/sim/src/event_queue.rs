use core::cmp::Ordering;
use std::collections::BinaryHeap;

use mitra_verbs::Time;

use crate::Prng;

/// The queue of a world's future events. The order of events at the same time is drawn from `rng`.
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    rng: Prng,
    /// The number of events queued so far. It orders events with the same time and the same
    /// tie-break.
    sequence: u64,
}

struct Entry<E> {
    at: Time,
    tie_break: u32,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new(rng: Prng) -> EventQueue<E> {
        EventQueue { heap: BinaryHeap::new(), rng, sequence: 0 }
    }

    pub(crate) fn push(&mut self, at: Time, event: E) {
        self.sequence += 1;
        self.heap.push(Entry { at, tie_break: self.rng.bits() as u32, sequence: self.sequence, event });
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|e| e.at)
    }

    /// Iterates over the events, in any order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.heap.iter().map(|entry| &entry.event)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Time, u32, u64) {
        (self.at, self.tie_break, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    /// The reverse of the order of `key`, because a heap pops its greatest entry, and the queue
    /// must pop its earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_pop_by_time_and_ties_by_seed() {
        let order = |seed| {
            let mut q = EventQueue::new(Prng::stream(seed, "ties"));
            for i in 0..20 {
                q.push(Time::from_nanos(u64::from(i >= 10)), i);
            }
            core::iter::from_fn(|| q.pop()).map(|(_, e)| e).collect::<Vec<i32>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        assert!(order(1)[..10].iter().all(|&e| e < 10));
    }
}
