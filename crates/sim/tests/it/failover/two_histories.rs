//! The two histories of an operation whose completion is missing when its rail fails: the operation
//! was not executed, or it was executed and its acknowledgement was lost. The requester sees the
//! same in both. So does a READ of the memory if a program has reset the word in the meantime (the
//! ABA problem). No policy can decide from the requester's view alone. The policy `exact` decides
//! from the responder's evidence.

use core::time::Duration;

use crate::vqp_pair::{VqpPair, config};
use mitra_failover::{Config, Outcome, Policy, UnresolvedError};
use mitra_sim::{Failure, Stage};
use mitra_verbs::{Data, SendOp};

/// The number of polls after which a move is over.
const SETTLE_POLLS: usize = 4_000;
/// The word of the operation, and the place of its value at the requester.
const WORD: u64 = 0;
const RESULT: u64 = 64;
/// What the place of the value contains before the operation completes.
const NO_VALUE: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum History {
    NotExecuted,
    /// The operation was executed. The responder's program then sets the word to its first value.
    ExecutedAndReset,
}

const HISTORIES: [History; 2] = [History::NotExecuted, History::ExecutedAndReset];

/// The result of a history under a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End {
    outcome: Option<Outcome>,
    value: u64,
    word: u64,
    executions: u64,
}

/// What the requester sees when the rail has failed and the recovery has not begun: its
/// completions, its memory, and the word.
type View = (Vec<u64>, u64, u64);

/// Posts one atomic that changes the word from 0 to 1. The link fails as the history says, and the
/// vQP moves to the other rail.
fn run(history: History, policy: Policy, op: fn(&VqpPair) -> SendOp) -> (View, End) {
    let mut pair = VqpPair::new(2, Config { policy, ..config() });
    pair.memory[0].store(RESULT as usize, NO_VALUE);
    pair.poll_times(&[0, 1], 20);
    let [a, b] = pair.testbed.rail(0);
    let (observer, stage) = match history {
        History::NotExecuted => (a, Stage::RequestOnWire),
        History::ExecutedAndReset => (b, Stage::AckOnWire),
    };
    pair.testbed.world.fail_at_stage(observer, stage, 1, &[(a, Failure::LinkDown)], None);
    let result = Data::sge(pair.mr[0].sge(RESULT, 8));
    let op = op(&pair);
    pair.send(0, 1, op, result);
    pair.testbed.world.run_for(Duration::from_micros(100));
    assert!(pair.testbed.world.stage_reached(observer), "the link has failed");
    let first = pair.memory[1].load(WORD as usize);
    assert_eq!(first, u64::from(history == History::ExecutedAndReset), "{history:?}");
    pair.memory[1].store(WORD as usize, 0);
    let completed = pair.completions[0].iter().map(|completion| completion.wr_id).collect();
    let view = (completed, pair.memory[0].load(RESULT as usize), pair.memory[1].load(WORD as usize));
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    let word = pair.memory[1].load(WORD as usize);
    let value = pair.memory[0].load(RESULT as usize);
    (view, End { outcome: pair.outcome(0, 1, false), value, word, executions: first + word })
}

fn compare_swap(pair: &VqpPair) -> SendOp {
    SendOp::CompareSwap { remote: pair.remote(1, WORD), compare: 0, swap: 1 }
}

fn fetch_add(pair: &VqpPair) -> SendOp {
    SendOp::FetchAdd { remote: pair.remote(1, WORD), add: 1 }
}

/// Returns the end of each history under a policy. Checks that the requester has seen the same in
/// both histories.
fn ends(policy: Policy, op: fn(&VqpPair) -> SendOp) -> [End; 2] {
    let [(first, not_executed), (second, executed)] = HISTORIES.map(|history| run(history, policy, op));
    assert_eq!(first, second, "the requester and the memory tell the histories apart");
    assert_eq!(first, (vec![], NO_VALUE, 0));
    [not_executed, executed]
}

#[test]
fn exact_executes_an_atomic_once_in_both_histories_and_returns_its_value() {
    for op in [compare_swap, fetch_add] {
        let success = Some(Outcome::Success);
        let [not_executed, executed] = ends(Policy::Exact, op);
        assert_eq!(not_executed, End { outcome: success, value: 0, word: 1, executions: 1 });
        assert_eq!(executed, End { outcome: success, value: 0, word: 0, executions: 1 });
    }
}

/// A second CAS may succeed after the first one succeeded, because a program may have reset the
/// word.
#[test]
fn blanket_executes_an_atomic_twice_in_one_history() {
    for op in [compare_swap, fetch_add] {
        let success = Some(Outcome::Success);
        let [not_executed, executed] = ends(Policy::Blanket, op);
        assert_eq!(not_executed, End { outcome: success, value: 0, word: 1, executions: 1 });
        assert_eq!(executed, End { outcome: success, value: 0, word: 1, executions: 2 });
    }
}

/// Without evidence, the right decision for one history is wrong for the other.
#[test]
fn transparent_refuses_to_decide_an_atomic() {
    for op in [compare_swap, fetch_add] {
        let indeterminate = Some(Outcome::Unresolved(UnresolvedError::Indeterminate));
        for (end, executions) in ends(Policy::Transparent, op).into_iter().zip([0, 1]) {
            assert_eq!(end, End { outcome: indeterminate, value: NO_VALUE, word: 0, executions });
        }
    }
}
