//! Datagrams that a noisy rail holds back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use mitra_verbs::{Gid, Time};

/// Datagrams to hold back at once; what exceeds it is lost, as on a real rail.
const BOUND: usize = 4096;

/// Which way a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    Out,
    /// To this multicast group, if to one.
    In(Option<Gid>),
}

/// A datagram held back: without valid ICRC on its way out, checked on its way in.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Late {
    due: Time,
    /// Breaks ties in the order of arrival.
    number: u64,
    pub(crate) way: Way,
    pub(crate) peer: Gid,
    pub(crate) datagram: Box<[u8]>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Delayed {
    heap: BinaryHeap<Reverse<Late>>,
    count: u64,
}

impl Delayed {
    /// Holds a datagram back until `due`; false if it is lost instead.
    pub(crate) fn push(&mut self, due: Time, way: Way, peer: Gid, datagram: &[u8]) -> bool {
        if self.heap.len() >= BOUND {
            return false;
        }
        self.count += 1;
        self.heap.push(Reverse(Late { due, number: self.count, way, peer, datagram: datagram.into() }));
        true
    }

    /// When the next is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(late)| late.due)
    }

    /// The next that is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Late> {
        if self.next_due()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(late)| late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_when_due_in_order() {
        let mut delayed = Delayed::default();
        let gid = Gid([0; 16]);
        for (due, byte) in [(30, 1), (10, 2), (10, 3), (20, 4)] {
            assert!(delayed.push(Time::from_nanos(due), Way::Out, gid, &[byte]));
        }
        assert!(delayed.pop_due(Time::from_nanos(9)).is_none());
        let now = Time::from_nanos(20);
        let order: Vec<u8> =
            std::iter::from_fn(|| delayed.pop_due(now)).map(|late| late.datagram[0]).collect();
        assert_eq!(order, [2, 3, 4]);
        assert_eq!(delayed.next_due(), Some(Time::from_nanos(30)));
    }
}
