//! The key-value store on the replicated log. The client histories are linearizable with all rules.
//! Mutants without one of the rules violate linearizability.

use crate::common::CRASHES;
use mitra_consensus::AllRules;
use mitra_consensus::kv_store::Rules;
use mitra_model_check::{FaultLimits, RunLimits, StoreWorld, Violation, protocol_worlds, run_adversary};
use mitra_prng::seeds;

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 1000, stable_steps: 30_000 };
/// Two of three servers and one of three memories may crash. Connections fail.
const FAULTS: FaultLimits = CRASHES;

fn world<R: Rules, const LOCAL_READS: bool>(seed: u64) -> StoreWorld<R, LOCAL_READS> {
    protocol_worlds::store(seed, (3, 3, 8), FAULTS)
}

#[test]
fn client_histories_are_linearizable_and_complete_from_every_seed() {
    for seed in seeds(1_500) {
        let report = run_adversary(seed, world::<AllRules, false>(seed), RUN_LIMITS);
        assert_eq!(report.violation, None, "seed {seed}, {} steps", report.steps.len());
    }
}

/// Checks that some seed of the mutant gives a history that is not linearizable, and that the same
/// seed gives no such history with all rules.
fn mutant_is_not_linearizable<R: Rules, const LOCAL_READS: bool>(
    world: impl Fn(u64) -> StoreWorld<R, LOCAL_READS>,
    run_limits: RunLimits,
    with_all_rules: impl Fn(u64) -> StoreWorld<AllRules, false>,
) {
    let is_violation = |seed: &u64| {
        run_adversary(*seed, world(*seed), run_limits).violation == Some(Violation::NotLinearizable)
    };
    let violation_seed = (0..100_000).find(is_violation);
    println!("{violation_seed:?}");
    let seed = violation_seed.expect("a seed shows the violation");
    assert_eq!(
        run_adversary(seed, with_all_rules(seed), RunLimits { stable_steps: 60_000, ..run_limits }).violation,
        None
    );
}

/// Two clients and one memory. Ω names leaders so often that servers depose each other.
#[test]
fn mutant_with_local_reads_is_not_linearizable() {
    fn competing_leaders<const LOCAL_READS: bool>(seed: u64) -> StoreWorld<AllRules, LOCAL_READS> {
        protocol_worlds::store(seed, (1, 2, 20), FaultLimits { leader_changes: 60, ..FaultLimits::default() })
    }
    mutant_is_not_linearizable(
        competing_leaders::<true>,
        RunLimits { adversary_steps: 3000, stable_steps: 0 },
        competing_leaders::<false>,
    );
}

mod session_mutants {
    use super::*;

    fn world<R: Rules>(seed: u64) -> StoreWorld<R, false> {
        super::world(seed)
    }

    fn mutant_violates<R: Rules>(world: impl Fn(u64) -> StoreWorld<R, false>) {
        mutant_is_not_linearizable(world, RunLimits { stable_steps: 3000, ..RUN_LIMITS }, super::world);
    }

    mutants! { Rules, world:
        mutant_without_stored_replies_is_not_linearizable: KEEPS_REPLIES;
        mutant_that_accepts_expired_sessions_is_not_linearizable: REFUSES_EXPIRED;
    }
}
