//! A priority queue of deadlines with at most one deadline per queue pair slot.

use mitra_verbs::Time;

/// The heap position of a slot without a deadline.
const NOT_IN_HEAP: u32 = u32::MAX;

/// An indexed binary min-heap of slots.
///
/// The heap stores the position of each slot, so that a deadline can be moved or removed in O(log
/// n).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct TimerHeap {
    /// The slots in heap order of their deadlines.
    heap: Vec<u32>,
    /// The position of each slot in `heap`, or [`NOT_IN_HEAP`], and the slot's deadline.
    slots: Vec<(u32, Time)>,
}

impl TimerHeap {
    pub(crate) fn first(&self) -> Option<Time> {
        self.heap.first().map(|&slot| self.slots[slot as usize].1)
    }

    /// Sets the deadline of a slot, unless the slot has an earlier deadline.
    pub(crate) fn set_earlier(&mut self, slot: u32, deadline: Time) {
        let index = slot as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, (NOT_IN_HEAP, Time::ZERO));
        }
        let (position, old) = self.slots[index];
        if position == NOT_IN_HEAP {
            self.slots[index] = (self.heap.len() as u32, deadline);
            self.heap.push(slot);
            self.sift_up(self.heap.len() - 1);
        } else if deadline < old {
            self.slots[index].1 = deadline;
            self.sift_up(position as usize);
        }
    }

    /// Removes and returns the slot with the earliest deadline, if the deadline is at most `now`.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<u32> {
        let slot = *self.heap.first()?;
        if self.slots[slot as usize].1 > now {
            return None;
        }
        self.remove(slot);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(&(position, _)) = self.slots.get(slot as usize) else { return };
        if position == NOT_IN_HEAP {
            return;
        }
        let position = position as usize;
        self.slots[slot as usize].0 = NOT_IN_HEAP;
        let last = self.heap.len() - 1;
        self.heap.swap_remove(position);
        if position != last {
            self.slots[self.heap[position] as usize].0 = position as u32;
            self.sift_up(position);
            self.sift_down(position);
        }
    }

    fn deadline(&self, position: usize) -> Time {
        self.slots[self.heap[position] as usize].1
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.slots[self.heap[a] as usize].0 = a as u32;
        self.slots[self.heap[b] as usize].0 = b as u32;
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.deadline(parent) <= self.deadline(position) {
                return;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let child = if right < self.heap.len() && self.deadline(right) < self.deadline(left) {
                right
            } else {
                left
            };
            if self.deadline(position) <= self.deadline(child) {
                return;
            }
            self.swap(position, child);
            position = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mitra_prng::Prng;
    use std::collections::BTreeMap;

    #[test]
    fn timer_heap_agrees_with_sorted_map() {
        let mut timers = TimerHeap::default();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut prng = Prng::new(1);
        let mut random = |n| prng.below(n);
        for _ in 0..20_000 {
            let (slot, at) = (random(40) as u32, random(1000));
            match random(4) {
                0 => {
                    timers.remove(slot);
                    model.remove(&slot);
                }
                1 => {
                    let due = timers.take_due(Time::from_nanos(at));
                    let earliest = model.values().min().copied();
                    match due {
                        Some(slot) => assert_eq!(model.remove(&slot), earliest.filter(|&t| t <= at)),
                        None => assert!(earliest.is_none_or(|t| t > at)),
                    }
                }
                _ => {
                    timers.set_earlier(slot, Time::from_nanos(at));
                    let t = model.entry(slot).or_insert(at);
                    *t = at.min(*t);
                }
            }
            assert_eq!(timers.first().map(Time::as_nanos), model.values().min().copied());
        }
    }
}
