//! What the tests of all protocols share.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use mitra_consensus::{Process, ProcessId, ProcessSet};
use mitra_consensus_check::byzantine_worlds::ByzantineSet;
use mitra_consensus_check::{FaultLimits, RunLimits, Violation, World, run_agreement};

pub const VALUES: [u8; 3] = [10, 11, 12];

/// Ω errs often, and a minority of the memories and all processes but one may crash.
pub const CRASHES: FaultLimits = FaultLimits {
    leader_changes: 16,
    process_crashes: 2,
    memory_crashes: 1,
    disconnects: 4,
    restarts: 0,
    message_losses: 0,
};
/// The same where processes must stay a majority.
pub const MINORITY: FaultLimits = FaultLimits { process_crashes: 1, ..CRASHES };

/// These are Byzantine.
pub fn these(who: &[u8], whim: Option<u64>) -> ByzantineSet {
    ByzantineSet {
        processes: who.iter().fold(ProcessSet::NONE, |all, &p| all.with(ProcessId(p))),
        adversary_seed: whim,
    }
}

/// Runs with so much chaos and so much calm.
pub fn violation<P: Process>(seed: u64, world: World<P>, calm: u32, valid: &[P::Value]) -> Option<Violation> {
    run_agreement(seed, world, RunLimits { adversary_steps: 300, stable_steps: calm }, valid).violation
}

/// From every seed, processes agree, decide on what was proposed, and decide once all is calm.
pub fn holds<P: Process<Value = u8>>(world: impl Fn() -> World<P>, seeds: u64) {
    for seed in 0..seeds {
        let report =
            run_agreement(seed, world(), RunLimits { adversary_steps: 300, stable_steps: 3000 }, &VALUES);
        assert_eq!(report.violation, None, "seed {seed}: {:?}", report.steps);
    }
}

/// Some seed shows that a rule is missing.
pub fn errs<P: Process<Value = u8>>(world: impl Fn() -> World<P>) {
    let killed = (0..400_000).find(|&seed| {
        let report =
            run_agreement(seed, world(), RunLimits { adversary_steps: 300, stable_steps: 0 }, &VALUES);
        matches!(report.violation, Some(Violation::Disagreement | Violation::Invalid))
    });
    println!("seed {killed:?}");
    assert!(killed.is_some());
}

/// Tests that a protocol errs without each of its rules.
#[macro_export]
macro_rules! mutants {
    ($rules:ident, $world:ident: $($name:ident: $rule:ident;)*) => {$(
        #[test]
        fn $name() {
            #[derive(Clone, PartialEq, Eq, Hash, Debug)]
            struct Mutant;
            impl $rules for Mutant {
                const $rule: bool = false;
            }
            errs($world::<Mutant>);
        }
    )*};
}
