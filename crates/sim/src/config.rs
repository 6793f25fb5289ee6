use core::time::Duration;

use mitra_transport::fault::Noise;
use mitra_transport::{NicConfig, Tuning};
use mitra_verbs::{Capabilities, Gid};

use crate::{Prng, Range};

/// How a world behaves: everything that a seed may choose, in one place, printed with every failure.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// What cables and switches do to packets.
    pub wire: Wire,
    /// How placements reach host memory.
    pub memory: MemoryTiming,
    /// How fast NICs react.
    pub nic: NicTiming,
    /// How fast applications react.
    pub host: HostTiming,
    /// What NICs can do; each NIC may be given others.
    pub capabilities: Capabilities,
    /// Pacing of the transport.
    pub tuning: Tuning,
}

/// What cables and switches do to packets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wire {
    /// From leaving one NIC to arriving at the other. Without noise, packets of one path stay in order.
    pub latency: Range,
    /// How long a NIC takes to put 1,024 bytes on its cable.
    pub kib_time: Duration,
    /// Loss, duplication, reordering, corruption.
    pub noise: Noise,
    /// How many packets in a million are held back by `straggle`, even beyond a failover.
    pub straggler_ppm: u32,
    /// How long a straggler takes.
    pub straggle: Range,
    /// How many in a million of the packets that are on a cable when it fails arrive nevertheless, after `straggle`.
    pub survivor_ppm: u32,
    /// The longest RoCE packet, headers and ICRC included, that gets through: less than both ends believe is a path with a hole.
    pub longest: usize,
    /// Whether NICs hang on a switch: then only the failed NIC sees its link go down, else its peers do too.
    pub switched: bool,
}

/// How placements reach host memory: in chunks, each at its time, the last chunk of a placement last.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemoryTiming {
    /// The fewest bytes of a chunk ...
    pub chunk_min: usize,
    /// ... and the most.
    pub chunk_max: usize,
    /// Between two chunks.
    pub delay: Range,
    /// How many placements in a million have their chunks (but the last) in any order.
    pub shuffle_ppm: u32,
    /// Between an atomic's load and its store.
    pub atomic: Range,
    /// Whether revoking waits for placements under way, as it must. Switched off, the simulator must find the damage.
    pub honest_revoke: bool,
}

/// How fast NICs react.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NicTiming {
    /// From a call or an arrival to the next look at what there is to send.
    pub doorbell: Range,
    /// How late timers are.
    pub lateness: Range,
    /// From an arrival to an idle poll, at which owed acknowledgements may leave.
    pub idle: Range,
    /// Whether each NIC's clock has an origin of its own.
    pub own_clocks: bool,
    /// How many deaths and hangs in a million are reported by a fatal event; the others are silent.
    pub fatal_event_ppm: u32,
    /// How long that takes.
    pub fatal_event: Range,
}

/// How fast applications react.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostTiming {
    /// Between two steps of an application that is busy, and from a completion to the step that may see it.
    pub step: Range,
    /// The most between two steps of one that is idle.
    pub idle_step: Duration,
    /// How many steps in a million are followed by a pause of the whole host ...
    pub pause_ppm: u32,
    /// ... of this length. Its NICs go on.
    pub pause: Range,
}

impl Config {
    /// A fabric without faults.
    pub fn calm() -> Config {
        let NicConfig { capabilities, tuning, .. } = NicConfig::new("", Gid([0; 16]), [0; 32]);
        Config {
            wire: Wire {
                latency: Range::nanos(900, 1_200),
                kib_time: Duration::from_nanos(80),
                noise: Noise::default(),
                straggler_ppm: 0,
                straggle: Range::micros(1_000, 1_000_000),
                survivor_ppm: 0,
                longest: usize::MAX,
                switched: true,
            },
            memory: MemoryTiming {
                chunk_min: 64,
                chunk_max: 4096,
                delay: Range::nanos(10, 150),
                shuffle_ppm: 0,
                atomic: Range::nanos(20, 200),
                honest_revoke: true,
            },
            nic: NicTiming {
                doorbell: Range::nanos(20, 200),
                lateness: Range::nanos(0, 2_000),
                idle: Range::nanos(500, 5_000),
                own_clocks: false,
                fatal_event_ppm: 1_000_000,
                fatal_event: Range::micros(1, 500),
            },
            host: HostTiming {
                step: Range::nanos(200, 2_000),
                idle_step: Duration::from_micros(500),
                pause_ppm: 0,
                pause: Range::micros(10, 5_000),
            },
            capabilities,
            tuning,
        }
    }

    /// A fabric whose faults and speeds the seed chooses. Each kind of fault is on in only some seeds, so that
    /// none hides another.
    pub fn swarm(seed: u64) -> Config {
        let rng = &mut Prng::stream(seed, "swarm");
        let mut c = Config::calm();
        let half = |rng: &mut Prng| rng.below(2) == 0;
        // From rare to frequent, evenly by order of magnitude.
        let rate = |rng: &mut Prng| 300 << rng.below(8);
        if half(rng) {
            c.wire.noise.drop_ppm = rate(rng);
        }
        if half(rng) {
            c.wire.noise.duplicate_ppm = rate(rng);
        }
        if half(rng) {
            c.wire.noise.reorder_ppm = rate(rng);
        }
        if half(rng) {
            c.wire.noise.corrupt_ppm = rate(rng);
        }
        c.wire.noise.max_delay = Duration::from_nanos(2_000 << rng.below(8));
        if rng.below(4) == 0 {
            c.wire.straggler_ppm = 200 << rng.below(5);
        }
        c.wire.straggle = Range::micros(500 << rng.below(4), 8_000 << rng.below(8));
        c.wire.survivor_ppm = *rng.pick(&[0, 200_000, 1_000_000]);
        c.wire.switched = half(rng);
        let base = 300 << rng.below(5);
        c.wire.latency = Range::nanos(base, base + (base << rng.below(3)));
        c.wire.kib_time = Duration::from_nanos(20 << rng.below(5));
        c.memory.chunk_min = *rng.pick(&[8, 64, 64, 256]);
        c.memory.chunk_max = c.memory.chunk_min * (1 << rng.below(6));
        c.memory.delay = Range::nanos(1, 50 << rng.below(6));
        c.memory.shuffle_ppm = *rng.pick(&[0, 100_000, 500_000]);
        c.memory.atomic = Range::nanos(1, 100 << rng.below(5));
        c.nic.doorbell = Range::nanos(10, 50 << rng.below(6));
        c.nic.lateness = Range::nanos(0, 500 << rng.below(6));
        c.nic.idle = Range::nanos(200, 2_000 << rng.below(5));
        c.nic.own_clocks = rng.below(4) == 0;
        c.nic.fatal_event_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
        c.nic.fatal_event = Range::micros(1, 10 << rng.below(10));
        c.host.step = Range::nanos(100, 500 << rng.below(5));
        c.host.idle_step = Duration::from_micros(100 << rng.below(5));
        if rng.below(4) == 0 {
            c.host.pause_ppm = 200 << rng.below(6);
            c.host.pause = Range::micros(10, 100 << rng.below(7));
        }
        c.tuning.ack_every = 1 << rng.below(6);
        c.tuning.ack_delay = Duration::from_micros(1 << rng.below(7));
        c.tuning.send_window = 4096 << rng.below(8);
        c
    }

    /// The same without what loses, holds back or changes packets, and without pauses: what failed may now end.
    pub fn healed(&self) -> Config {
        let mut c = self.clone();
        c.wire.noise = Noise::default();
        c.wire.straggler_ppm = 0;
        c.wire.survivor_ppm = 0;
        c.host.pause_ppm = 0;
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_is_on_in_some_seeds_and_off_in_others() {
        let all: Vec<Config> = (0..64).map(Config::swarm).collect();
        let kinds: [fn(&Config) -> bool; 9] = [
            |c| c.wire.noise.drop_ppm > 0,
            |c| c.wire.noise.duplicate_ppm > 0,
            |c| c.wire.noise.reorder_ppm > 0,
            |c| c.wire.noise.corrupt_ppm > 0,
            |c| c.wire.straggler_ppm > 0,
            |c| c.wire.survivor_ppm > 0,
            |c| c.memory.shuffle_ppm > 0,
            |c| c.nic.own_clocks,
            |c| c.host.pause_ppm > 0,
        ];
        for (i, on) in kinds.iter().enumerate() {
            let n = all.iter().filter(|c| on(c)).count();
            assert!((5..60).contains(&n), "kind {i} is on in {n} of 64");
        }
        assert_eq!(Config::swarm(3), Config::swarm(3));
    }

    #[test]
    fn healing_leaves_no_fault() {
        for seed in 0..20 {
            let c = Config::swarm(seed).healed();
            assert_eq!(c.wire.noise, Noise::default());
            assert_eq!((c.wire.straggler_ppm, c.wire.survivor_ppm, c.host.pause_ppm), (0, 0, 0));
        }
    }
}
