use std::collections::BTreeMap;

use mitra_verbs::Time;

use crate::Prng;

/// The queue of a world's future events. The order of events at the same time is drawn from `rng`.
pub(crate) struct EventQueue<E> {
    /// The events by time, tie-break and `sequence`.
    events: BTreeMap<(Time, u32, u64), E>,
    rng: Prng,
    /// The number of events queued so far.
    sequence: u64,
}

impl<E> EventQueue<E> {
    pub(crate) fn new(rng: Prng) -> EventQueue<E> {
        EventQueue { events: BTreeMap::new(), rng, sequence: 0 }
    }

    pub(crate) fn push(&mut self, at: Time, event: E) {
        self.sequence += 1;
        self.events.insert((at, self.rng.bits() as u32, self.sequence), event);
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, E)> {
        self.events.pop_first().map(|((at, ..), event)| (at, event))
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.events.first_key_value().map(|(&(at, ..), _)| at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.events.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.events.len()
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
