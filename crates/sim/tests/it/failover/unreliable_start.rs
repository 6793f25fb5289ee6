//! Unreliable connections that begin with one rail down. No message is lost, because an end sends
//! nothing on a rail before it has heard the peer there.

use core::time::Duration;

use mitra_failover::{CloseReason, Config, Outcome, Service};
use mitra_sim::{Noise, Testbed};
use mitra_verbs::{Data, SendOp};

use crate::vqp_pair::{VqpPair, config};

fn unreliable() -> Config {
    let mut config =
        Config { service: Service::Unreliable, peer_timeout: Duration::from_millis(200), ..config() };
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 5;
    config.detector.first_contact_timeout = Duration::from_millis(100);
    config
}

const MESSAGES: u64 = 20;

/// Checks that every message arrives although both ends send before either end has polled.
fn everything_arrives(mut pair: VqpPair, polls: usize) {
    for end in 0..2 {
        (0..MESSAGES).for_each(|wr_id| pair.recv(end, wr_id, 64));
        (0..MESSAGES).for_each(|n| pair.send(end, 100 + n, SendOp::Send, Data::inline(&n.to_ne_bytes())));
    }
    pair.poll_times(&[0, 1], polls);
    for end in 0..2 {
        let ids = pair.completions[end].iter().filter(|c| c.is_success()).map(|c| c.wr_id);
        let (received, sent): (Vec<u64>, Vec<u64>) = ids.partition(|id| *id < 100);
        assert_eq!(received, (0..MESSAGES).collect::<Vec<_>>(), "end {end}");
        assert_eq!(sent, (100..100 + MESSAGES).collect::<Vec<_>>(), "end {end}");
    }
}

#[test]
fn rail_that_is_down_from_the_start_loses_nothing() {
    for rails in 1..=3 {
        for (end, down) in (0..2).flat_map(|end| (0..rails).map(move |down| (end, down))) {
            if rails == 1 {
                everything_arrives(VqpPair::new(1, unreliable()), 400);
                continue;
            }
            let mut testbed = Testbed::new(7, rails);
            let nic = testbed.nics[end][usize::from(down)].id();
            testbed.world.stop_noise();
            testbed.world.set_link(nic, false);
            everything_arrives(VqpPair::with_testbed(testbed, unreliable()), 2000);
        }
    }
}

/// No port reports the failure, so the detector ends the wait.
#[test]
fn path_that_is_silent_from_the_start_loses_nothing() {
    for end in 0..2 {
        let mut testbed = Testbed::new(7, 2);
        testbed.world.stop_noise();
        let silent = Noise { drop_ppm: 1_000_000, ..Noise::default() };
        let nic = testbed.nics[end][0].id();
        testbed.world.faults(nic, |faults| {
            faults.set_noise_tx(silent);
            faults.set_noise_rx(silent);
        });
        everything_arrives(VqpPair::with_testbed(testbed, unreliable()), 8000);
    }
}

#[test]
fn peer_that_is_never_heard_is_unreachable() {
    let mut pair = VqpPair::new(2, unreliable());
    pair.testbed.world.pause(pair.testbed.hosts[1], None);
    pair.send(0, 1, SendOp::Send, Data::inline(&[1; 8]));
    pair.poll_times(&[0], 100);
    assert_eq!(pair.completions[0].len(), 0);
    pair.poll_times(&[0], 40_000);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerUnreachable));
    assert_eq!((pair.vqps[0].outstanding(), pair.completions[0].len()), (0, 1));
}

/// After `send_to_unheard_peer`, an end sends on the active rail at once, and loses the messages if
/// the peer is not connected. Once it hears the peer on another rail only, messages wait until the
/// connection moves there.
#[test]
fn messages_to_an_unheard_peer_are_sent_on_request() {
    let mut pair = VqpPair::new(2, unreliable());
    pair.send(0, 1, SendOp::Send, Data::inline(&[1; 8]));
    pair.poll_times(&[0], 20);
    assert_eq!(pair.completions[0].len(), 0);
    pair.vqps[0].send_to_unheard_peer();
    pair.poll_times(&[0], 20);
    assert!(pair.outcome(0, 1, false).is_some_and(|outcome| outcome == Outcome::Success));
    assert!(!pair.vqps[0].is_peer_heard());

    let mut testbed = Testbed::new(7, 2);
    testbed.world.stop_noise();
    let silent = Noise { drop_ppm: 1_000_000, ..Noise::default() };
    let nic = testbed.nics[1][0].id();
    testbed.world.faults(nic, |faults| {
        faults.set_noise_tx(silent);
        faults.set_noise_rx(silent);
    });
    let mut pair = VqpPair::with_testbed(testbed, unreliable());
    pair.vqps.iter_mut().for_each(|vqp| vqp.send_to_unheard_peer());
    while pair.vqps.iter().any(|vqp| !vqp.is_peer_heard()) {
        pair.poll(&[0, 1]);
    }
    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [0; 2]);
    everything_arrives(pair, 8000);
}
