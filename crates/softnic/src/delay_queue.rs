//! Datagrams that fault injection delays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mitra_verbs::{Gid, Time};

/// The capacity of the queue, in datagrams. A full queue drops new datagrams.
const CAPACITY: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Direction {
    /// To be sent, with its traffic class.
    Transmit(u8),
    /// Received, with the multicast group to which it was sent, if any, and its traffic class.
    Receive(Option<Gid>, u8),
}

/// The ICRC of a datagram to transmit is not yet set. The ICRC of a received datagram has been
/// checked.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DelayedDatagram {
    due: Time,
    /// Orders datagrams with the same due time by arrival. The heap compares the fields in the
    /// order of their declaration.
    sequence: u64,
    pub(crate) direction: Direction,
    pub(crate) peer: Gid,
    pub(crate) datagram: Box<[u8]>,
}

#[derive(Default)]
pub(crate) struct DelayQueue {
    heap: BinaryHeap<Reverse<DelayedDatagram>>,
    last_sequence: u64,
}

impl DelayQueue {
    /// Returns false if the queue is full.
    pub(crate) fn push(&mut self, due: Time, direction: Direction, peer: Gid, datagram: &[u8]) -> bool {
        if self.heap.len() >= CAPACITY {
            return false;
        }
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.heap.push(Reverse(DelayedDatagram {
            due,
            sequence,
            direction,
            peer,
            datagram: datagram.into(),
        }));
        true
    }

    pub(crate) fn next_due(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(delayed)| delayed.due)
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<DelayedDatagram> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(delayed)| delayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_leave_in_order_of_due_time_and_arrival() {
        let mut queue = DelayQueue::default();
        let gid = Gid([0; 16]);
        for (due, byte) in [(30, 1), (10, 2), (10, 3), (20, 4)] {
            assert!(queue.push(Time::from_nanos(due), Direction::Transmit(0), gid, &[byte]));
        }
        assert!(queue.pop_due(Time::from_nanos(9)).is_none());
        let now = Time::from_nanos(20);
        let order: Vec<u8> =
            std::iter::from_fn(|| queue.pop_due(now)).map(|delayed| delayed.datagram[0]).collect();
        assert_eq!(order, [2, 3, 4]);
        assert_eq!(queue.next_due(), Some(Time::from_nanos(30)));
    }
}
