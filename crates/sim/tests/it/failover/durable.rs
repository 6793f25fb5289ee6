//! The mode `durable`, between NICs that acknowledge data before they place it.

use mitra_failover::{CloseReason, CompletionLogConfig, Config, Domain, Outcome, UnresolvedError, VirtualQp};
use mitra_sim::{DurationRange, Testbed, reproduce_command, seeds};
use mitra_verbs::{Access, Data, Provider, SendOp};
use std::sync::Arc;

use crate::vqp_pair::{VqpPair, config};

fn pair(ack_after_placement: bool) -> VqpPair {
    pair_with(ack_after_placement, config())
}

fn pair_with_heartbeats() -> VqpPair {
    let mut config = config();
    config.detector.max_missed_heartbeats = 8;
    pair_with(false, config)
}

const DURABLE: Option<CompletionLogConfig> =
    Some(CompletionLogConfig { interval: 1, entries: None, durable: true });

/// Makes a pair of durable vQPs. End 1 has a receive.
fn pair_with(ack_after_placement: bool, config: Config) -> VqpPair {
    let mut world = mitra_sim::Config::fault_free();
    world.capabilities.ack_after_placement = ack_after_placement;
    let config = Config { completion_log: DURABLE, ..config };
    let mut pair = VqpPair::with_world(2, config, world);
    pair.recv(1, 0, 64);
    pair.memory[1].write_at(8200, &3u64.to_ne_bytes());
    pair.poll_times(&[0, 1], 10);
    pair
}

fn post_all(pair: &mut VqpPair) {
    pair.send_write(0, 8192, 7);
    let (read, add) = (pair.mr[0].sge(0, 8), pair.mr[0].sge(8, 8));
    pair.send(0, 1, SendOp::Read(pair.remote(1, 8200)), Data::sge(read));
    let remote = pair.remote(1, 8192);
    pair.send(0, 2, SendOp::FetchAdd { remote, add: 5 }, Data::sge(add));
    pair.send_message(3, 9);
}

fn outcomes(pair: &VqpPair) -> Vec<(u64, Outcome)> {
    pair.completions[0].iter().map(|c| (c.wr_id, c.outcome)).collect()
}

const ALL: [(u64, Outcome); 4] =
    [(0, Outcome::Success), (1, Outcome::Success), (2, Outcome::Success), (3, Outcome::Success)];

/// Nothing completes before the peer's processor has run. If the NIC acknowledges only what is in
/// memory, the processor need not run.
#[test]
fn operations_complete_when_the_peer_has_seen_them() {
    let mut pair = pair(false);
    post_all(&mut pair);
    pair.poll_times(&[0], 40);
    assert_eq!((outcomes(&pair), pair.memory[1].load(8192)), (vec![], 12));
    pair.poll_times(&[0, 1], 10);
    assert_eq!(outcomes(&pair), ALL);
    assert_eq!((pair.memory[0].load(0), pair.memory[0].load(8)), (3, 7));

    let mut pair = self::pair(true);
    post_all(&mut pair);
    pair.poll_times(&[0], 40);
    assert_eq!(outcomes(&pair), ALL);
}

/// Confirmations of one rail arrive when the vQP is on the next rail. They do not count the
/// messages of the next rail. A sender's success always belongs to a message that the receiver has
/// taken.
#[test]
fn late_confirmation_of_an_earlier_rail_confirms_nothing() {
    const MESSAGES: u64 = 32;
    for seed in seeds(60) {
        let mut world = mitra_sim::Config::fault_free();
        world.capabilities.ack_after_placement = false;
        world.link.straggler_ppm = 300_000;
        world.link.straggler_delay = DurationRange::micros(20, 2_000);
        let config = Config { completion_log: DURABLE, ..config() };
        let mut pair = VqpPair::with_testbed(Testbed::with_config(seed, world, 2), config);
        (0..MESSAGES).for_each(|id| pair.recv(1, id, 8));
        pair.poll_times(&[0, 1], 10);
        let mut sent = 0;
        for poll in 0..2000 {
            if sent < MESSAGES && poll % 4 == 0 {
                pair.send_message(100 + sent, sent);
                sent += 1;
            }
            if poll == 30 {
                pair.link_down(0, 0);
            }
            pair.poll(if poll % 3 == 0 { &[0, 1] } else { &[0] });
            let succeeded = pair.completions[0].iter().filter(|c| c.outcome == Outcome::Success).count();
            let taken = pair.received_ids().len();
            assert!(
                succeeded <= taken,
                "seed {seed}: {succeeded} successes, {taken} taken\n{}",
                reproduce_command(seed)
            );
        }
        assert_eq!(pair.received_ids().len() as u64, MESSAGES, "seed {seed}");
        assert_eq!(pair.completions[0].len() as u64, MESSAGES, "seed {seed}");
    }
}

/// Operations wait until the peer has seen them. If the rail fails meanwhile, the evidence decides
/// these operations, and they return the values that the old rail delivered.
#[test]
fn failover_decides_operations_that_wait() {
    let mut pair = pair(false);
    post_all(&mut pair);
    pair.poll_times(&[0], 40);
    pair.fail_over(400);
    assert_eq!(outcomes(&pair), ALL);
    assert_eq!((pair.memory[0].load(0), pair.memory[0].load(8), pair.memory[1].load(8192)), (3, 7, 12));
    assert_eq!(pair.received_ids(), [0]);
    // In the next epoch, the count of messages begins again.
    pair.recv(1, 1, 64);
    pair.completions[0].clear();
    post_all(&mut pair);
    pair.poll_times(&[0], 40);
    assert_eq!(outcomes(&pair), []);
    pair.poll_times(&[0, 1], 10);
    assert_eq!(outcomes(&pair), ALL);
}

/// The answer of the peer is lost because the links are down, so the end asks again.
#[test]
fn lost_confirmation_is_repeated() {
    let mut pair = pair(false);
    post_all(&mut pair);
    pair.poll_times(&[0], 40);
    (0..2).for_each(|rail| pair.link_down(0, rail));
    pair.vqps[1].progress();
    pair.testbed.world.run_for(core::time::Duration::from_micros(50));
    (0..2).for_each(|rail| pair.link_up(0, rail));
    pair.poll_times(&[0, 1], 20);
    assert_eq!(outcomes(&pair), [], "the answer was lost");
    pair.poll_times(&[0, 1], 200);
    assert_eq!(outcomes(&pair), ALL);
    assert_eq!(pair.vqps[0].last_failover(), None);
}

/// The peer's NIC has acknowledged everything, so no retry shows that the peer's program has
/// stopped. Without heartbeats, the missing answers show that.
#[test]
fn peer_that_answers_no_question_is_unreachable() {
    for mut pair in [pair(false), pair_with_heartbeats()] {
        pair.testbed.world.pause(pair.testbed.hosts[1], None);
        pair.send_write(0, 8192, 7);
        let mut polls = 0;
        while pair.vqps[0].close_reason().is_none() && polls < 1_000_000 {
            pair.poll(&[0]);
            polls += 1;
        }
        assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerUnreachable));
        let undecided = UnresolvedError::Undecided(CloseReason::PeerUnreachable);
        assert_eq!(outcomes(&pair), [(0, Outcome::Unresolved(undecided))]);
    }
}

/// The peer's NIC executes and acknowledges the WRITE. The peer's process has stopped or ended.
#[test]
fn durable_operation_of_a_peer_that_is_gone_ends_without_heartbeats() {
    for has_ended in [false, true] {
        for mut pair in [pair(false), pair_with_heartbeats()] {
            pair.poll_times(&[0, 1], 100);
            pair.send_write(0, 8192, 7);
            pair.poll_times(&[0], 40);
            assert_eq!((outcomes(&pair), pair.memory[1].load(8192)), (vec![], 7));
            if has_ended {
                pair.testbed.world.exit(pair.testbed.hosts[1]);
            }
            let mut polls = 0;
            while pair.vqps[0].close_reason().is_none() && polls < 1_000_000 {
                pair.poll(&[0]);
                polls += 1;
            }
            assert!(pair.vqps[0].close_reason().is_some(), "the operation never ends");
            assert_eq!((pair.vqps[0].outstanding(), pair.completions[0].len()), (0, 1));
            pair.is_attacked = true; // the liveness rule is about rails
        }
    }
}

/// An end that does not run for longer than the peer timeout has not asked its peer.
#[test]
fn time_in_which_an_end_does_not_run_is_no_silence_of_its_peer() {
    let mut pair = pair(false);
    post_all(&mut pair);
    pair.poll_times(&[0], 40);
    (0..2).for_each(|rail| pair.link_down(0, rail));
    pair.vqps[1].progress();
    pair.testbed.world.run_for(config().peer_timeout * 2);
    (0..2).for_each(|rail| pair.link_up(0, rail));
    pair.poll_times(&[0, 1], 400);
    assert_eq!((outcomes(&pair), pair.vqps[0].close_reason()), (ALL.to_vec(), None));
}

#[test]
fn closing_peer_confirms_what_has_arrived() {
    for polls in [false, true] {
        let mut pair = pair(false);
        post_all(&mut pair);
        pair.poll_times(&[0], 40);
        if polls {
            // The end has the receive's completion, and nothing was due since then.
            pair.vqps[1].poll_completions(&mut Vec::new());
        }
        pair.vqps[1].shutdown();
        pair.poll_times(&[0], 20);
        assert_eq!(outcomes(&pair), ALL);
    }
}

#[test]
fn both_ends_are_durable_and_let_the_peer_write_the_log() {
    let testbed = mitra_sim::Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let domains = [0, 1].map(|h| {
        let nics = testbed.nics[h].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        Domain::new(nics).expect("the NICs have the resources of a domain")
    });
    let build = |h: usize, config| {
        VirtualQp::builder(&domains[h]).config(config).build().expect("the NICs have room")
    };
    let config = Config { completion_log: DURABLE, ..Config::default() };
    let mut durable = build(0, config);
    let logged = Config { completion_log: Some(CompletionLogConfig::default()), ..config };
    let read_only = Config { access: Access::REMOTE_READ, ..config };
    let others = [(logged, "is durable and the other is not"), (read_only, "REMOTE_WRITE")];
    for (other, reason) in others {
        let other = build(1, other);
        let error = durable.connect(&other.local_info()).expect_err("the ends differ");
        assert!(error.to_string().contains(reason), "{error}");
    }
}
