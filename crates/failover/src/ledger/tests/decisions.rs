//! Tests of the counts of a decision, and of the operations that it ends.

use mitra_verbs::{Data, Key, Mtu, Psn, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode, WcStatus};

use super::{FIRST_PSN, decide, executed, fetch_add, ledger, outcomes, post_all, read, write};
use crate::completion::{Outcome, UnresolvedError};
use crate::config::{Service, WritePolicy};
use crate::evidence::Evidence;
use crate::ledger::{Ledger, RecoveryStats};

fn send() -> SendWr {
    SendWr { op: SendOp::Send, ..write(false, 8) }
}

fn in_flight(requests: impl IntoIterator<Item = SendWr>) -> Ledger {
    let mut ledger = ledger();
    for wr in requests {
        ledger.push(wr, WritePolicy::Strict);
    }
    post_all(&mut ledger);
    ledger
}

#[test]
fn statistics_count_each_operation_in_flight_once() {
    let mut ledger = in_flight([write(false, 300), write(false, 2000), write(false, 100)]);
    // The peer executed the first WRITE and 3 packets of the second WRITE.
    let expected = RecoveryStats {
        in_flight: 3,
        executed: 1,
        torn: 1,
        replayed: 2,
        packets_replayed: 5 + 1,
        bytes_in_flight: 2400,
        bytes_replayed: 2000 - 768 + 100,
        carried_data: true,
        ..RecoveryStats::default()
    };
    assert_eq!(decide(&mut ledger, &executed(2 + 3)), expected);

    let mut ledger = in_flight([write(false, 8), write(false, 8)]);
    let expected =
        RecoveryStats { in_flight: 2, ambiguous: 2, failed: 2, bytes_in_flight: 16, ..Default::default() };
    assert_eq!(decide(&mut ledger, &Evidence::default()), expected);
}

/// An executed READ does not count, because its data is in the response.
#[test]
fn rail_carried_data_if_the_peer_executed_a_part_of_a_change_or_lacked_a_receive() {
    let carried = |requests: &[SendWr], evidence: Evidence| {
        decide(&mut in_flight(requests.iter().cloned()), &evidence).carried_data
    };
    assert!(!carried(&[read()], executed(1)));
    assert!(!carried(&[read(), send()], executed(1)));
    assert!(carried(&[read(), send()], Evidence { lacks_receive: true, ..executed(1) }));
    assert!(!carried(&[read(), write(false, 8)], Evidence { lacks_receive: true, ..executed(1) }));
    assert!(carried(&[write(false, 8), read()], executed(1)));
}

/// The shared backup distinguishes its users by the `wr_id`.
#[test]
fn refusal_ends_the_later_operations_of_its_user_only() {
    let of_user = |user| SendWr { wr_id: user, ..write(false, 8) };
    let mut ledger = in_flight([1, 2, 1, 2].map(of_user));
    for user in [1, 2] {
        ledger.push(of_user(user), WritePolicy::Strict);
    }
    ledger.refuse(1, WcStatus::RemoteAccess);
    assert!(ledger.has_done() && ledger.is_in_flight(1), "the operation before it has succeeded");
    ledger.refuse(3, WcStatus::RemoteOperation); // ignored: the queue pair has stopped at operation 1
    decide(&mut ledger, &executed(1));
    let again: Vec<_> = core::iter::from_fn(|| ledger.next_posting().map(|p| p.wr.wr_id)).collect();
    assert_eq!(again, [2, 4]);
    assert!(ledger.complete(4, 0) && !ledger.is_halted());
    let flushed = Outcome::Failed(WcStatus::Flushed);
    let refused = Outcome::Failed(WcStatus::RemoteAccess);
    let expected = [Outcome::Success, refused, Outcome::Success, flushed, Outcome::Success, flushed];
    assert_eq!(outcomes(&mut ledger), expected);
}

#[test]
fn write_that_was_not_executed_and_is_not_sent_again_is_flushed() {
    let mut ledger = in_flight([write(false, 8)]);
    decide(&mut ledger, &executed(0));
    ledger.abandon(UnresolvedError::ValueLost);
    assert_eq!(outcomes(&mut ledger), [Outcome::Failed(WcStatus::Flushed)]);
}

#[test]
fn recovered_read_reports_its_length() {
    // The peer executed the fenced WRITE, so the READ had received its data.
    let mut ledger = in_flight([read(), write(false, 8).with_flags(SendFlags::FENCE)]);
    decide(&mut ledger, &executed(2));
    // Only the READ is signalled.
    assert_eq!(
        ledger.pop().map(|c| (c.opcode, c.outcome, c.byte_len)),
        Some((WcOpcode::Read, Outcome::Success, 8))
    );
}

/// Some NICs treat an entry of length 0 as 2³¹ bytes.
#[test]
fn rest_of_a_torn_write_has_no_empty_entry() {
    let sge = |addr, len| Sge { addr, len, key: Key(2) };
    let list = SgeList::from_slice(&[sge(0x1000, 256), sge(0x2000, 300), sge(0x3000, 10)]);
    let mut ledger = in_flight([SendWr { data: Data::Sges(list), ..write(false, 0) }]);
    decide(&mut ledger, &executed(1));
    let rest = |ledger: &Ledger| match &ledger.ops[0].wr.data {
        Data::Sges(list) => list.to_vec(),
        Data::Inline(_) => Vec::new(),
    };
    assert_eq!(rest(&ledger), [sge(0x2000, 300), sge(0x3000, 10)]);
    post_all(&mut ledger);
    decide(&mut ledger, &executed(1));
    assert_eq!(rest(&ledger), [sge(0x2000 + 256, 44), sge(0x3000, 10)]);
}

#[test]
fn message_of_an_unreliable_connection_is_not_sent_again() {
    let mut ledger = ledger().with_service(Service::Unreliable);
    ledger.push(send(), WritePolicy::Strict);
    post_all(&mut ledger);
    decide(&mut ledger, &Evidence::default());
    assert!(ledger.has_done() && ledger.next_posting().is_none());
}

/// The rail has delivered the value of an atomic that it completed, so no saved result is needed.
#[test]
fn atomic_that_the_rail_completed_needs_no_saved_result() {
    let mut ledger = Ledger::new(8, 4, true, Mtu::M256, Psn::new(FIRST_PSN));
    ledger.set_durable(true);
    ledger.push(fetch_add(), WritePolicy::Strict);
    ledger.push(fetch_add(), WritePolicy::Strict);
    post_all(&mut ledger);
    assert!(ledger.complete(0, 8) && !ledger.has_done());
    // The peer executed both atomics and their log entries.
    decide(&mut ledger, &Evidence { log: Some(1), ..executed(4) });
    assert!(ledger.has_done());
    let value_lost = Outcome::Unresolved(UnresolvedError::ValueLost);
    assert_eq!(outcomes(&mut ledger), [Outcome::Success, value_lost]);
}
