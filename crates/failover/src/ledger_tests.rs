//! The book across two failures in a row.

use mitra_verbs::{Data, Key, Mtu, Psn, RemoteAddr, SendOp, SendWr, Sge, WcStatus};

use crate::config::{Policy, WritePolicy};
use crate::evidence::Evidence;
use crate::ledger::{Ledger, RecoveryStats};
use crate::outcome::{Outcome, UnresolvedError};

const FIRST: u32 = 0xff_fffe; // so that the PSNs wrap

fn write(imm: bool, len: u32) -> SendWr {
    let at = RemoteAddr { addr: 0, rkey: Key(1) };
    let op = if imm { SendOp::WriteWithImm(at, 7) } else { SendOp::Write(at) };
    SendWr::new(9, op, Data::sge(Sge { addr: 0, len, key: Key(2) }))
}

fn book() -> Ledger {
    Ledger::new(8, 4, false, Mtu::M256, Psn::new(FIRST))
}

fn post_all(book: &mut Ledger) {
    while book.next_posting().is_some() {}
}

/// Every rail of these tests begins with the same PSN; so many packets were executed.
fn executed(packets: u32) -> Evidence {
    Evidence { psn: Some(Psn::new(FIRST).add(packets)), ..Evidence::default() }
}

fn decide(book: &mut Ledger, theirs: &Evidence) -> RecoveryStats {
    book.decide(Policy::Exact, theirs, true, true, Psn::new(FIRST), &mut Vec::new()).unwrap()
}

#[test]
fn a_write_with_immediate_that_is_torn_twice_counts_what_all_earlier_rails_took() {
    let mut book = book();
    book.push(write(true, 2000), WritePolicy::Strict).unwrap(); // 8 packets
    post_all(&mut book);
    assert_eq!(decide(&mut book, &executed(2)).imm_bytes_kept, 512);
    post_all(&mut book);
    assert_eq!(decide(&mut book, &executed(3)).imm_bytes_kept, 512 + 768);
    post_all(&mut book);
    // Nothing of it went over the third rail: what the first two took still counts.
    let tally = decide(&mut book, &executed(0));
    assert_eq!((tally.imm_bytes_kept, tally.bytes_replayed), (1280, 720));
}

#[test]
fn what_was_torn_on_an_earlier_rail_is_never_called_flushed() {
    let mut book = book();
    book.push(write(false, 2000), WritePolicy::Strict).unwrap();
    post_all(&mut book);
    decide(&mut book, &executed(2));
    book.abandon(UnresolvedError::ValueLost); // stands for any reason; it was not posted again yet
    assert_eq!(book.pop().map(|c| c.outcome), Some(Outcome::Unresolved(UnresolvedError::ValueLost)));
}

#[test]
fn what_was_repeated_after_no_evidence_is_never_called_flushed() {
    let mut book = book();
    book.push(write(false, 8), WritePolicy::Repeatable).unwrap();
    book.push(write(false, 8), WritePolicy::Strict).unwrap();
    post_all(&mut book);
    decide(&mut book, &executed(1)); // the first was executed, the second not
    assert!(book.pop().is_some_and(|c| c.outcome == Outcome::Success));
    book.push(write(false, 8), WritePolicy::Repeatable).unwrap();
    post_all(&mut book);
    // Without evidence the strict one is indeterminate, and so is the repeatable one behind it.
    decide(&mut book, &Evidence::default());
    let outcomes: Vec<_> = core::iter::from_fn(|| book.pop()).map(|c| c.outcome).collect();
    assert_eq!(outcomes, [Outcome::Unresolved(UnresolvedError::Indeterminate); 2]);
}

#[test]
fn a_refusal_by_the_responder_flushes_and_an_error_of_ones_own_decides_nothing() {
    for (status, behind) in [
        (WcStatus::RemoteAccess, Outcome::Failed(WcStatus::Flushed)),
        (WcStatus::LocalProtection, Outcome::Unresolved(UnresolvedError::Indeterminate)),
    ] {
        let mut book = book();
        (0..3).for_each(|_| drop(book.push(write(false, 8), WritePolicy::Strict)));
        post_all(&mut book);
        book.failed(1, status, UnresolvedError::Indeterminate);
        let outcomes: Vec<_> = core::iter::from_fn(|| book.pop()).map(|c| c.outcome).collect();
        assert_eq!(outcomes, [Outcome::Success, Outcome::Failed(status), behind]);
    }
}
