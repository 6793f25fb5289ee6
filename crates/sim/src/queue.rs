use core::cmp::Ordering;
use std::collections::BinaryHeap;

use mitra_verbs::Time;

use crate::Prng;

/// What happens next: one queue for the whole world. Events of the same time come in an order that the seed chooses.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    rng: Prng,
    /// Makes the order total even where the seed's tie-break ties.
    count: u64,
}

struct Entry<E> {
    at: Time,
    tie: u32,
    count: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) fn new(rng: Prng) -> Queue<E> {
        Queue { heap: BinaryHeap::new(), rng, count: 0 }
    }

    pub(crate) fn push(&mut self, at: Time, event: E) {
        self.count += 1;
        self.heap.push(Entry { at, tie: self.rng.bits() as u32, count: self.count, event });
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }

    /// When the next event is due.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|e| e.at)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

impl<E> Entry<E> {
    fn key(&self) -> (Time, u32, u64) {
        (self.at, self.tie, self.count)
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
    /// Reversed: the heap gives its greatest, we want the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_ties_by_seed() {
        let order = |seed| {
            let mut q = Queue::new(Prng::stream(seed, "ties"));
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
