//! Helpers that the tests of all protocols share.

pub mod explorations;

use std::iter;

use mitra_consensus::{Process, ProcessId, ProcessSet};
use mitra_model_check::byzantine_worlds::ByzantineSet;
use mitra_model_check::{FaultLimits, RunLimits, Violation, World, run_agreement};

/// The proposals of three processes.
pub const VALUES: [u8; 3] = [10, 11, 12];

/// Ω names a leader 16 times. All processes but one and a minority of the memories may crash.
pub const CRASHES: FaultLimits = FaultLimits {
    leader_changes: 16,
    process_crashes: 2,
    memory_crashes: 1,
    disconnects: 4,
    restarts: 0,
    message_losses: 0,
};
/// The same limits for protocols that need a majority of live processes.
pub const MINORITY: FaultLimits = FaultLimits { process_crashes: 1, ..CRASHES };

/// Returns these processes, whose adversary draws from the seed.
pub fn byzantine_set(processes: &[u8], adversary_seed: Option<u64>) -> ByzantineSet {
    ByzantineSet {
        processes: processes.iter().fold(ProcessSet::NONE, |all, &p| all.with(ProcessId(p))),
        adversary_seed,
    }
}

/// Runs a world with up to 300 adversary steps, and returns the violation.
pub fn violation<P: Process>(
    seed: u64,
    world: World<P>,
    stable_steps: u32,
    valid: &[P::Value],
) -> Option<Violation> {
    run_agreement(seed, world, RunLimits { adversary_steps: 300, stable_steps }, valid).violation
}

/// Checks that, from every seed, processes agree on a proposal, and that every correct process
/// decides in the stable period.
pub fn agrees_and_terminates<P: Process<Value = u8>>(world: impl Fn() -> World<P>, seeds: u64) {
    for seed in mitra_prng::seeds(seeds) {
        let report =
            run_agreement(seed, world(), RunLimits { adversary_steps: 300, stable_steps: 3000 }, &VALUES);
        assert_eq!(report.violation, None, "seed {seed}: {:?}", report.steps);
    }
}

/// Checks that some seed violates agreement or validity.
pub fn mutant_violates<P: Process<Value = u8>>(world: impl Fn() -> World<P>) {
    mutant_violates_at(0, world);
}

/// Checks that some seed violates agreement or validity. The seed `known`, which violated one of
/// these two properties in the past, runs first.
pub fn mutant_violates_at<P: Process<Value = u8>>(known: u64, world: impl Fn() -> World<P>) {
    let violation_seed = iter::once(known).chain(0..400_000).find(|&seed| {
        let report =
            run_agreement(seed, world(), RunLimits { adversary_steps: 300, stable_steps: 0 }, &VALUES);
        matches!(report.violation, Some(Violation::Disagreement | Violation::Invalid))
    });
    println!("seed {violation_seed:?}");
    assert!(violation_seed.is_some());
}

/// Creates a test for each mutant of a protocol: `mutant_violates` must find a violation without
/// the rule, or `mutant_violates_at` with a known seed.
#[macro_export]
macro_rules! mutants {
    (@violates $world:expr) => { mutant_violates($world) };
    (@violates $world:expr, $known:literal) => { mutant_violates_at($known, $world) };
    ($rules:ident, $world:ident: $($name:ident: $rule:ident $(at $known:literal)?;)*) => {$(
        #[test]
        fn $name() {
            #[derive(Clone, PartialEq, Eq, Hash, Debug)]
            struct Mutant;
            impl $rules for Mutant {
                const $rule: bool = false;
            }
            $crate::mutants!(@violates $world::<Mutant> $(, $known)?);
        }
    )*};
}
