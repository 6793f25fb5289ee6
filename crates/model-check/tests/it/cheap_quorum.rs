//! Cheap Quorum among Byzantine processes, with all its rules, and mutants without one of them.

use crate::common::byzantine_set;
use crate::common::explorations::{Reads, finds_nothing};
use std::cell::Cell;

use mitra_consensus::cheap_quorum::{CheapQuorum, Rules};
use mitra_consensus::signature::{Purpose, Signer, Symbolic, SymbolicSignature};
use mitra_consensus::{AllRules, ProcessId};
use mitra_model_check::byzantine_worlds::{self, ByzantineSet, abort_violation, aborts_agree};
use mitra_model_check::{
    Exhaustive, Exploration, FaultLimits, RunLimits, Violation, World, run_agreement_with,
};
use mitra_prng::seeds;
use serde::Serialize;

thread_local! {
    static SIGNED: Cell<u32> = const { Cell::new(0) };
}

/// A signer that counts its signatures.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Counting(Symbolic);

impl Signer for Counting {
    type Signature = SymbolicSignature;

    fn sign(&self, purpose: Purpose, statement: &impl Serialize) -> SymbolicSignature {
        SIGNED.set(SIGNED.get() + 1);
        self.0.sign(purpose, statement)
    }

    fn verifies(
        &self,
        by: ProcessId,
        purpose: Purpose,
        statement: &impl Serialize,
        signature: &SymbolicSignature,
    ) -> bool {
        self.0.verifies(by, purpose, statement, signature)
    }
}

#[test]
fn leader_decides_in_two_delays_with_one_signature() {
    let process = |(p, keys)| CheapQuorum::<u8, _>::new(ProcessId(p), (3, 3), 50, Counting(keys), 10 + p);
    let processes: Vec<_> = (0..3).zip(Symbolic::all(0, 3)).map(process).collect();
    let regions = CheapQuorum::<u8, Counting>::regions(3);
    let mut world = World::new(processes, 3, &regions, FaultLimits::default());
    let decided = |world: &World<_>| world.decisions().iter().flatten().count();
    world.pass_delay();
    assert_eq!((decided(&world), SIGNED.get()), (0, 1));
    world.pass_delay();
    assert_eq!((decided(&world), SIGNED.get()), (1, 1));
}

/// Returns for how many of `seeds` seeds all processes decide in a world without faults, and no
/// process panics (leaves Cheap Quorum).
fn deciding_seeds<R: Rules>(seeds: u64) -> usize {
    let decides = |seed: &u64| {
        let world =
            byzantine_worlds::cheap_quorum::<R>((3, 3), u8::MAX, ByzantineSet::NONE, FaultLimits::default());
        let run_limits = RunLimits { adversary_steps: 0, stable_steps: 5_000 };
        run_agreement_with(*seed, world, run_limits, &[10], |_| Some(Violation::Stuck)).violation.is_none()
    };
    (0..seeds).filter(decides).count()
}

#[test]
fn all_decide_without_faults_only_if_leader_writes_its_proof() {
    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct Mutant;
    impl Rules for Mutant {
        const LEADER_PROVES: bool = false;
    }
    assert_eq!((deciding_seeds::<AllRules>(20), deciding_seeds::<Mutant>(20)), (20, 0));
}

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 600, stable_steps: 30_000 };

#[test]
fn all_decide_or_abort_with_decided_value() {
    for seed in seeds(60) {
        for (n, byzantine) in [(3, &[][..]), (3, &[0]), (3, &[1]), (5, &[0, 3])] {
            let max_polls = [0, 3, 20][seed as usize % 3];
            let limits = FaultLimits { memory_crashes: 1, ..FaultLimits::default() };
            let world = byzantine_worlds::cheap_quorum::<AllRules>(
                (n, 3),
                max_polls,
                byzantine_set(byzantine, Some(seed)),
                limits,
            );
            let valid: Vec<u8> = (0..n).flat_map(|p| [10 + p, 20 + p]).collect();
            let report = run_agreement_with(seed, world, RUN_LIMITS, &valid, abort_violation);
            assert_eq!(report.violation, None, "n={n} {byzantine:?} seed {seed}: {:?}", report.steps);
        }
    }
}

/// Explores a leader, and a follower that panics immediately.
fn explore<R: Rules + Send + Sync + 'static>() -> Exploration {
    Exhaustive::agreement(byzantine_worlds::small_cheap_quorum::<R>(), 0, vec![10])
        .always("abort agreement", aborts_agree)
        .explore()
}

#[test]
fn leader_and_follower_agree_in_every_order_of_steps() {
    finds_nothing(
        "cheap_quorum::leader_and_follower_agree_in_every_order_of_steps",
        Reads::Consensus,
        explore::<AllRules>,
    );
}

fn mutant_violates(explore: fn() -> Exploration) {
    let (property, steps) = explore().counterexample.expect("a counterexample");
    println!("{property}: {steps:?}");
    assert_eq!(property, "abort agreement");
}

mutants! { Rules, explore:
    mutant_that_revokes_majority_before_reading_violates_abort_agreement: REVOKES_AND_READS_PER_MEMORY;
    mutant_without_revocation_violates_abort_agreement: REVOKES;
}
