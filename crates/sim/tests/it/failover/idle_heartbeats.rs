//! The heartbeats of ends that wait for nothing.

use core::time::Duration;

use mitra_failover::{CloseReason, Config};
use mitra_sim::Testbed;
use mitra_verbs::{Data, SendOp};

use crate::vqp_pair::{VqpPair, config};

const INTERVAL: Duration = Duration::from_millis(1);
/// Without a message for longer than two of these times, all rails are silent.
const IDLE_INTERVAL: Duration = Duration::from_millis(250);
const PEER_TIMEOUT: Duration = Duration::from_millis(100);

/// A pair of ends that have waited for nothing for two of the longest pauses.
fn idle_pair(rails: u8) -> VqpPair {
    let mut config = Config { peer_timeout: PEER_TIMEOUT, ..config() };
    config.detector.heartbeat_interval = INTERVAL;
    config.detector.max_missed_heartbeats = 5;
    let mut pair = VqpPair::new(rails, config);
    poll_for(&mut pair, &[0, 1], IDLE_INTERVAL * 2);
    pair
}

fn poll_for(pair: &mut VqpPair, ends: &[usize], time: Duration) {
    pair.poll_times(ends, time.as_micros() as usize / 25);
}

/// The number of packets that the first end has sent on rail 0.
fn sent(pair: &VqpPair) -> u64 {
    let Testbed { world, nics, .. } = &pair.testbed;
    world.stats(nics[0][0].id()).sent
}

#[test]
fn idle_end_sends_one_heartbeat_in_its_longest_pause() {
    let mut pair = idle_pair(2);
    let before = sent(&pair);
    poll_for(&mut pair, &[0, 1], IDLE_INTERVAL * 4);
    let sent = sent(&pair) - before;
    assert!((3..=5).contains(&sent), "{sent} heartbeats");
    assert!(pair.vqps.iter().all(|vqp| vqp.last_failover().is_none()));
}

/// The first end loses rail 0 soon after the second end has lost rail 1. A proposal of rail 1 would
/// be refused and use up an epoch.
#[test]
fn idle_end_says_at_once_which_rail_it_cannot_use() {
    let mut pair = idle_pair(3);
    pair.link_down(1, 1);
    poll_for(&mut pair, &[0, 1], INTERVAL * 2);
    pair.link_down(0, 0);
    poll_for(&mut pair, &[0, 1], INTERVAL * 2);
    let epoch = pair.vqps[0].last_failover().map(|report| report.epoch);
    assert_eq!((pair.vqps[0].active_rail(), epoch), (2, Some(2)));
}

#[test]
fn idle_end_notices_that_its_peer_is_gone() {
    let mut pair = idle_pair(2);
    pair.is_attacked = true; // both ends have a usable rail
    poll_for(&mut pair, &[0], IDLE_INTERVAL * 3 + PEER_TIMEOUT * 2);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerUnreachable));
}

/// An operation shortens the time: its questions stay unanswered.
#[test]
fn waiting_end_notices_within_the_peer_timeout_that_its_peer_is_gone() {
    let mut pair = idle_pair(2);
    pair.is_attacked = true;
    pair.send(0, 1, SendOp::Send, Data::inline(&[1; 8]));
    poll_for(&mut pair, &[0], PEER_TIMEOUT + INTERVAL * 20);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerUnreachable));
}
