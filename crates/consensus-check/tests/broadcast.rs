//! Non-equivocating broadcast among Byzantine processes, with all its rules and without each of them.

mod common;

use common::these;
use mitra_consensus::broadcast::{Broadcast, Rules, Slot, WITNESS};
use mitra_consensus::broadcaster::Broadcaster;
use mitra_consensus::signature::{Signed, Signer, Symbolic};
use mitra_consensus::{AllRules, ProcessId, ProcessSet};
use mitra_consensus_check::byzantine_worlds::{self, BroadcastActor};
use mitra_consensus_check::{
    Actor, ByzantineProcess, Exhaustive, FaultLimits, RunLimits, SingleWrite, Violation, World,
    run_agreement, run_agreement_with, totality_violation,
};

fn world<R: Rules>(size: (u8, u8), who: &[u8], whim: Option<u64>) -> World<BroadcastActor<R>> {
    let limits =
        FaultLimits { memory_crashes: u8::from(size.1 > 1), disconnects: 3, ..FaultLimits::default() };
    byzantine_worlds::broadcast(size, these(who, whim), limits)
}

const CHAOS: RunLimits = RunLimits { adversary_steps: 600, stable_steps: 20_000 };

#[test]
fn what_a_correct_sender_broadcasts_all_deliver() {
    for seed in 0..300 {
        for (n, who) in [(3, &[][..]), (3, &[2]), (5, &[2, 4])] {
            let report = run_agreement(seed, world::<AllRules>((n, 3), who, Some(seed)), CHAOS, &[10]);
            assert_eq!(report.violation, None, "n={n} {who:?} seed {seed}: {:?}", report.steps);
        }
    }
}

#[test]
fn of_a_byzantine_sender_all_deliver_the_same_or_none_does() {
    let mut delivered = 0;
    for seed in 0..100 {
        for (n, who) in [(3, &[0][..]), (5, &[0, 2])] {
            for whim in [None, Some(seed)] {
                let world = world::<AllRules>((n, 3), who, whim);
                let report = run_agreement_with(seed, world, CHAOS, &[10, 20], totality_violation);
                assert_eq!(report.violation, None, "n={n} {who:?} {whim:?} seed {seed}: {:?}", report.steps);
                // It ends when all have delivered.
                delivered += u32::from(report.steps.len() < CHAOS.stable_steps as usize);
            }
        }
    }
    assert!(
        (100..400).contains(&delivered),
        "{delivered} of 400 are delivered: no more is shown than of silence"
    );
}

/// A liar's word names the others as witnesses, with signatures of something else. It must not take the place of what they say themselves.
#[test]
fn a_forged_witness_does_not_hide_a_real_one() {
    let keys = Symbolic::all(0, 3);
    let other = keys[2].sign(WITNESS, &"something else");
    let by = (0..3).map(|p| (ProcessId(p), other.clone())).collect();
    let forged = Some(Signed { value: 10, by });
    let forged = Slot { copy: None, witness: forged.clone(), proof: forged };
    let process = |p: u8| {
        let broadcast: Broadcast<u8, _> = Broadcast::new(ProcessId(p), 3, 1, 1, keys[usize::from(p)].clone());
        Actor::Correct(Broadcaster::new(broadcast, (p == 0).then_some(10), ProcessId(0)))
    };
    let liar = ByzantineProcess::new(3, vec![SingleWrite::<_, u8>::new(1, (2, 0), forged)], None);
    let start = || {
        let processes = vec![process(0), process(1), Actor::Byzantine(liar.clone())];
        let regions = Broadcast::<u8, Symbolic>::regions(3, 1);
        World::new(processes, 1, &regions, FaultLimits::default())
            .with_byzantine(ProcessSet::only(ProcessId(2)))
    };
    for seed in 0..100 {
        assert_eq!(run_agreement(seed, start(), CHAOS, &[10]).violation, None, "seed {seed}");
    }
}

#[test]
fn two_correct_processes_and_a_two_faced_sender_in_every_order() {
    let found =
        Exhaustive::agreement(byzantine_worlds::small_broadcast::<AllRules>(), 0, vec![10, 20]).explore();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 10_000, "{} states: less than before", found.states);
}

/// What is wrong from a seed, with a sender of two faces, or with whims too.
fn wrong<R: Rules>(seed: u64) -> Option<Violation> {
    let worlds = [None, Some(seed)].map(|whim| world::<R>((3, 1), &[0], whim));
    let chaos = RunLimits { adversary_steps: 600, stable_steps: 4_000 };
    worlds
        .into_iter()
        .find_map(|world| run_agreement_with(seed, world, chaos, &[10, 20], totality_violation).violation)
}

/// Some seed shows that a rule is missing, where with all rules all is well.
fn errs(wrong: fn(u64) -> Option<Violation>) {
    let killed = (0..20_000).find_map(|seed| Some((seed, wrong(seed)?)));
    println!("{killed:?}");
    assert_eq!(self::wrong::<AllRules>(killed.expect("it errs").0), None);
}

mutants! { Rules, wrong:
    with_one_level_it_is_not_total: TWO_LEVELS;
    without_others_it_errs: AWAITS_OTHERS;
    with_an_early_scan_it_errs: SCANS_AFTER_COPYING;
    where_witnesses_have_seen_two_messages_it_errs: ONE_MESSAGE_ONLY;
    where_signatures_are_not_verified_it_errs: VERIFIES;
}
