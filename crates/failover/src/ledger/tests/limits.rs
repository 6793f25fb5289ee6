//! The limits on what is posted.

use mitra_verbs::{Data, Key, Mtu, Psn, SendFlags, SendOp, SendWr, WcStatus};

use super::{FIRST_PSN, fetch_add, ledger, outcomes, post_all, read, write};
use crate::completion::{Outcome, UnresolvedError};
use crate::config::WritePolicy;
use crate::ledger::{Ledger, MAX_PACKETS};

fn posted(ledger: &mut Ledger) -> Vec<u64> {
    core::iter::from_fn(|| ledger.next_posting().map(|posting| posting.wr.wr_id)).collect()
}

fn push_all<const N: usize>(ledger: &mut Ledger, requests: [SendWr; N]) {
    for wr in requests {
        ledger.push(wr, WritePolicy::Strict);
    }
}

fn invalidate() -> SendWr {
    SendWr::new(9, SendOp::LocalInvalidate(Key(3)), Data::empty())
}

fn packets(n: u32) -> SendWr {
    write(false, n.saturating_mul(256))
}

#[test]
fn no_more_operations_are_posted_than_the_rails_queue_has_room_for() {
    let mut ledger = ledger().with_max_posted(2);
    push_all(&mut ledger, [(); 3].map(|()| write(false, 8)));
    assert_eq!((ledger.first_seq(), posted(&mut ledger)), (0, vec![0, 1]));
    ledger.complete(0, 0);
    assert!(ledger.pop().is_some());
    assert_eq!((ledger.first_seq(), posted(&mut ledger)), (1, vec![2]));
}

#[test]
fn reads_and_atomics_in_flight_are_limited() {
    let mut ledger = Ledger::new(8, 2, false, Mtu::M256, Psn::new(FIRST_PSN));
    push_all(&mut ledger, [read(), fetch_add(), read()]);
    assert_eq!(posted(&mut ledger), [0, 1]);
    ledger.complete(0, 8);
    assert!(ledger.pop().is_some());
    assert_eq!(posted(&mut ledger), [2]);
}

/// Comparisons of PSNs need the limit. A single operation may exceed it.
#[test]
fn packets_in_flight_are_limited() {
    for (requests, expected) in [
        ([packets(MAX_PACKETS), packets(1)], vec![0]),
        ([packets(MAX_PACKETS - 1), packets(1)], vec![0, 1]),
        ([packets(MAX_PACKETS + 1), packets(1)], vec![0]),
        ([packets(2), packets(MAX_PACKETS - 1)], vec![0]),
    ] {
        let mut ledger = ledger();
        push_all(&mut ledger, requests);
        assert_eq!(posted(&mut ledger), expected);
    }
}

/// Unsignalled requests never fill the rail's queue.
#[test]
fn one_request_in_a_quarter_of_the_queue_is_signalled() {
    let mut ledger = ledger(); // a quarter of 8 is 2
    push_all(&mut ledger, [(); 7].map(|()| write(false, 8).with_flags(SendFlags::empty())));
    let signaled: Vec<bool> = core::iter::from_fn(|| {
        ledger.next_posting().map(|posting| posting.wr.flags.contains(SendFlags::SIGNALED))
    })
    .collect();
    assert_eq!(signaled, [false, false, true, false, false, true, false]);
}

#[test]
fn nothing_is_posted_behind_a_local_operation_in_flight() {
    let mut ledger = ledger();
    push_all(&mut ledger, [write(false, 8), invalidate(), write(false, 8)]);
    assert_eq!(posted(&mut ledger), [0, 1]);
    assert!(ledger.is_local(1) && !ledger.is_local(0) && !ledger.is_local(2));
    assert!(ledger.execute_locally(0).is_none(), "the operation is not a local one");
    assert_eq!(ledger.execute_locally(1), Some(SendOp::LocalInvalidate(Key(3))));
    assert!(ledger.has_done(), "the local operation waited for the WRITE");
    assert!(ledger.execute_locally(1).is_none(), "the operation is executed");
    assert!(ledger.next_posting().is_none(), "the other NICs have not executed it");
    ledger.complete(1, 0);
    assert_eq!(posted(&mut ledger), [2]);
}

#[test]
fn next_pending_operation_is_shown_although_a_limit_holds_it_back() {
    let mut ledger = ledger().with_max_posted(1);
    assert!(ledger.next_pending().is_none() && !ledger.has_in_flight());
    push_all(&mut ledger, [write(false, 8), read()]);
    assert!(!ledger.has_in_flight());
    assert_eq!(posted(&mut ledger), [0]);
    assert!(ledger.has_in_flight());
    assert_eq!(ledger.next_pending().map(|(wr, _)| wr.wr_id), Some(1));
    ledger.truncate(1);
    assert_eq!((ledger.next_pending().map(|(wr, _)| wr.wr_id), ledger.len()), (None, 1));
}

#[test]
fn operations_behind_one_that_cannot_be_posted_are_pending_again() {
    for unpostable in [1, 2] {
        let mut ledger = ledger();
        push_all(&mut ledger, [(); 4].map(|()| write(false, 8)));
        post_all(&mut ledger);
        ledger.fail_unpostable(unpostable, WcStatus::LocalQpOperation);
        let in_flight: Vec<bool> = (0..4).map(|seq| ledger.is_in_flight(seq)).collect();
        assert_eq!(in_flight, [0, 1, 2, 3].map(|seq| seq < unpostable));
        ledger.complete(unpostable - 1, 0);
        let last = outcomes(&mut ledger).pop();
        assert_eq!(last, Some(Outcome::Failed(WcStatus::LocalQpOperation)));
    }
}

/// The queue pair accepted operation 1 and refused the rest of the list.
#[test]
fn operation_before_an_unpostable_one_stays_in_flight() {
    let mut ledger = ledger();
    push_all(&mut ledger, [(); 3].map(|()| write(false, 8)));
    post_all(&mut ledger);
    ledger.unpost_after(1);
    assert_eq!([0, 1, 2].map(|seq| ledger.is_in_flight(seq)), [true, true, false]);
}

#[test]
fn value_that_could_not_be_stored_is_reported_as_lost() {
    let mut ledger = ledger();
    push_all(&mut ledger, [fetch_add()]);
    post_all(&mut ledger);
    ledger.lose_value(0);
    assert_eq!(ledger.pop().map(|c| c.outcome), Some(Outcome::Unresolved(UnresolvedError::ValueLost)));
}

#[test]
fn error_flushes_what_is_pending_behind_it() {
    let mut ledger = ledger().with_max_posted(2);
    push_all(&mut ledger, [(); 3].map(|()| write(false, 8)));
    post_all(&mut ledger);
    ledger.end(1, Outcome::Unresolved(UnresolvedError::Indeterminate));
    assert!(ledger.pop().is_none(), "the first operation is in flight");
    ledger.complete(0, 0);
    let unresolved = Outcome::Unresolved(UnresolvedError::Indeterminate);
    let expected = [Outcome::Success, unresolved, Outcome::Failed(WcStatus::Flushed)];
    assert_eq!(outcomes(&mut ledger), expected);
}
