mod closing;
mod decisions;
mod draining;
mod durable;
mod limits;

use mitra_verbs::{Data, Key, Mtu, Psn, RemoteAddr, SendOp, SendWr, Sge, WcStatus};

use super::{Ledger, RecoveryInput, RecoveryStats};
use crate::completion::{Outcome, UnresolvedError};
use crate::config::{Policy, WritePolicy};
use crate::evidence::{Evidence, Placed};

/// The first PSN of every rail, just before the wrap at 2^24.
const FIRST_PSN: u32 = 0xff_fffe;

fn write(imm: bool, len: u32) -> SendWr {
    let at = RemoteAddr { addr: 0, rkey: Key(1) };
    let op = if imm { SendOp::WriteWithImm(at, 7) } else { SendOp::Write(at) };
    SendWr::new(9, op, Data::sge(Sge { addr: 0, len, key: Key(2) }))
}

fn fetch_add() -> SendWr {
    let op = SendOp::FetchAdd { remote: RemoteAddr { addr: 0, rkey: Key(1) }, add: 1 };
    SendWr::new(9, op, Data::sge(Sge { addr: 0, len: 8, key: Key(2) }))
}

fn ledger() -> Ledger {
    Ledger::new(8, 4, false, Mtu::M256, Psn::new(FIRST_PSN))
}

fn post_all(ledger: &mut Ledger) {
    while ledger.next_posting().is_some() {}
}

fn executed(packets: u32) -> Evidence {
    Evidence { psn: Some(Psn::new(FIRST_PSN).add(packets)), ..Evidence::default() }
}

fn decide(ledger: &mut Ledger, evidence: &Evidence) -> RecoveryStats {
    let input = RecoveryInput {
        policy: Policy::Exact,
        evidence,
        local_placed: true,
        acks_after_placement: true,
        first_psn: Psn::new(FIRST_PSN),
        durable: false,
    };
    ledger.decide(&input, &mut Vec::new()).unwrap()
}

// Hazard: the same request fails twice
#[test]
fn write_imm_torn_twice_reports_the_bytes_of_all_earlier_rails() {
    let mut ledger = ledger();
    ledger.push(write(true, 2000), WritePolicy::Strict); // 8 packets
    post_all(&mut ledger);
    assert_eq!(decide(&mut ledger, &executed(2)).imm_bytes_kept, 512);
    post_all(&mut ledger);
    assert_eq!(decide(&mut ledger, &executed(3)).imm_bytes_kept, 512 + 768);
    post_all(&mut ledger);
    // The third rail executed no part of the WRITE. The bytes that the first two rails placed still
    // count.
    let stats = decide(&mut ledger, &executed(0));
    assert_eq!((stats.imm_bytes_kept, stats.bytes_replayed), (1280, 720));
}

#[test]
fn write_torn_on_an_earlier_rail_is_never_flushed() {
    let mut ledger = ledger();
    ledger.push(write(false, 2000), WritePolicy::Strict);
    post_all(&mut ledger);
    decide(&mut ledger, &executed(2));
    // The vQP closes before it posts the rest. `ValueLost` is only an example of an error.
    ledger.abandon(UnresolvedError::ValueLost);
    assert_eq!(ledger.pop().map(|c| c.outcome), Some(Outcome::Unresolved(UnresolvedError::ValueLost)));
}

#[test]
fn write_repeated_without_evidence_is_never_flushed() {
    let mut ledger = ledger();
    ledger.push(write(false, 8), WritePolicy::Repeatable);
    ledger.push(write(false, 8), WritePolicy::Strict);
    post_all(&mut ledger);
    decide(&mut ledger, &executed(1)); // the first WRITE only
    assert!(ledger.pop().is_some_and(|c| c.outcome == Outcome::Success));
    ledger.push(write(false, 8), WritePolicy::Repeatable);
    post_all(&mut ledger);
    // Without evidence, the strict WRITE ends in `Indeterminate`, and so does the repeatable WRITE
    // after it.
    decide(&mut ledger, &Evidence::default());
    assert_eq!(outcomes(&mut ledger), [Outcome::Unresolved(UnresolvedError::Indeterminate); 2]);
}

#[test]
fn remote_error_flushes_and_local_error_leaves_later_operations_unresolved() {
    for (status, later_outcome) in [
        (WcStatus::RemoteAccess, Outcome::Failed(WcStatus::Flushed)),
        (WcStatus::LocalProtection, Outcome::Unresolved(UnresolvedError::Indeterminate)),
    ] {
        let mut ledger = ledger();
        for _ in 0..3 {
            ledger.push(write(false, 8), WritePolicy::Strict);
        }
        post_all(&mut ledger);
        ledger.fail(1, status, UnresolvedError::Indeterminate);
        assert_eq!(outcomes(&mut ledger), [Outcome::Success, Outcome::Failed(status), later_outcome]);
    }
}

/// The NIC repeats a READ whose response is lost. The responder may refuse the repetition, because
/// an operation behind it has ended access to the memory.
#[test]
fn operations_behind_a_refused_read_may_have_been_executed() {
    let mut ledger = ledger();
    let read = SendOp::Read(RemoteAddr { addr: 0, rkey: Key(1) });
    ledger.push(SendWr::new(9, read, Data::sge(Sge { addr: 0, len: 8, key: Key(2) })), WritePolicy::Strict);
    ledger.push(write(false, 8), WritePolicy::Strict);
    post_all(&mut ledger);
    ledger.push(write(false, 8), WritePolicy::Strict);
    ledger.fail(0, WcStatus::RemoteAccess, UnresolvedError::Indeterminate);
    assert_eq!(
        outcomes(&mut ledger),
        [
            Outcome::Failed(WcStatus::RemoteAccess),
            Outcome::Unresolved(UnresolvedError::Indeterminate),
            Outcome::Failed(WcStatus::Flushed) // it was never sent
        ]
    );
}

fn logged(ledger: &mut Ledger) -> Vec<u64> {
    let mut logged = Vec::new();
    while let Some(posting) = ledger.next_posting() {
        logged.extend(posting.log_seq);
    }
    logged
}

#[test]
fn entry_follows_every_third_write_and_every_atomic() {
    let log = |interval| Ledger::new(16, 4, true, Mtu::M256, Psn::new(FIRST_PSN)).with_log_interval(interval);
    let push_all = |ledger: &mut Ledger| {
        for i in 0..9 {
            // Operation 4 is an atomic.
            let wr = if i == 4 { fetch_add() } else { write(false, 8) };
            ledger.push(wr, WritePolicy::Strict);
        }
    };
    for (interval, expected) in [(0, (0..9).collect()), (1, (0..9).collect()), (3, vec![2, 4, 7])] {
        let mut ledger = log(interval);
        push_all(&mut ledger);
        assert_eq!(logged(&mut ledger), expected, "interval {interval}");
    }
    // A failover begins a new count. By the PSN, the responder executed the first two WRITEs and no
    // entry.
    let mut ledger = log(3);
    push_all(&mut ledger);
    assert_eq!(logged(&mut ledger), [2, 4, 7]);
    assert_eq!(decide(&mut ledger, &executed(2)).executed, 2);
    while ledger.pop().is_some() {}
    assert_eq!(logged(&mut ledger), [4, 7]);
}

#[test]
fn replays_are_told_from_new_operations_behind_them() {
    let mut ledger = ledger();
    ledger.push(write(false, 8), WritePolicy::Strict);
    assert!(!ledger.next_is_replay(), "the operation is new");
    ledger.push(write(false, 8), WritePolicy::Strict);
    ledger.push(write(false, 8), WritePolicy::Strict);
    post_all(&mut ledger);
    assert!(!ledger.next_is_replay(), "nothing is pending");
    assert_eq!(decide(&mut ledger, &executed(1)).replayed, 2);
    ledger.push(write(false, 8), WritePolicy::Strict);
    for _ in 0..2 {
        assert!(ledger.next_is_replay());
        ledger.next_posting().unwrap();
    }
    assert!(!ledger.next_is_replay(), "the last operation is new");
}

/// Each operation reuses the slot of an operation of the round before.
// Hazard: a completion lands in a recycled slot
#[test]
fn completion_of_an_earlier_operation_ends_no_operation_in_its_recycled_slot() {
    let mut ledger = ledger();
    for round in 0..3 {
        (0..8).for_each(|_| _ = ledger.push(write(false, 8), WritePolicy::Strict));
        post_all(&mut ledger);
        for late in 0..8 * round {
            assert!(!ledger.complete(late, 0), "operation {late} has left the ledger");
            ledger.fail(late, WcStatus::RemoteAccess, UnresolvedError::Indeterminate);
        }
        assert!(ledger.pop().is_none() && !ledger.is_halted(), "no operation of round {round} has ended");
        assert!(ledger.complete(8 * round + 7, 0));
        let ended: Vec<_> = core::iter::from_fn(|| ledger.pop()).map(|c| c.seq).collect();
        assert_eq!(ended, (8 * round..8 * round + 8).collect::<Vec<_>>());
    }
}

/// The shared backup reports one of several operations in flight as not executed, and later ones as
/// unresolved.
#[test]
fn operation_that_was_not_executed_leaves_later_ones_in_flight() {
    let mut ledger = ledger();
    let seqs = [read(), write(false, 8), write(false, 8)].map(|wr| ledger.push(wr, WritePolicy::Strict));
    post_all(&mut ledger);
    ledger.unpost(seqs[0]);
    assert!(!ledger.is_in_flight(seqs[0]) && ledger.is_in_flight(seqs[1]) && ledger.is_in_flight(seqs[2]));
    let indeterminate = Outcome::Unresolved(UnresolvedError::Indeterminate);
    ledger.end(seqs[1], indeterminate);
    ledger.end(seqs[2], indeterminate);
    assert!(ledger.pop().is_none(), "the READ is before the error and is sent again");
    assert_eq!(ledger.next_posting().map(|posting| posting.wr.wr_id), Some(seqs[0]));
    ledger.complete(seqs[0], 8);
    assert_eq!(outcomes(&mut ledger), [Outcome::Success, indeterminate, indeterminate]);
}

/// An operation that is posted again is executed after the operations that were posted in the
/// meantime.
#[test]
fn completion_does_not_end_an_earlier_operation_that_was_posted_later() {
    let mut ledger = ledger();
    let seqs = [(); 3].map(|()| ledger.push(write(false, 8), WritePolicy::Strict));
    post_all(&mut ledger);
    ledger.unpost(seqs[0]);
    ledger.complete(seqs[1], 0);
    post_all(&mut ledger);
    ledger.complete(seqs[2], 0);
    assert_eq!(seqs.map(|seq| ledger.is_in_flight(seq)), [true, false, false]);
}

#[test]
fn cancelled_operations_are_not_sent_again() {
    let mut ledger = ledger();
    let of_user = |user| SendWr { wr_id: user, ..write(false, 8) };
    for user in [1, 2, 1] {
        ledger.push(of_user(user), WritePolicy::Strict);
    }
    post_all(&mut ledger);
    ledger.push(of_user(1), WritePolicy::Strict);
    ledger.cancel(1);
    decide(&mut ledger, &executed(0));
    let again: Vec<_> = core::iter::from_fn(|| ledger.next_posting().map(|p| p.wr.wr_id)).collect();
    assert_eq!(
        (again, ledger.is_halted()),
        (vec![1], false),
        "only the operation of user 2, by its sequence number"
    );
}

/// A refusal proves that the peer's NIC has acknowledged the earlier operations. It does not prove
/// that they are in memory.
#[test]
fn refused_operation_completes_no_earlier_one_that_the_peer_has_not_seen() {
    let mut ledger = Ledger::new(8, 4, true, Mtu::M256, Psn::new(FIRST_PSN));
    ledger.set_durable(true);
    for _ in 0..2 {
        ledger.push(write(false, 8), WritePolicy::Strict);
    }
    post_all(&mut ledger);
    ledger.refuse(1, WcStatus::RemoteAccess);
    assert!(!ledger.has_done());
    ledger.confirm(Placed { log: Some(0), received: 0 });
    assert!(ledger.has_done());
}

fn read() -> SendWr {
    let at = RemoteAddr { addr: 0, rkey: Key(1) };
    SendWr::new(9, SendOp::Read(at), Data::sge(Sge { addr: 0, len: 8, key: Key(2) }))
}

/// Returns a ledger whose READ is sent again, in front of an executed WRITE and an atomic that may
/// have been executed.
fn read_before_an_error() -> Ledger {
    let mut ledger = Ledger::new(8, 4, true, Mtu::M256, Psn::new(FIRST_PSN));
    ledger.push(read(), WritePolicy::Strict);
    ledger.push(write(false, 8), WritePolicy::Strict);
    ledger.push(fetch_add(), WritePolicy::Strict);
    post_all(&mut ledger);
    ledger.push(write(false, 8), WritePolicy::Strict);
    decide(&mut ledger, &Evidence { log: Some(1), ..Evidence::default() });
    assert!(ledger.is_halted());
    ledger
}

fn outcomes(ledger: &mut Ledger) -> Vec<Outcome> {
    core::iter::from_fn(|| ledger.pop()).map(|c| c.outcome).collect()
}

#[test]
fn read_before_an_error_is_sent_again() {
    let mut ledger = read_before_an_error();
    assert!(ledger.pop().is_none(), "the READ has not ended");
    assert_eq!(ledger.next_posting().map(|posting| posting.wr.wr_id), Some(0));
    assert!(ledger.complete(0, 8));
    let indeterminate = Outcome::Unresolved(UnresolvedError::Indeterminate);
    let ended = [Outcome::Success, Outcome::Success, indeterminate, Outcome::Failed(WcStatus::Flushed)];
    assert_eq!(outcomes(&mut ledger), ended);
}

#[test]
fn no_operation_succeeds_behind_a_read_that_fails_when_it_is_sent_again() {
    let executed = Outcome::Unresolved(UnresolvedError::ExecutedBehindError);
    let first_two = |ledger: &mut Ledger| outcomes(ledger)[..2].to_vec();

    let mut ledger = read_before_an_error();
    post_all(&mut ledger);
    ledger.fail(0, WcStatus::RemoteAccess, UnresolvedError::Indeterminate);
    assert_eq!(first_two(&mut ledger), [Outcome::Failed(WcStatus::RemoteAccess), executed]);

    let mut ledger = read_before_an_error();
    post_all(&mut ledger);
    ledger.abandon(UnresolvedError::Indeterminate);
    assert_eq!(first_two(&mut ledger), [Outcome::Unresolved(UnresolvedError::Indeterminate), executed]);

    let mut ledger = read_before_an_error();
    post_all(&mut ledger);
    ledger.end(0, Outcome::Unresolved(UnresolvedError::ValueLost));
    assert!(ledger.is_behind_error(1) && !ledger.is_behind_error(0));
    assert_eq!(first_two(&mut ledger), [Outcome::Unresolved(UnresolvedError::ValueLost), executed]);
    assert!(ledger.is_behind_error(4), "the error has left the ledger");
    ledger.resume();
    assert!(!ledger.is_behind_error(4));
}
