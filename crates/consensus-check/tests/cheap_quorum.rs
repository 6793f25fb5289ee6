//! Cheap Quorum among Byzantine processes, with all its rules and without each of them.

mod common;

use common::these;
use std::cell::Cell;

use mitra_consensus::cheap_quorum::{CheapQuorum, Rules};
use mitra_consensus::signature::{Purpose, Signer, Symbolic, SymbolicSignature};
use mitra_consensus::{AllRules, ProcessId};
use mitra_consensus_check::byzantine_worlds::{self, ByzantineSet, abort_violation, aborts_agree};
use mitra_consensus_check::{
    Exhaustive, Exploration, FaultLimits, RunLimits, Violation, World, run_agreement_with,
};
use serde::Serialize;

thread_local! {
    static SIGNED: Cell<u32> = const { Cell::new(0) };
}

/// A signer that counts.
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
fn the_leader_decides_in_two_delays_with_one_signature() {
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

/// The seeds in which all decide where all is well and nobody loses patience, out of so many.
fn all_decide<R: Rules>(seeds: u64) -> usize {
    let decides = |seed: &u64| {
        let world =
            byzantine_worlds::cheap_quorum::<R>((3, 3), u8::MAX, ByzantineSet::NONE, FaultLimits::default());
        let chaos = RunLimits { adversary_steps: 0, stable_steps: 5_000 };
        run_agreement_with(*seed, world, chaos, &[10], |_| Some(Violation::Stuck)).violation.is_none()
    };
    (0..seeds).filter(decides).count()
}

#[test]
fn where_all_is_well_all_decide_and_without_the_leaders_proof_not_all_do() {
    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct Mutant;
    impl Rules for Mutant {
        const LEADER_PROVES: bool = false;
    }
    assert_eq!((all_decide::<AllRules>(20), all_decide::<Mutant>(20)), (20, 0));
}

const CHAOS: RunLimits = RunLimits { adversary_steps: 600, stable_steps: 30_000 };

#[test]
fn all_decide_or_give_up_with_what_was_decided() {
    for seed in 0..60 {
        for (n, who) in [(3, &[][..]), (3, &[0]), (3, &[1]), (5, &[0, 3])] {
            let patience = [0, 3, 20][seed as usize % 3];
            let limits = FaultLimits { memory_crashes: 1, ..FaultLimits::default() };
            let world =
                byzantine_worlds::cheap_quorum::<AllRules>((n, 3), patience, these(who, Some(seed)), limits);
            let valid: Vec<u8> = (0..n).flat_map(|p| [10 + p, 20 + p]).collect();
            let report = run_agreement_with(seed, world, CHAOS, &valid, abort_violation);
            assert_eq!(report.violation, None, "n={n} {who:?} seed {seed}: {:?}", report.steps);
        }
    }
}

/// The follower panics at once; the leader decides, if it can.
fn explore<R: Rules + Send + Sync + 'static>() -> Exploration {
    Exhaustive::agreement(byzantine_worlds::small_cheap_quorum::<R>(), 0, vec![10])
        .with_abort_check(aborts_agree)
        .explore()
}

#[test]
fn a_leader_and_a_follower_agree_in_every_order() {
    let found = explore::<AllRules>();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 1_000, "{} states: less than before", found.states);
}

fn errs(explore: fn() -> Exploration) {
    let (what, steps) = explore().counterexample.expect("a counterexample");
    println!("{what}: {steps:?}");
    assert_eq!(what, "abort agreement");
}

mutants! { Rules, explore:
    where_a_majority_is_frozen_and_then_one_read_it_errs: REVOKES_AND_READS_PER_MEMORY;
    where_the_leader_may_go_on_writing_it_errs: REVOKES;
}
