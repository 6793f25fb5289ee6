//! Queue pairs with a shared backup: whatever rails fail, every operation is executed exactly once,
//! and every reported outcome is true.

mod addresses;
mod durable;
mod hazards;
mod hostile_peer;
mod pair;
mod promises;
mod run;
mod second_failures;
mod shared_atomics;
mod shared_receives;
mod states;
mod storms;
mod window_hazards;
mod windows;
mod without_heartbeats;

use core::time::Duration;
use std::sync::Arc;

use crate::failover_random_faults::random_run::random_time;
use mitra_failover::{BackedQp, CloseReason, Outcome, UnresolvedError};
use mitra_sim::workload::Verdict;
use mitra_sim::{Failure, seeds};
use mitra_verbs::{Access, Buffer, Data, SendOp, SendWr, WcStatus};

use pair::BackedPair;
use run::{Setup, run};

fn setup(seed: u64, rails: u8, members: u64) -> Setup {
    Setup { rails, members, ops: [60, 30], world: mitra_sim::Config::swarm(seed), config: run::config() }
}

#[test]
fn members_without_faults_complete_everything() {
    for seed in seeds(20) {
        let mut setup = setup(seed, 2, 3);
        setup.world = mitra_sim::Config::fault_free();
        let (out, _) = run(seed, setup, |p| p, |_, _| {});
        out.assert_exact(seed, "no faults");
        assert!(out.verdicts.iter().flatten().all(Verdict::is_complete), "seed {seed}");
        assert!(out.close_reasons.iter().all(|r| *r == [None, None]), "seed {seed}: {:?}", out.close_reasons);
    }
}

#[test]
fn all_members_survive_link_failure() {
    for seed in seeds(200) {
        let (out, _) = run(
            seed,
            setup(seed, 2, 1 + seed % 5),
            |p| p,
            |testbed, rng| {
                let nic = testbed.rail(0)[rng.index(2)];
                let at = Duration::from_nanos(rng.between(1_000, 400_000));
                testbed.world.after(at, move |w| w.set_link(nic, false));
            },
        );
        out.assert_exact(seed, "one link");
        assert!(out.verdicts.iter().flatten().all(Verdict::is_complete), "seed {seed}");
        assert!(out.close_reasons.iter().all(|r| *r == [None, None]), "seed {seed}: {:?}", out.close_reasons);
    }
}

/// The test uses two or three rails.
#[test]
fn flapping_links() {
    let mut epochs = 0;
    for seed in seeds(300) {
        let (out, _) = run(
            seed,
            setup(seed, 2 + (seed % 2) as u8, 1 + seed % 3),
            |p| p,
            |testbed, rng| {
                let mut at = Duration::ZERO;
                for _ in 0..rng.between(1, 6) {
                    let rail = rng.index(testbed.nics[0].len());
                    let nic = testbed.rail(rail)[rng.index(2)];
                    at += random_time(rng, 300_000, 8);
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    let up = at + random_time(rng, 100_000, 8);
                    testbed.world.after(up, move |w| w.set_link(nic, true));
                }
            },
        );
        out.assert_exact(seed, "flapping links");
        epochs += u32::from(out.epoch);
    }
    println!("epochs: {epochs}");
    assert!(epochs > 0);
}

#[test]
fn overlapping_failures_on_three_rails() {
    for seed in seeds(300) {
        let mut label = String::new();
        let (out, _) = run(
            seed,
            setup(seed, 3, 1 + seed % 3),
            |p| p,
            |testbed, rng| {
                for _ in 0..rng.between(2, 4) {
                    let nic = testbed.rail(rng.index(3))[rng.index(2)];
                    let at = random_time(rng, 1_000_000, 6);
                    let link = Failure::LinkDown;
                    let failure = *rng.pick(&[link, link, Failure::NicDead, Failure::NicHung]);
                    label += &format!(", {failure:?} of {nic:?} at {at:?}");
                    testbed.world.after(at, move |w| w.fail(nic, failure));
                }
            },
        );
        out.assert_exact(seed, &label);
    }
}

const SUCCESS: Outcome = Outcome::Success;

/// A member's own queue pairs are connected only when both ends are polled. Until then, the backup
/// carries WRITEs.
#[test]
fn writes_go_over_backup_before_peer_is_polled() {
    let mut pair = BackedPair::new(2, 2);
    (1..=3).for_each(|value| pair.write(1, 5, value));
    pair.poll(&[0], 400);
    assert_eq!(pair.outcomes(0, 1), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]);
    assert_eq!((pair.word(5), pair.qps[0][1].has_rail()), (3, false));
    pair.poll(&[0, 1], 400);
    assert!(pair.qps.iter().flatten().all(BackedQp::has_rail));
}

#[test]
fn sends_wait_for_queue_pair_and_keep_order() {
    let mut pair = BackedPair::new(2, 1);
    pair.recv(0, 1);
    pair.qps[0][0].post_send(SendWr::new(1, SendOp::Send, Data::inline(&7_u64.to_ne_bytes()))).expect("room");
    pair.write(0, 2, 2);
    pair.poll(&[0], 100);
    assert_eq!((pair.outcomes(0, 0), pair.word(1), pair.word(2)), (vec![], 0, 0));
    pair.poll(&[0, 1], 400);
    assert_eq!(pair.outcomes(0, 0), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!((pair.word(1), pair.word(2)), (7, 2));
}

/// The keys of a queue pair become invalid when it closes, so a WRITE in flight on the backup is
/// refused. The other members then fail over with the backup, and lose no operation.
#[test]
fn closed_queue_pair_grants_nothing_and_others_go_on() {
    for delay in 0..12 {
        let mut pair = BackedPair::new(2, 2);
        pair.write(0, 1, 1);
        pair.write(1, 2, 1);
        pair.poll(&[0], 200);
        assert_eq!((pair.word(1), pair.word(2)), (1, 1));
        pair.qps[1][0].shutdown();
        pair.write(0, 1, 2);
        pair.write(1, 2, 2);
        pair.testbed.world.run_for(Duration::from_micros(delay));
        pair.write(0, 1, 3);
        pair.write(1, 2, 3);
        pair.poll(&[0], 800);
        assert_eq!(pair.outcomes(0, 1), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)], "delay {delay}");
        assert_eq!((pair.word(1), pair.word(2)), (1, 3), "delay {delay}");
        assert_eq!(pair.qps[0][0].close_reason(), Some(CloseReason::PeerClosed), "delay {delay}");
        assert!(pair.outcomes(0, 0)[1..].iter().all(|(_, outcome)| *outcome != SUCCESS), "delay {delay}");
        assert_eq!(pair.backups.each_ref().map(|b| b.close_reason()), [None, None], "delay {delay}");
        pair.poll(&[0, 1], 400);
        assert!(pair.qps[0][1].has_rail(), "delay {delay}");
    }
}

/// The keys of a queue pair grant no access to deregistered memory either.
#[test]
fn deregistered_memory_has_no_keys() {
    let mut pair = BackedPair::new(2, 2);
    pair.write(0, 1, 1);
    pair.poll(&[0], 200);
    let mr = pair.mr[1].clone();
    pair.qps[1][0].domain().deregister(&mr).expect("no window is bound");
    pair.write(0, 1, 2);
    pair.poll(&[0], 800);
    assert_eq!(pair.outcomes(0, 0), [(1, SUCCESS), (2, Outcome::Failed(WcStatus::RemoteAccess))]);
    assert_eq!((pair.word(1), pair.backups[0].close_reason()), (1, None));
}

/// The receiver takes a message and closes at once, and the acknowledgement is lost with the rail.
/// The final evidence of the receiver decides the SEND.
#[test]
fn final_evidence_decides_what_is_in_flight_when_peer_closes() {
    let mut outcomes = [0, 0];
    for delay in 0..40 {
        let mut pair = BackedPair::new(2, 1);
        pair.recv(0, 1);
        pair.poll(&[0, 1], 400);
        assert!(pair.qps[0][0].has_rail());
        let wr = SendWr::new(1, SendOp::Send, Data::inline(&7_u64.to_ne_bytes()));
        pair.qps[0][0].post_send(wr).expect("room");
        pair.testbed.world.run_for(Duration::from_nanos(100 * delay));
        let nic = pair.testbed.nics[0][0].id();
        pair.testbed.world.set_link(nic, false);
        pair.testbed.world.run_for(Duration::from_micros(10));
        pair.qps[1][0].shutdown();
        pair.poll(&[0, 1], 2000);
        let is_received = pair.completions[1][0].iter().any(|c| c.is_success());
        let expected = if is_received { SUCCESS } else { Outcome::Failed(WcStatus::Flushed) };
        assert_eq!(pair.outcomes(0, 0), [(1, expected)], "delay {delay}");
        assert_eq!(pair.qps[0][0].close_reason(), Some(CloseReason::PeerClosed), "delay {delay}");
        outcomes[usize::from(is_received)] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// The responder's NIC dies and leaves no evidence of a WRITE on the backup. The requests behind
/// that WRITE were not executed and are sent again: the message of its own queue pair, and the
/// WRITE of another queue pair.
#[test]
fn what_stands_behind_undecided_operation_on_backup_is_sent_again() {
    let mut pair = BackedPair::new(2, 2);
    pair.write(1, 9, 9);
    pair.poll(&[0], 200);
    let more = Arc::new(Buffer::new(64));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let more_mr = pair.qps[1][0].domain().register(&more, access).expect("the NICs have a free region");
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    pair.write(0, 1, 1);
    for _ in 0..64 {
        pair.qps[0][0].import(&more_mr.remote()).expect("the queue pair is connected");
    }
    pair.backups[0].progress(); // a SEND that is full of messages leaves at once
    pair.write(1, 2, 1);
    pair.poll(&[0], 4000);
    assert_eq!(pair.outcomes(0, 0), [(1, Outcome::Unresolved(UnresolvedError::Indeterminate))]);
    assert_eq!(pair.outcomes(0, 1), [(9, SUCCESS), (1, SUCCESS)]);
    assert_eq!((pair.word(2), pair.backups[0].close_reason()), (1, None));
    pair.qps[0][0].resume();
    let op = SendOp::Write(more_mr.remote().at(8));
    pair.qps[0][0].post_send(SendWr::new(2, op, Data::inline(&7_u64.to_ne_bytes()))).expect("room");
    pair.poll(&[0], 400);
    assert_eq!((pair.outcomes(0, 0)[1..].to_vec(), more.load(8)), (vec![(2, SUCCESS)], 7));
}
