//! Non-equivocating broadcast among Byzantine processes, with all its rules, and mutants without
//! one of them.

use crate::common::byzantine_set;
use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::broadcast::{Broadcast, Rules, Slot, WITNESS};
use mitra_consensus::signature::{Signed, Signer, Symbolic};
use mitra_consensus::single_broadcast::SingleBroadcast;
use mitra_consensus::{AllRules, ProcessId, ProcessSet};
use mitra_model_check::byzantine_worlds::{self, BroadcastActor};
use mitra_model_check::{
    Actor, ByzantineProcess, Exhaustive, FaultLimits, RunLimits, SingleWrite, Violation, World,
    run_agreement, run_agreement_with, totality_violation,
};
use mitra_prng::seeds;

fn world<R: Rules>(
    size: (u8, u8),
    byzantine: &[u8],
    adversary_seed: Option<u64>,
) -> World<BroadcastActor<R>> {
    let limits =
        FaultLimits { memory_crashes: u8::from(size.1 > 1), disconnects: 3, ..FaultLimits::default() };
    byzantine_worlds::broadcast(size, byzantine_set(byzantine, adversary_seed), limits)
}

const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 600, stable_steps: 20_000 };

#[test]
fn message_of_correct_sender_is_delivered_by_all() {
    for seed in seeds(300) {
        for (n, byzantine) in [(3, &[][..]), (3, &[2]), (5, &[2, 4])] {
            let report =
                run_agreement(seed, world::<AllRules>((n, 3), byzantine, Some(seed)), RUN_LIMITS, &[10]);
            assert_eq!(report.violation, None, "n={n} {byzantine:?} seed {seed}: {:?}", report.steps);
        }
    }
}

#[test]
fn message_of_byzantine_sender_is_delivered_by_all_or_none() {
    let mut delivered = 0;
    for seed in seeds(100) {
        for (n, byzantine) in [(3, &[0][..]), (5, &[0, 2])] {
            for adversary_seed in [None, Some(seed)] {
                let world = world::<AllRules>((n, 3), byzantine, adversary_seed);
                let report = run_agreement_with(seed, world, RUN_LIMITS, &[10, 20], totality_violation);
                assert_eq!(
                    report.violation, None,
                    "n={n} {byzantine:?} {adversary_seed:?} seed {seed}: {:?}",
                    report.steps
                );
                // A run ends early only if all correct processes have delivered.
                delivered += usize::from(report.steps.len() < RUN_LIMITS.stable_steps as usize);
            }
        }
    }
    let all = 4 * seeds(100).count();
    assert!(
        (all / 4..all).contains(&delivered),
        "{delivered} of {all} messages are delivered: too few or too many to test both outcomes"
    );
}

/// A Byzantine process writes a cell that names the other processes as witnesses, with signatures
/// of another message. The cell must not replace the valid cells of these processes.
#[test]
fn forged_witness_does_not_hide_valid_one() {
    let keys = Symbolic::all(0, 3);
    let other = keys[2].sign(WITNESS, &"another message");
    let by = (0..3).map(|p| (ProcessId(p), other.clone())).collect();
    let forged = Some(Signed { value: 10, by });
    let forged = Slot { copy: None, witness: forged.clone(), proof: forged };
    let process = |p: u8| {
        let broadcast: Broadcast<u8, _> = Broadcast::new(ProcessId(p), 3, 1, 1, keys[usize::from(p)].clone());
        Actor::Correct(SingleBroadcast::new(broadcast, (p == 0).then_some(10), ProcessId(0)))
    };
    let forger = ByzantineProcess::new(3, vec![SingleWrite::<_, u8>::new(1, (2, 0), forged)], None);
    let start = || {
        let processes = vec![process(0), process(1), Actor::Byzantine(forger.clone())];
        let regions = Broadcast::<u8, Symbolic>::regions(3, 1);
        World::new(processes, 1, &regions, FaultLimits::default())
            .with_byzantine(ProcessSet::only(ProcessId(2)))
    };
    for seed in seeds(100) {
        assert_eq!(run_agreement(seed, start(), RUN_LIMITS, &[10]).violation, None, "seed {seed}");
    }
}

#[test]
fn two_correct_processes_deliver_same_message_of_equivocating_sender_in_every_order_of_steps() {
    finds_nothing(
        "broadcast::two_correct_processes_deliver_same_message_of_equivocating_sender_in_every_order_of_steps",
        Reads::Consensus,
        || Exhaustive::agreement(byzantine_worlds::small_broadcast::<AllRules>(), 0, vec![10, 20]).explore(),
    );
}

/// Returns the violation of a seed with a sender that equivocates, or with a sender that also
/// changes operations at random.
fn violation<R: Rules>(seed: u64) -> Option<Violation> {
    let worlds = [None, Some(seed)].map(|adversary_seed| world::<R>((3, 1), &[0], adversary_seed));
    let run_limits = RunLimits { adversary_steps: 600, stable_steps: 4_000 };
    worlds.into_iter().find_map(|world| {
        run_agreement_with(seed, world, run_limits, &[10, 20], totality_violation).violation
    })
}

/// Checks that some seed of the mutant violates a property, and that the same seed violates none
/// with all rules.
fn mutant_violates(violation: fn(u64) -> Option<Violation>) {
    let violation_seed = (0..20_000).find_map(|seed| Some((seed, violation(seed)?)));
    println!("{violation_seed:?}");
    assert_eq!(self::violation::<AllRules>(violation_seed.expect("a seed shows the violation").0), None);
}

mutants! { Rules, violation:
    mutant_with_one_level_violates_totality: TWO_LEVELS;
    mutant_that_awaits_no_other_process_violates_safety: AWAITS_OTHERS;
    mutant_that_scans_before_copying_violates_safety: SCANS_AFTER_COPYING;
    mutant_whose_witnesses_found_two_messages_violates_safety: ONE_MESSAGE_ONLY;
    mutant_without_signature_verification_violates_safety: VERIFIES;
}
