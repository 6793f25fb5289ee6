//! Ends without heartbeats. An end must close if its peer is gone, and must stay open if the peer
//! is only slow or cut off for a time.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BackedQp, CloseReason, CompletionLogConfig, Config, Outcome, UnresolvedError};
use mitra_sim::{Failure, Testbed};
use mitra_verbs::{Access, Buffer, Data, SendOp, SendWr};

use super::pair::BackedPair;
use super::run::config;

const SUCCESS: Outcome = Outcome::Success;

fn pair(world: mitra_sim::Config) -> BackedPair {
    pair_with(world, config())
}

fn pair_with(world: mitra_sim::Config, mut config: Config) -> BackedPair {
    config.detector.max_missed_heartbeats = 0;
    let testbed = Testbed::with_config(1, world, 2);
    BackedPair::with(testbed, config, 1, |backup, _| backup.queue_pair(config))
}

/// The number of polls in a time. [`BackedPair::poll`] advances the time.
fn polls(time: Duration) -> usize {
    (time.as_micros() / 25) as usize
}

/// The peer's NIC acknowledges the packets of the WRITE all the time, so the peer is not gone.
#[test]
fn write_that_takes_longer_than_the_peer_timeout_ends_in_success() {
    const LEN: usize = 40 << 20;
    let mut world = mitra_sim::Config::fault_free();
    world.link.kib_time = Duration::from_micros(10); // 410 ms for the WRITE
    let mut pair = pair(world);
    let buffers = [0, 1].map(|_| Arc::new(Buffer::new(LEN)));
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let [from, to] = [0, 1].map(|h: usize| {
        pair.qps[h][0].domain().register(&buffers[h], access).expect("the NICs have a free region")
    });
    pair.qps[0][0].import(&to.remote()).expect("the queue pair is connected");
    pair.poll(&[0], 400);
    let write = SendWr::new(1, SendOp::Write(to.remote().at(0)), Data::sge(from.sge(0, LEN as u32)));
    pair.qps[0][0].post_send(write).expect("room");
    let timeout = config().peer_timeout;
    pair.poll(&[0], polls(timeout));
    assert_eq!(pair.outcomes(0, 0), [], "the WRITE takes longer than {timeout:?}");
    pair.poll(&[0], polls(timeout));
    assert_eq!((pair.outcomes(0, 0), pair.qps[0][0].close_reason()), (vec![(1, SUCCESS)], None));
}

/// The message waits while this end has no rail, and then while the peer does not run. Each wait is
/// shorter than the peer timeout, and both together are longer.
#[test]
fn message_that_waits_for_a_failover_does_not_count_as_unanswered() {
    let mut pair = pair(mitra_sim::Config::fault_free());
    pair.poll(&[0, 1], 400);
    let nics = [0, 1].map(|rail| pair.testbed.rail(rail)[0]);
    let part = config().peer_timeout * 3 / 4;
    pair.qps[0][0].import(&pair.mr[1].remote()).expect("the queue pair is connected");
    pair.backups[0].progress(); // posts the message that asks for the grant
    nics.iter().for_each(|&nic| pair.testbed.world.set_link(nic, false));
    let poll_a = |pair: &mut BackedPair| {
        for _ in 0..polls(part) {
            pair.qps[0][0].poll(&mut pair.completions[0][0]);
            pair.testbed.world.run_for(Duration::from_micros(25));
        }
    };
    poll_a(&mut pair);
    assert!(pair.backups[0].has_messages());
    pair.testbed.world.set_link(nics[1], true);
    poll_a(&mut pair);
    assert!(pair.backups[0].has_messages());
    assert_eq!(pair.backups[0].close_reason(), None);
    pair.poll(&[0, 1], 4000);
    assert_eq!((pair.backups[0].has_messages(), pair.backups[0].close_reason()), (false, None));
    assert!(pair.qps.iter().flatten().all(BackedQp::has_rail));
}

/// The peer's NIC has acknowledged a durable WRITE and then dies, so no retry of the own queue pair
/// shows the failure. The peer's program has also stopped.
#[test]
fn durable_operation_does_not_wait_for_a_dead_peer() {
    let mut world = mitra_sim::Config::fault_free();
    world.capabilities.ack_after_placement = false;
    let log = CompletionLogConfig { durable: true, ..CompletionLogConfig::default() };
    let mut pair = pair_with(world, Config { completion_log: Some(log), ..config() });
    pair.poll(&[0, 1], 400);
    pair.write(0, 3, 7);
    pair.poll(&[0], 4);
    assert_eq!((pair.outcomes(0, 0), pair.word(3)), (vec![], 7));
    for rail in 0..2 {
        let nic = pair.testbed.rail(rail)[1];
        pair.testbed.world.fail(nic, Failure::NicDead);
    }
    pair.poll(&[0], polls(config().peer_timeout * 4));
    let undecided = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::PeerUnreachable));
    assert_eq!(pair.outcomes(0, 0), [(7, undecided)]);
}
