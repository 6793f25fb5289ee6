//! NICs whose addresses (GIDs) change.

use core::time::Duration;

use mitra_failover::{CloseReason, Completion, Config, Outcome, UnresolvedError};
use mitra_sim::{Testbed, fault_times, seeds};
use mitra_verbs::{Data, Provider, RecvWr, SendOp, SendWr};

use crate::vqp_pair::{VqpPair, config};

/// Heartbeats and probes every millisecond.
fn fast() -> Config {
    let mut config = Config { peer_timeout: Duration::from_millis(200), ..config() };
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 5;
    config
}

fn pair() -> VqpPair {
    let mut pair = VqpPair::new(2, fast());
    pair.poll_times(&[0, 1], 100);
    pair
}

fn change(pair: &mut VqpPair, end: usize, rail: usize) {
    let nic = pair.testbed.nics[end][rail].id();
    pair.testbed.world.change_address(nic);
}

/// Sends one message in each direction. Returns the active rail.
fn exchange(pair: &mut VqpPair, wr_id: u64) -> usize {
    for end in 0..2 {
        pair.recv(1 - end, wr_id, 64);
        pair.send(end, wr_id, SendOp::Send, Data::inline(&wr_id.to_ne_bytes()));
    }
    pair.poll_times(&[0, 1], 4000);
    for end in 0..2 {
        let done = |c: &Completion| c.wr_id == wr_id && c.is_success();
        let count = pair.completions[end].iter().filter(|c| done(c)).count();
        assert_eq!(count, 2, "end {end}: {:?}, {:?}", pair.vqps[end], pair.completions[end]);
    }
    assert_eq!(pair.vqps[0].active_rail(), pair.vqps[1].active_rail());
    pair.vqps[0].active_rail()
}

#[test]
fn standby_rail_with_another_address_is_used() {
    for end in 0..2 {
        let mut pair = pair();
        change(&mut pair, end, 1);
        pair.poll_times(&[0, 1], 200);
        assert_eq!(exchange(&mut pair, 1), 0, "the active rail is not concerned");
        pair.link_down(0, 0);
        assert_eq!(exchange(&mut pair, 2), 1);
        let failovers = [0, 1].map(|end: usize| pair.vqps[end].domain().activity().failovers);
        assert_eq!(failovers, [1, 1], "the queue pairs of the rail were connected to the address before");
    }
}

/// Both rails are used again after their addresses have changed.
// Hazard: a failback uses a stale GID
#[test]
fn active_rail_with_another_address_is_left_and_used_again() {
    for end in 0..2 {
        let mut pair = pair();
        pair.send_write(90, 0, 1);
        change(&mut pair, end, 0);
        assert_eq!(exchange(&mut pair, 1), 1);
        change(&mut pair, end, 1);
        assert_eq!(exchange(&mut pair, 2), 0);
        change(&mut pair, 1 - end, 0);
        assert_eq!(exchange(&mut pair, 3), 1);
        pair.link_down(0, 1);
        assert_eq!(exchange(&mut pair, 4), 0);
    }
}

#[test]
fn address_that_changes_while_the_link_is_down_is_used_afterwards() {
    let mut pair = pair();
    pair.link_down(0, 0);
    assert_eq!(exchange(&mut pair, 1), 1);
    change(&mut pair, 0, 0);
    pair.link_up(0, 0);
    pair.poll_times(&[0, 1], 400);
    pair.link_down(1, 1);
    assert_eq!(exchange(&mut pair, 2), 0);
}

#[test]
fn both_addresses_of_a_rail_change_at_once() {
    for rail in 0..2 {
        let mut pair = pair();
        change(&mut pair, 0, rail);
        change(&mut pair, 1, rail);
        pair.poll_times(&[0, 1], 400);
        assert_eq!(exchange(&mut pair, 1), 1 - rail, "rail {rail}");
        pair.link_down(0, 1 - rail);
        assert_eq!(exchange(&mut pair, 2), rail);
    }
}

/// The queue pairs of the rail are replaced, and the vQP stays on that rail.
#[test]
fn address_of_the_only_rail_changes() {
    for end in 0..2 {
        let mut pair = pair();
        pair.link_down(0, 1);
        pair.poll_times(&[0, 1], 100);
        change(&mut pair, end, 0);
        assert_eq!(exchange(&mut pair, 1), 0);
    }
}

/// No end knows an address of the other end, so neither can tell the other its own address. The
/// operation in flight has no evidence.
#[test]
fn ends_whose_addresses_all_change_at_once_do_not_find_each_other() {
    let mut pair = pair();
    for (end, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        change(&mut pair, end, rail);
    }
    pair.send_write(1, 0, 9);
    pair.poll_times(&[0, 1], 40_000);
    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.close_reason()), [Some(CloseReason::PeerUnreachable); 2]);
    let undecided = UnresolvedError::Undecided(CloseReason::PeerUnreachable);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Unresolved(undecided)));
}

#[test]
fn address_changes_during_a_move() {
    for polls in fault_times(0..120) {
        for (end, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut pair = pair();
            pair.link_down(0, 0);
            pair.send_write(90, 0, 1);
            pair.poll_times(&[0, 1], polls);
            change(&mut pair, end, rail);
            pair.link_up(0, 0);
            exchange(&mut pair, 1);
        }
    }
}

#[test]
fn address_is_told_to_a_peer_that_was_paused() {
    let mut pair = pair();
    change(&mut pair, 0, 1);
    pair.poll_times(&[0], 1000);
    pair.poll_times(&[0, 1], 200);
    pair.link_down(0, 0);
    assert_eq!(exchange(&mut pair, 1), 1);
}

#[test]
fn random_flaps_with_changes_lose_and_double_nothing() {
    let mut moves = 0;
    for seed in seeds(100) {
        let testbed = Testbed::new(seed, 3);
        let mut rng = testbed.world.test_rng("changes");
        let mut pair = VqpPair::with_testbed(testbed, fast());
        pair.testbed.world.stop_noise();
        pair.poll_times(&[0, 1], 100);
        let mut sent = 0;
        for _ in 0..25 {
            let (end, rail) = (rng.index(2), rng.index(3));
            pair.link_down(end, rail);
            for _ in 0..rng.below(4) {
                let slot = sent % 32;
                let recv = RecvWr::new(sent, pair.mr[1].sge(slot * 256, 64));
                let send = SendWr::new(sent, SendOp::Send, Data::inline(&sent.to_ne_bytes()));
                if pair.vqps[1].post_recv(recv).is_ok() {
                    pair.vqps[0].post_send(send).expect("the vQP is open and has room");
                    sent += 1;
                }
            }
            pair.poll_times(&[0, 1], rng.below(100) as usize);
            for end in 0..2 {
                if rng.below(3) == 0 {
                    change(&mut pair, end, rail);
                }
            }
            pair.poll_times(&[0, 1], rng.below(200) as usize);
            pair.link_up(end, rail);
            pair.poll_times(&[0, 1], 800);
        }
        pair.poll_times(&[0, 1], 2000);
        assert_eq!(pair.received_ids(), (0..sent).collect::<Vec<_>>(), "seed {seed}");
        let successes = pair.completions[0].iter().filter(|c| c.is_success()).count() as u64;
        assert_eq!(successes, sent, "seed {seed}");
        moves += pair.vqps[0].domain().activity().failovers;
        assert!(pair.testbed.nics[0][0].query_port().is_ok());
    }
    assert!(moves > 3 * seeds(100).count() as u64, "{moves}");
}
