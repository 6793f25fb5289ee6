//! The key-value store on the replicated log: what clients are told is linearizable, with all rules, and is not without each of them.

mod common;

use mitra_consensus::AllRules;
use mitra_consensus::kv_store::Rules;
use mitra_consensus_check::{FaultLimits, RunLimits, StoreWorld, Violation, protocol_worlds, run_adversary};

const CHAOS: RunLimits = RunLimits { adversary_steps: 1000, stable_steps: 30_000 };
/// Two of three servers may crash, one of three memories, and connections break.
const FAULTS: FaultLimits = FaultLimits {
    leader_changes: 16,
    process_crashes: 2,
    memory_crashes: 1,
    disconnects: 4,
    restarts: 0,
    message_losses: 0,
};

fn world<R: Rules, const LOCAL_READS: bool>(seed: u64) -> StoreWorld<R, LOCAL_READS> {
    protocol_worlds::store(seed, (3, 3, 8), FAULTS)
}

#[test]
fn what_clients_are_told_is_linearizable_and_in_the_end_they_are_told_from_every_seed() {
    for seed in 0..1_500 {
        let report = run_adversary(seed, world::<AllRules, false>(seed), CHAOS);
        assert_eq!(report.violation, None, "seed {seed}, {} steps", report.steps.len());
    }
}

/// Some seed shows that a rule is missing, where with all rules all is well.
fn errs_where<R: Rules, const LOCAL_READS: bool>(
    world: impl Fn(u64) -> StoreWorld<R, LOCAL_READS>,
    chaos: RunLimits,
    sound: impl Fn(u64) -> StoreWorld<AllRules, false>,
) {
    let wrong =
        |seed: &u64| run_adversary(*seed, world(*seed), chaos).violation == Some(Violation::NotLinearizable);
    let killed = (0..100_000).find(wrong);
    println!("{killed:?}");
    let seed = killed.expect("a seed that shows it");
    assert_eq!(run_adversary(seed, sound(seed), RunLimits { stable_steps: 60_000, ..chaos }).violation, None);
}

/// Two clients of one memory, over which the servers quarrel.
#[test]
fn with_reads_of_whoever_believes_that_it_leads_it_errs() {
    fn quarrel<const LOCAL_READS: bool>(seed: u64) -> StoreWorld<AllRules, LOCAL_READS> {
        protocol_worlds::store(seed, (1, 2, 20), FaultLimits { leader_changes: 60, ..FaultLimits::default() })
    }
    errs_where(quarrel::<true>, RunLimits { adversary_steps: 3000, stable_steps: 0 }, quarrel::<false>);
}

mod without {
    use super::*;

    fn world<R: Rules>(seed: u64) -> StoreWorld<R, false> {
        super::world(seed)
    }

    fn errs<R: Rules>(world: impl Fn(u64) -> StoreWorld<R, false>) {
        errs_where(world, RunLimits { stable_steps: 3000, ..CHAOS }, super::world);
    }

    mutants! { Rules, world:
        the_last_replies_it_errs: KEEPS_REPLIES;
        the_refusal_of_what_has_expired_it_errs: REFUSES_EXPIRED;
    }
}
