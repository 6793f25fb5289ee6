//! Durable completions.

use mitra_verbs::{Mtu, Psn, SendOp, SendWr, WcStatus};

use super::{FIRST_PSN, outcomes, post_all, read, write};
use crate::completion::{Outcome, UnresolvedError};
use crate::config::WritePolicy;
use crate::evidence::Placed;
use crate::ledger::Ledger;

fn send() -> SendWr {
    SendWr { op: SendOp::Send, ..write(false, 8) }
}

fn in_flight<const N: usize>(requests: [SendWr; N]) -> Ledger {
    let mut ledger = Ledger::new(8, 4, true, Mtu::M256, Psn::new(FIRST_PSN));
    ledger.set_durable(true);
    for wr in requests {
        ledger.push(wr, WritePolicy::Strict);
    }
    post_all(&mut ledger);
    ledger
}

fn ended<const N: usize>(ledger: &Ledger) -> [bool; N] {
    core::array::from_fn(|seq| !ledger.is_in_flight(seq as u64))
}

#[test]
fn operation_ends_when_rail_and_peer_have_confirmed_it() {
    let placed = |log| Placed { log: Some(log), received: 0 };
    let mut ledger = in_flight([write(false, 8), write(false, 8)]);
    ledger.confirm(placed(0));
    assert_eq!((ended(&ledger), ledger.awaits_placement()), ([false, false], false), "the rail has not");
    ledger.complete(1, 0);
    assert_eq!((ended(&ledger), ledger.awaits_placement()), ([true, false], false), "the front has ended");
    assert!(ledger.pop().is_some());
    assert!(ledger.awaits_placement(), "the peer has not confirmed the second WRITE");
    ledger.confirm(placed(1));
    assert!(ledger.has_done() && !ledger.awaits_placement());
}

#[test]
fn completion_covers_its_own_operation_and_the_earlier_ones_only() {
    let mut ledger = in_flight([write(false, 8), write(false, 8), write(false, 8)]);
    ledger.confirm(Placed { log: Some(2), received: 0 });
    ledger.complete(0, 0);
    assert_eq!(ended(&ledger), [true, false, false]);
    ledger.complete(1, 0);
    assert_eq!(ended(&ledger), [true, true, false]);
}

#[test]
fn each_receive_confirms_one_message() {
    let mut ledger = in_flight([send(), read(), send(), send()]);
    ledger.complete(3, 0);
    for (received, expected) in [
        (0, [false, false, false, false]),
        (1, [true, true, false, false]),
        (2, [true, true, true, false]),
        (3, [true, true, true, true]),
    ] {
        ledger.confirm(Placed { log: None, received });
        assert_eq!(ended(&ledger), expected, "{received} receives");
    }
}

#[test]
fn confirmation_does_not_change_the_outcome_of_an_operation_that_has_ended() {
    let indeterminate = Outcome::Unresolved(UnresolvedError::Indeterminate);
    let mut ledger = in_flight([write(false, 8), write(false, 8)]);
    ledger.end(0, indeterminate);
    ledger.complete(1, 0);
    ledger.confirm(Placed { log: Some(1), received: 0 });
    assert_eq!(ledger.pop().map(|c| c.outcome), Some(indeterminate));
}

/// The peer may not have seen the operations before the failed one.
#[test]
fn failed_operation_leaves_the_earlier_ones_undecided() {
    let undecided = UnresolvedError::Indeterminate;
    let mut ledger = in_flight([write(false, 8), write(false, 8), write(false, 8)]);
    ledger.fail(1, WcStatus::RemoteAccess, undecided);
    let expected = [
        Outcome::Unresolved(undecided),
        Outcome::Failed(WcStatus::RemoteAccess),
        Outcome::Failed(WcStatus::Flushed),
    ];
    assert_eq!(outcomes(&mut ledger), expected);
}
