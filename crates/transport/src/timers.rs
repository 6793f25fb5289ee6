//! Deadlines by slot: at most one each, the earliest in front.

use mitra_verbs::Time;

const NONE: u32 = u32::MAX;

/// A binary heap of slots that knows where each slot is, so that a deadline can be moved without allocating and
/// without leaving a stale entry behind.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Timers {
    /// Slots, by deadline.
    heap: Vec<u32>,
    /// Of each slot: its place in the heap, its deadline.
    slots: Vec<(u32, Time)>,
}

impl Timers {
    /// The earliest deadline.
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|&slot| self.slots[slot as usize].1)
    }

    /// Sees to it that the slot has a deadline no later than `at`.
    pub(crate) fn no_later(&mut self, slot: u32, at: Time) {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, (NONE, Time::ZERO));
        }
        let (place, old) = self.slots[index];
        if place == NONE {
            self.slots[index] = (self.heap.len() as u32, at);
            self.heap.push(slot);
            self.up(self.heap.len() - 1);
        } else if at < old {
            self.slots[index].1 = at;
            self.up(place as usize);
        }
    }

    /// Takes the earliest slot if its deadline has come.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<u32> {
        let slot = *self.heap.first()?;
        if self.slots[slot as usize].1 > now {
            return None;
        }
        self.remove(slot);
        Some(slot)
    }

    /// Forgets the slot's deadline.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(&(place, _)) = self.slots.get(slot as usize) else { return };
        if place == NONE {
            return;
        }
        let place = place as usize;
        self.slots[slot as usize].0 = NONE;
        let last = self.heap.len() - 1;
        self.heap.swap_remove(place);
        if place != last {
            self.slots[self.heap[place] as usize].0 = place as u32;
            self.up(place);
            self.down(place);
        }
    }

    fn at(&self, place: usize) -> Time {
        self.slots[self.heap[place] as usize].1
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.slots[self.heap[a] as usize].0 = a as u32;
        self.slots[self.heap[b] as usize].0 = b as u32;
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.at(parent) <= self.at(place) {
                return;
            }
            self.swap(parent, place);
            place = parent;
        }
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let left = 2 * place + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.heap.len() && self.at(right) < self.at(left) { right } else { left };
            if self.at(place) <= self.at(child) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_sorted_map() {
        let mut timers = Timers::default();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut x: u64 = 1;
        let mut random = |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        for _ in 0..20_000 {
            let (slot, at) = (random(40) as u32, random(1000));
            match random(4) {
                0 => {
                    timers.remove(slot);
                    model.remove(&slot);
                }
                1 => {
                    let due = timers.take_due(Time::from_nanos(at));
                    let least = model.values().min().copied();
                    match due {
                        Some(slot) => assert_eq!(model.remove(&slot), least.filter(|&t| t <= at)),
                        None => assert!(least.is_none_or(|t| t > at)),
                    }
                }
                _ => {
                    timers.no_later(slot, Time::from_nanos(at));
                    let t = model.entry(slot).or_insert(at);
                    *t = at.min(*t);
                }
            }
            assert_eq!(timers.first().map(Time::as_nanos), model.values().min().copied());
        }
    }
}
