//! Unreliable connections: messages may be lost when a rail fails. They arrive in order, and none
//! arrives twice.

use core::time::Duration;

use mitra_failover::{
    BuildError, CompletionLogConfig, Config, Domain, Fencing, Outcome, Policy, Service, VirtualQp,
};
use mitra_sim::{Config as WorldConfig, DurationRange, Noise, Prng, seeds};
use mitra_verbs::{Data, Error, Key, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};

use crate::vqp_pair::{VqpPair, config};

/// The offsets of the second end's receives, and of the word that the first end writes.
const SLOTS: u64 = 100;
const WORD: u64 = 0x8000;

fn unreliable() -> Config {
    Config { service: Service::Unreliable, ..config() }
}

/// A world in which a packet survives a failure of its cable and arrives when the cable is up
/// again.
fn with_late_packets(survivor_ppm: u32) -> WorldConfig {
    let mut world = WorldConfig::fault_free();
    world.link.survivor_ppm = survivor_ppm;
    world.link.straggler_delay = DurationRange::micros(2_000, 20_000);
    world
}

/// A WRITE is on the wire of the old rail while a later WRITE is executed on the new rail. Returns
/// the word after the first WRITE's packet has arrived.
fn word_after_late_packet(fencing: Fencing) -> u64 {
    let config = Config { fencing, ..unreliable() };
    let mut pair = VqpPair::with_world(2, config, with_late_packets(1_000_000));
    pair.poll_times(&[0, 1], 10);
    pair.send_write(1, WORD, 1);
    pair.testbed.world.run_for(Duration::from_nanos(900));
    pair.link_down(1, 0);
    pair.poll_times(&[0, 1], 100);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1, 1]);
    pair.send_write(2, WORD, 2);
    pair.poll_times(&[0, 1], 10);
    assert_eq!(pair.memory[1].load(WORD as usize), 2);
    pair.link_up(1, 0);
    pair.poll_times(&[0, 1], 4_000);
    let done = [1, 2].map(|wr_id| pair.outcome(0, wr_id, false));
    assert_eq!(done, [Some(Outcome::Success); 2]);
    pair.memory[1].load(WORD as usize)
}

#[test]
fn late_packet_of_the_old_rail_is_dropped() {
    assert_eq!(word_after_late_packet(Fencing::On), 2);
    assert_eq!(word_after_late_packet(Fencing::Off), 1, "without the fence, the late packet is executed");
}

struct Storm {
    pair: VqpPair,
    sent: u64,
    /// `completed` counts the sends up to the last completed send, `received` the completed
    /// receives, and `posted` the posted receives.
    completed: u64,
    received: u64,
    posted: u64,
    /// The last received message, and the last seen word.
    last: u64,
    word: u64,
    seed: u64,
}

impl Storm {
    fn new(seed: u64, rails: u8, survivor_ppm: u32) -> Storm {
        let pair = VqpPair::with_world(rails, unreliable(), with_late_packets(survivor_ppm));
        let mut storm = Storm { pair, sent: 0, completed: 0, received: 0, posted: 0, last: 0, word: 0, seed };
        storm.post_receives();
        storm.poll(10);
        storm
    }

    fn post_receives(&mut self) {
        while self.posted < self.received + 32 {
            let sge = self.pair.mr[1].sge(self.posted % SLOTS * 256, 64);
            self.pair.vqps[1].post_recv(RecvWr::new(self.posted, sge)).expect("the queue has room");
            self.posted += 1;
        }
    }

    /// Sends a message of one of four kinds. The NIC reports nothing about an unsignalled message.
    fn send(&mut self, kind: u64, flags: SendFlags) {
        if self.pair.vqps[0].outstanding() >= 60 {
            return;
        }
        self.sent += 1;
        let (n, word) = (self.sent, self.pair.remote(1, WORD));
        let op = match kind {
            0 => SendOp::Send,
            1 => SendOp::Write(word),
            2 => SendOp::SendWithImm(n as u32),
            _ => SendOp::WriteWithImm(word, n as u32),
        };
        let wr = SendWr::new(n - 1, op, Data::inline(&n.to_ne_bytes())).with_flags(flags);
        self.pair.vqps[0].post_send(wr).expect("the send queue has room");
    }

    fn poll(&mut self, times: usize) {
        for _ in 0..times {
            self.pair.poll(&[0, 1]);
            let [sends, receives] = &mut self.pair.completions;
            for completion in sends.drain(..) {
                assert!(completion.wr_id >= self.completed, "seed {}", self.seed);
                assert_eq!(completion.outcome, Outcome::Success, "seed {}", self.seed);
                self.completed = completion.wr_id + 1;
            }
            for completion in receives.drain(..) {
                assert_eq!(
                    (completion.wr_id, completion.outcome),
                    (self.received, Outcome::Success),
                    "seed {}",
                    self.seed
                );
                self.received += 1;
                let message = match completion.imm {
                    Some(imm) => u64::from(imm),
                    None => self.pair.memory[1].load((completion.wr_id % SLOTS * 256) as usize),
                };
                assert!(message > self.last, "seed {}: {message} after {}", self.seed, self.last);
                assert_eq!(completion.byte_len, 8);
                self.last = message;
            }
            let word = self.pair.memory[1].load(WORD as usize);
            assert!(word >= self.word, "seed {}: the word {word} after {}", self.seed, self.word);
            self.word = word;
            self.post_receives();
        }
    }
}

/// When the links are up again, messages arrive.
#[test]
fn messages_stay_in_order_while_links_fail() {
    let mut lost = 0;
    for seed in seeds(150) {
        let rng = &mut Prng::stream(seed, "unreliable");
        let rails = *rng.pick(&[2, 3]);
        let mut storm = Storm::new(seed, rails, *rng.pick(&[0, 500_000, 1_000_000]));
        let mut down = None;
        for _ in 0..60 {
            for _ in 0..rng.below(6) {
                storm.send(rng.below(4), *rng.pick(&[SendFlags::SIGNALED, SendFlags::empty()]));
            }
            if rng.below(2) == 0 {
                storm.pair.testbed.world.run_for(Duration::from_nanos(rng.below(3_000)));
            }
            if rng.below(8) == 0 {
                // At most one link is down, so that the vQP can move.
                if let Some((h, rail)) = down.take() {
                    storm.pair.link_up(h, rail);
                    // The ends can move to the rail when the next one fails.
                    storm.poll(200);
                } else {
                    let (h, rail) = (rng.below(2) as usize, rng.below(u64::from(rails)) as usize);
                    storm.pair.link_down(h, rail);
                    down = Some((h, rail));
                    // The ends leave the rail before it heals. A path that holds packets back also
                    // reorders the packets of one queue pair.
                    storm.poll(200);
                }
            }
            storm.poll(rng.below(30) as usize);
        }
        down.into_iter().for_each(|(h, rail)| storm.pair.link_up(h, rail));
        storm.poll(2_000);
        let (before, arrived) = (storm.last, storm.received);
        for _ in 0..4 {
            storm.send(0, SendFlags::SIGNALED);
        }
        storm.poll(100);
        assert_eq!(storm.completed, storm.sent, "seed {seed}: every send completes");
        assert_eq!(storm.received, arrived + 4, "seed {seed}: messages after {before} arrive");
        assert_eq!(storm.pair.vqps.each_ref().map(VirtualQp::close_reason), [None, None], "seed {seed}");
        lost += u64::from(storm.received < storm.sent);
    }
    assert!(lost > 0, "no run has lost a message, so no message was in flight at a failure");
}

/// Receives continue, also on the next rail, and the application restarts the sends.
#[test]
fn invalid_request_stops_sends_only() {
    for moves in [false, true] {
        let mut pair = VqpPair::new(2, unreliable());
        (1..4).for_each(|id| pair.recv(0, id, 64));
        pair.recv(1, 1, 64);
        pair.poll_times(&[0, 1], 10);
        let wrong = Sge { key: Key(0xdead), ..pair.mr[0].sge(0, 8) };
        pair.send(0, 1, SendOp::Send, Data::sge(wrong));
        pair.send(0, 2, SendOp::Send, Data::inline(&[2]));
        pair.poll_times(&[0, 1], 10);
        assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::LocalProtection)));
        assert_eq!(pair.outcome(0, 2, false), Some(Outcome::Failed(WcStatus::Flushed)));
        assert!(pair.vqps[0].is_halted() && pair.vqps[0].close_reason().is_none());
        if moves {
            pair.fail_over(200);
        }
        pair.send(1, 5, SendOp::Send, Data::inline(&[5]));
        pair.poll_times(&[0, 1], 10);
        assert_eq!(pair.outcome(0, 1, true), Some(Outcome::Success));
        pair.vqps[0].resume();
        pair.send(0, 3, SendOp::Send, Data::inline(&[3]));
        pair.poll_times(&[0, 1], 10);
        assert_eq!(pair.outcome(1, 1, true), Some(Outcome::Success));
        assert_eq!(pair.outcome(0, 3, false), Some(Outcome::Success));
        // A READ has no meaning on an unreliable connection.
        let read = SendOp::Read(pair.remote(1, 0));
        pair.send(0, 4, read, Data::sge(pair.mr[0].sge(0, 8)));
        pair.poll_times(&[0, 1], 10);
        assert_eq!(pair.outcome(0, 4, false), Some(Outcome::Failed(WcStatus::LocalQpOperation)));
        assert_eq!(pair.vqps[0].close_reason(), None);
    }
}

/// The loss of messages that wait for a rail is no error of the sender.
#[test]
fn messages_to_a_closed_peer_are_lost() {
    let mut pair = VqpPair::new(2, unreliable());
    pair.recv(0, 1, 64);
    pair.poll_times(&[0, 1], 10);
    // The first end has failed rails, and its messages wait.
    pair.link_down(0, 0);
    pair.poll_times(&[0], 40);
    pair.send_message(1, 7);
    pair.poll_times(&[0], 10);
    assert_eq!(pair.outcome(0, 1, false), None);
    pair.vqps[1].shutdown();
    pair.poll_times(&[0, 1], 40);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
    assert_eq!(pair.outcome(0, 1, true), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(pair.completions[0].iter().filter(|c| c.opcode == WcOpcode::Send).count(), 1);
}

/// `build` refuses what an unreliable connection cannot have. Both ends must have the same service.
#[test]
fn mixed_ends_and_policies_that_replay_are_refused() {
    let domain = || {
        let testbed = mitra_sim::Testbed::new(1, 2);
        let nics = testbed.nics[0].iter().map(|nic| std::sync::Arc::clone(nic) as _).collect();
        Domain::new(nics).expect("the NICs have the resources of a domain")
    };
    let domains = [domain(), domain()];
    let build = |config| VirtualQp::builder(&domains[0]).config(config).build();
    for policy in [Policy::Blanket, Policy::Transparent, Policy::Delay] {
        assert_eq!(build(Config { policy, ..unreliable() }).err(), Some(BuildError::Unreliable));
    }
    let log = build(Config { completion_log: Some(CompletionLogConfig::default()), ..unreliable() });
    assert_eq!(log.err(), Some(BuildError::Unreliable));
    let mut one = build(unreliable()).expect("the policy is exact");
    let other = VirtualQp::builder(&domains[1]).config(config()).build().expect("the NICs have room");
    let info = other.local_info();
    assert!(matches!(one.connect(&info), Err(Error::Invalid(rule)) if rule.contains("unreliable")));
}

/// Requests complete at the sender although their rail is silent, so their completions show no
/// progress there.
#[test]
fn streams_in_both_directions_leave_a_silent_rail() {
    let mut config = unreliable();
    config.detector.max_missed_heartbeats = 5;
    let mut pair = VqpPair::new(2, config);
    pair.poll_times(&[0, 1], 200);
    let nic = pair.testbed.nics[0][0].id();
    let silent = Noise { drop_ppm: 1_000_000, ..Noise::default() };
    pair.testbed.world.faults(nic, |faults| {
        faults.set_noise_tx(silent);
        faults.set_noise_rx(silent);
    });
    for wr_id in 0..5_000 {
        for end in 0..2 {
            pair.send(end, wr_id, SendOp::Write(pair.remote(1 - end, WORD)), Data::inline(&[1; 8]));
        }
        pair.poll_times(&[0, 1], 4);
        if pair.vqps.each_ref().map(|vqp| vqp.active_rail()) == [1; 2] {
            return;
        }
    }
    panic!("the rail is not left: {:?}", pair.vqps.each_ref().map(|vqp| vqp.close_reason()));
}
