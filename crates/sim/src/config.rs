use core::time::Duration;

use mitra_transport::fault::Noise;
use mitra_transport::{NicConfig, Tuning};
use mitra_verbs::{Capabilities, Gid};

use crate::{DurationRange, Prng};

/// The configuration of a world, which [`Config::swarm`] draws from a seed. A failing test prints
/// it.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The behaviour of cables and switches.
    pub link: LinkConfig,
    /// The timing of placements in host memory.
    pub memory: MemoryTiming,
    /// The speed of NICs.
    pub nic: NicTiming,
    /// The speed of applications.
    pub host: HostTiming,
    /// The capabilities of NICs, unless [`World::add_nic_with`](crate::World::add_nic_with) gives
    /// others.
    pub capabilities: Capabilities,
    /// The pacing of the transport.
    pub tuning: Tuning,
}

/// The behaviour of cables and switches.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkConfig {
    /// The latency from one NIC to another. Packets of one path stay in order, except for packets
    /// that noise or a straggler delay affects.
    pub latency: DurationRange,
    /// The time that a NIC needs to transmit 1,024 bytes.
    pub kib_time: Duration,
    /// The rates of loss, duplication, reordering and corruption.
    pub noise: Noise,
    /// How many packets per million are stragglers: they arrive late by `straggler_delay`, possibly
    /// after a failover.
    pub straggler_ppm: u32,
    /// The additional delay of a straggler.
    pub straggler_delay: DurationRange,
    /// How many packets per million survive a failure of their cable. A switch holds such a packet
    /// for `straggler_delay`, at most three times, until the cable is up again.
    pub survivor_ppm: u32,
    /// The largest RoCE packet that a path delivers, in bytes, from the BTH to the ICRC. Longer
    /// packets are lost.
    pub max_packet_bytes: usize,
    /// Whether a switch connects the NICs. With a switch, only the NIC at the failed cable loses
    /// its link. Without a switch, all NICs of the rail lose their links.
    pub switched: bool,
    /// The bytes of the ring of shared memory that takes the place of the cable, for each
    /// direction. A packet that finds no room waits, and is lost after 10 ms. A failed link of the
    /// sender takes no packet out of the ring, and a process that takes the place of the receiver
    /// has another ring.
    pub ring_bytes: Option<usize>,
}

/// The timing of placements. A placement becomes visible in chunks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemoryTiming {
    /// The smallest chunk, in bytes.
    pub chunk_min: usize,
    /// The largest chunk, in bytes.
    pub chunk_max: usize,
    /// The delay between two chunks.
    pub chunk_delay: DurationRange,
    /// How many placements per million become visible in random order of their chunks. The last
    /// chunk stays last.
    pub shuffle_ppm: u32,
    /// The delay between the load and the store of an atomic, if atomics are not global.
    pub atomic_delay: DurationRange,
    /// Whether a revocation completes the placements in progress, as the contract of
    /// [`mitra_verbs::Provider`] demands. A test switches this off and must find that memory
    /// changes after a revocation.
    pub revoke_waits: bool,
}

/// The speed of NICs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NicTiming {
    /// The delay from a verb or an arriving packet to the next transmission.
    pub doorbell_delay: DurationRange,
    /// The delay from the time for which a timer is set to the time at which it fires.
    pub timer_lateness: DurationRange,
    /// The delay from an arriving packet to the next idle poll, in which the NIC may send pending
    /// ACKs.
    pub idle_delay: DurationRange,
    /// The time from a change of a queue pair to ERR to the flush of its receive queue, and of its
    /// send queue. At a time before the flush, the NIC executes one more request, or handles one
    /// more response: the first that arrives of those that were on their way at the change.
    /// soft-RoCE was seen to do so, because another processor finishes the packet that it has
    /// begun. If the range is 0, the change is a fence.
    pub error_flush_delay: DurationRange,
    /// Whether the clock of each NIC has its own origin.
    pub independent_clocks: bool,
    /// How many NIC failures per million raise [`mitra_verbs::AsyncEvent::DeviceFatal`].
    pub fatal_event_ppm: u32,
    /// The delay from a NIC failure to its event.
    pub fatal_event_delay: DurationRange,
}

/// The speed of applications.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HostTiming {
    /// The interval between two turns of an active application, and the delay from an event at a
    /// NIC to the turn of an idle application.
    pub step_interval: DurationRange,
    /// The longest interval between two turns of an idle application that does not sleep.
    pub max_idle_step: Duration,
    /// How many turns per million are followed by a pause of the whole host.
    pub pause_ppm: u32,
    /// The length of a pause. The host's NICs continue.
    pub pause_length: DurationRange,
}

impl Config {
    /// Returns a configuration without faults.
    pub fn fault_free() -> Config {
        let NicConfig { capabilities, tuning, .. } = NicConfig::new("", Gid([0; 16]), [0; 32]);
        Config {
            link: LinkConfig {
                latency: DurationRange::nanos(900, 1_200),
                kib_time: Duration::from_nanos(80),
                noise: Noise::default(),
                straggler_ppm: 0,
                straggler_delay: DurationRange::micros(1_000, 1_000_000),
                survivor_ppm: 0,
                max_packet_bytes: usize::MAX,
                switched: true,
                ring_bytes: None,
            },
            memory: MemoryTiming {
                chunk_min: 64,
                chunk_max: 4096,
                chunk_delay: DurationRange::nanos(10, 150),
                shuffle_ppm: 0,
                atomic_delay: DurationRange::nanos(20, 200),
                revoke_waits: true,
            },
            nic: NicTiming {
                doorbell_delay: DurationRange::nanos(20, 200),
                timer_lateness: DurationRange::nanos(0, 2_000),
                idle_delay: DurationRange::nanos(500, 5_000),
                error_flush_delay: DurationRange::nanos(0, 0),
                independent_clocks: false,
                fatal_event_ppm: 1_000_000,
                fatal_event_delay: DurationRange::micros(1, 500),
            },
            host: HostTiming {
                step_interval: DurationRange::nanos(200, 2_000),
                max_idle_step: Duration::from_micros(500),
                pause_ppm: 0,
                pause_length: DurationRange::micros(10, 5_000),
            },
            capabilities,
            tuning,
        }
    }

    /// Draws a configuration from the seed. Each kind of fault is on for some seeds only, so that
    /// one kind does not hide the effects of another (swarm testing).
    pub fn swarm(seed: u64) -> Config {
        let rng = &mut Prng::stream(seed, "swarm");
        let mut config = Config::fault_free();
        let one_in_two = |rng: &mut Prng| rng.below(2) == 0;
        // The power of two is drawn uniformly, so that low and high rates are equally frequent.
        let rate = |rng: &mut Prng| 300 << rng.below(8);
        let Noise { drop_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm, .. } = &mut config.link.noise;
        for ppm in [drop_ppm, duplicate_ppm, reorder_ppm, corrupt_ppm] {
            if one_in_two(rng) {
                *ppm = rate(rng);
            }
        }
        config.link.noise.max_delay = Duration::from_nanos(2_000 << rng.below(8));
        if rng.below(4) == 0 {
            config.link.straggler_ppm = 200 << rng.below(5);
        }
        config.link.straggler_delay = DurationRange::micros(500 << rng.below(4), 8_000 << rng.below(8));
        config.link.survivor_ppm = *rng.pick(&[0, 200_000, 1_000_000]);
        config.link.switched = one_in_two(rng);
        let base = 300 << rng.below(5);
        config.link.latency = DurationRange::nanos(base, base + (base << rng.below(3)));
        config.link.kib_time = Duration::from_nanos(20 << rng.below(5));
        config.memory.chunk_min = *rng.pick(&[8, 64, 64, 256]);
        config.memory.chunk_max = config.memory.chunk_min * (1 << rng.below(6));
        config.memory.chunk_delay = DurationRange::nanos(1, 50 << rng.below(6));
        config.memory.shuffle_ppm = *rng.pick(&[0, 100_000, 500_000]);
        config.memory.atomic_delay = DurationRange::nanos(1, 100 << rng.below(5));
        config.nic.doorbell_delay = DurationRange::nanos(10, 50 << rng.below(6));
        config.nic.timer_lateness = DurationRange::nanos(0, 500 << rng.below(6));
        config.nic.idle_delay = DurationRange::nanos(200, 2_000 << rng.below(5));
        config.nic.independent_clocks = rng.below(4) == 0;
        config.nic.fatal_event_ppm = *rng.pick(&[0, 500_000, 1_000_000]);
        config.nic.fatal_event_delay = DurationRange::micros(1, 10 << rng.below(10));
        config.host.step_interval = DurationRange::nanos(100, 500 << rng.below(5));
        config.host.max_idle_step = Duration::from_micros(100 << rng.below(5));
        if rng.below(4) == 0 {
            config.host.pause_ppm = 200 << rng.below(6);
            config.host.pause_length = DurationRange::micros(10, 100 << rng.below(7));
        }
        let late = &mut Prng::stream(seed, "late execution");
        if one_in_two(late) {
            config.nic.error_flush_delay = DurationRange::nanos(0, 1_000 << late.below(7));
        }
        config.tuning.ack_every = 1 << rng.below(6);
        config.tuning.ack_delay = Duration::from_micros(1 << rng.below(7));
        config.tuning.send_window = 4096 << rng.below(8);
        config
    }

    /// Returns this configuration without packet noise, stragglers, survivors and pauses, so that
    /// pending operations can finish.
    pub fn without_noise(&self) -> Config {
        let mut config = self.clone();
        config.link = config.link.without_noise();
        config.host.pause_ppm = 0;
        config
    }
}

impl LinkConfig {
    /// Returns this link without noise and stragglers.
    pub fn without_noise(self) -> LinkConfig {
        LinkConfig { noise: Noise::default(), straggler_ppm: 0, survivor_ppm: 0, ..self }
    }

    /// Returns this link with a ring of shared memory in place of the cable.
    pub fn with_ring(self, rng: &mut Prng) -> LinkConfig {
        let link = self.without_noise();
        let latency = DurationRange::nanos(20, 100 << rng.below(8));
        // The smallest ring has room for the longest packet.
        LinkConfig { latency, switched: true, ring_bytes: Some(8192 << rng.below(9)), ..link }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_kind_is_on_in_some_seeds_and_off_in_others() {
        let all: Vec<Config> = (0..64).map(Config::swarm).collect();
        let kinds: [fn(&Config) -> bool; 10] = [
            |config| config.link.noise.drop_ppm > 0,
            |config| config.link.noise.duplicate_ppm > 0,
            |config| config.link.noise.reorder_ppm > 0,
            |config| config.link.noise.corrupt_ppm > 0,
            |config| config.link.straggler_ppm > 0,
            |config| config.link.survivor_ppm > 0,
            |config| config.memory.shuffle_ppm > 0,
            |config| config.nic.independent_clocks,
            |config| config.nic.error_flush_delay != DurationRange::nanos(0, 0),
            |config| config.host.pause_ppm > 0,
        ];
        for (i, on) in kinds.iter().enumerate() {
            let n = all.iter().filter(|config| on(config)).count();
            assert!((5..60).contains(&n), "kind {i} is on in {n} of 64");
        }
        assert_eq!(Config::swarm(3), Config::swarm(3));
    }

    #[test]
    fn without_noise_leaves_no_fault() {
        for seed in 0..20 {
            let config = Config::swarm(seed).without_noise();
            assert_eq!(config.link.noise, Noise::default());
            assert_eq!(
                (config.link.straggler_ppm, config.link.survivor_ppm, config.host.pause_ppm),
                (0, 0, 0)
            );
        }
    }
}
