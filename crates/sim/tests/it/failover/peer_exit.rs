//! A peer process that has ended, as opposed to rails that have failed.

use core::time::Duration;

use mitra_failover::{CloseReason, Config, Outcome, UnresolvedError};
use mitra_sim::{Failure, Testbed, seeds};
use mitra_verbs::{Data, Provider, SendOp, SendWr};

use crate::vqp_pair::{VqpPair, config};

const PEER_TIMEOUT: Duration = Duration::from_millis(100);

/// With this configuration, refusals must last for 12.5 ms before they show an exit.
fn with_heartbeats() -> Config {
    let mut config = Config { peer_timeout: PEER_TIMEOUT, ..config() };
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 5;
    config
}

fn pair() -> VqpPair {
    let mut pair = VqpPair::new(2, with_heartbeats());
    pair.poll_times(&[0, 1], 100);
    pair
}

/// Polls `ends` until the first end has closed, for eight peer timeouts at most.
fn reason(pair: &mut VqpPair, ends: &[usize]) -> Option<CloseReason> {
    for _ in 0..PEER_TIMEOUT.as_micros() * 8 / 25 {
        pair.poll(ends);
        if pair.vqps[0].close_reason().is_some() {
            break;
        }
    }
    pair.vqps[0].close_reason()
}

fn succeeded(pair: &VqpPair, wr_id: u64) -> bool {
    pair.completions[0].iter().any(|c| c.wr_id == wr_id && c.is_success())
}

#[test]
fn exited_process_is_named_and_leaves_operations_undecided() {
    let mut pair = pair();
    pair.testbed.world.exit(pair.testbed.hosts[1]);
    pair.send_write(7, 0, 1);
    assert_eq!(reason(&mut pair, &[0]), Some(CloseReason::PeerExited));
    pair.poll(&[0]);
    let undecided = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::PeerExited));
    assert_eq!(pair.outcome(0, 7, false), Some(undecided));
}

#[test]
fn exited_process_is_named_by_an_end_that_only_lends_memory() {
    let mut pair = pair();
    pair.testbed.world.exit(pair.testbed.hosts[1]);
    assert_eq!(reason(&mut pair, &[0]), Some(CloseReason::PeerExited));
}

#[test]
fn process_that_exits_during_a_move_is_named() {
    let mut pair = pair();
    pair.link_down(0, 0);
    pair.poll_times(&[0], 40);
    pair.link_up(0, 0);
    pair.testbed.world.exit(pair.testbed.hosts[1]);
    assert_eq!(reason(&mut pair, &[0]), Some(CloseReason::PeerExited));
}

#[test]
fn dead_nics_on_all_rails_are_no_exited_process() {
    let mut pair = pair();
    for rail in 0..2 {
        let nic = pair.testbed.nics[1][rail].id();
        pair.testbed.world.fail(nic, Failure::NicDead);
    }
    assert_eq!(reason(&mut pair, &[0]), Some(CloseReason::PeerUnreachable));
}

#[test]
fn links_that_are_down_are_no_exited_process() {
    let mut pair = pair();
    pair.link_down(1, 0);
    pair.link_down(1, 1);
    pair.testbed.world.exit(pair.testbed.hosts[1]); // no refusal reaches this end
    assert_eq!(reason(&mut pair, &[0]), Some(CloseReason::PeerUnreachable));
}

#[test]
fn host_that_refuses_on_one_rail_only_costs_that_rail() {
    let mut pair = pair();
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.close_port(nic);
    pair.recv(1, 1, 64);
    pair.send_message(7, 1);
    assert_eq!(reason(&mut pair, &[0, 1]), None);
    assert_eq!((pair.vqps[0].active_rail(), succeeded(&pair, 7)), (1, true));
}

/// The rail may still reach the peer when its link comes up.
#[test]
fn rail_that_is_down_here_may_still_reach_the_peer() {
    let mut pair = pair();
    pair.link_down(0, 1);
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.close_port(nic);
    pair.recv(1, 1, 64);
    pair.send_message(7, 1);
    pair.poll_times(&[0, 1], 1600); // 40 ms
    assert_eq!(pair.vqps[0].close_reason(), None);
    pair.link_up(0, 1);
    assert_eq!(reason(&mut pair, &[0, 1]), None);
    assert!(succeeded(&pair, 7));
}

/// A rail whose NIC is dead at this end never reaches the peer again, so the end does not wait for
/// the rail.
#[test]
fn rail_whose_nic_is_dead_here_does_not_count() {
    let mut pair = pair();
    let nic = pair.testbed.nics[0][1].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    pair.poll_times(&[0, 1], 100);
    pair.testbed.world.exit(pair.testbed.hosts[1]);
    assert_eq!(reason(&mut pair, &[0]), Some(CloseReason::PeerExited));
}

#[test]
fn forged_refusals_do_not_end_a_vqp_whose_peer_is_heard() {
    let mut pair = pair();
    for _ in 0..400 {
        for rail in 0..2 {
            let [here, there] = pair.testbed.rail(rail);
            pair.testbed.world.forge_refusal(here, there);
        }
        pair.poll_times(&[0, 1], 40);
    }
    assert_eq!(pair.vqps[0].close_reason(), None);
}

/// The forged messages do not close the vQP, because the peer was paused for less than its own
/// timeout.
#[test]
fn one_forged_refusal_per_rail_is_no_exit() {
    let mut pair = pair();
    for rail in 0..2 {
        let [here, there] = pair.testbed.rail(rail);
        pair.testbed.world.forge_refusal(here, there);
    }
    pair.poll_times(&[0], 1600); // the peer is paused for 40 ms
    assert_eq!(pair.vqps[0].close_reason(), None);
    assert_eq!(reason(&mut pair, &[0, 1]), None);
}

/// Links flap, and NICs die or are reset. While the process lives, no exit is reported. When the
/// process has ended and the links are up, an exit is always reported.
#[test]
fn random_faults_are_never_taken_for_an_exit() {
    let (mut exits, mut others) = (0, 0);
    for seed in seeds(150) {
        let mut testbed = Testbed::new(seed, 3);
        let mut rng = testbed.world.test_rng("faults");
        testbed.world.stop_noise();
        let mut pair = VqpPair::with_testbed(testbed, with_heartbeats());
        pair.poll_times(&[0, 1], 100);
        for step in 0..30 {
            let (end, rail) = (rng.index(2), rng.index(3));
            match rng.below(10) {
                0 => {
                    let nic = pair.testbed.nics[1][rail].id();
                    pair.testbed.world.close_port(nic);
                }
                1 => {
                    let nic = pair.testbed.nics[end][rail].id();
                    pair.testbed.world.fail(nic, Failure::NicDead);
                }
                2..6 => pair.link_down(end, rail),
                _ => pair.link_up(end, rail),
            }
            if pair.vqps[0].close_reason().is_none() {
                let _ = pair.vqps[0].post_send(SendWr::new(
                    step,
                    SendOp::Write(pair.remote(1, 8 * step)),
                    Data::inline(&step.to_ne_bytes()),
                ));
            }
            let ends: &[usize] = [&[0, 1][..], &[0]][usize::from(rng.below(4) == 0)];
            pair.poll_times(ends, 200); // 5 ms
        }
        // Perhaps no rail is left that has a live NIC at this end and an open port at the peer.
        // Then nothing of the peer is reachable, and the end may report an exit.
        let is_dead = |end: usize, rail: usize| pair.testbed.nics[end][rail].query_port().is_err();
        let no_rail_left = (0..3).all(|rail| is_dead(0, rail) || is_dead(1, rail));
        if let Some(reason) = pair.vqps[0].close_reason() {
            assert!(reason != CloseReason::PeerExited || no_rail_left, "seed {seed}");
            others += 1;
            continue;
        }
        pair.testbed.world.heal();
        let exited_at = pair.testbed.world.now();
        pair.testbed.world.exit(pair.testbed.hosts[1]);
        match reason(&mut pair, &[0]) {
            Some(CloseReason::PeerExited) => exits += 1,
            // The peer's last message has announced the close, or no NIC is alive at this end.
            Some(CloseReason::PeerClosed | CloseReason::NoRail) => others += 1,
            // `peer_timeout` was almost over when the process ended.
            Some(CloseReason::PeerUnreachable) if pair.testbed.world.now() - exited_at < PEER_TIMEOUT / 4 => {
                others += 1;
            }
            reason => panic!("seed {seed}: {reason:?} after {:?}", pair.testbed.world.now() - exited_at),
        }
    }
    let few = seeds(150).count() / 10;
    assert!(exits > few && others > 0, "{exits} exits, {others} other ends");
}
