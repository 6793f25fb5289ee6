//! The setup of a world, which a seed draws: NICs, links, the configuration of the vQPs, and the
//! plans of the programs.

use core::time::Duration;

use mitra_failover::{CompletionLogConfig, Config as VqpConfig, DetectorConfig, WritePolicy};
use mitra_prng::SPLIT_MIX_STEP;
use mitra_verbs::{Capabilities, LocalAckTimeout, Mtu, RnrTimer};

use super::focus::Focus;
use super::limits::Limits;
use super::more_knobs;
use super::options::ConnectionOptions;
use super::placed;
use super::starvation::Starvation;
use crate::seeded::FIRST_GENERATION;
use mitra_sim::workload::{OpKind, Plan};
use mitra_sim::{Config, CoverageCell, DurationRange, LinkConfig, Prng};

/// One of this number of seeds has queue pairs with a shared backup.
const SEEDS_PER_BACKUP: u64 = 4;
/// Among the other seeds, one of this number has queue pairs with a shared backup and options.
const SEEDS_PER_OPTIONS: u64 = 6;
/// Among seeds without a shared backup, one of this number has XRC connections in both directions.
const SEEDS_PER_XRC: u64 = 6;
/// In the workload `failover-rings`, one rail of this number keeps its cable.
const RAILS_PER_CABLE: u64 = 3;
/// The largest operation in worlds with few, large operations, in bytes.
pub(super) const LARGE: usize = 1 << 20;

#[derive(Clone, PartialEq, Debug)]
pub(super) struct RailSetup {
    pub(super) link: LinkConfig,
    pub(super) capabilities: [Capabilities; 2],
    pub(super) mtu: [Mtu; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Polling {
    Always,
    /// Turns only take completions, or do not poll at all if the queue pair has a shared backup. A
    /// poll with maintenance happens once in this time.
    CompletionsOnly(Duration),
    /// Turns poll the poll group of the end's domain, and poll the vQP when it has something to do.
    WhenWoken,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Setup {
    pub(super) world: Config,
    pub(super) rails: Vec<RailSetup>,
    /// The configuration of the vQP, or of the shared backup and its queue pairs.
    pub(super) vqp: VqpConfig,
    /// The detectors of the second end. `None`: those in `vqp`.
    pub(super) second_detector: Option<DetectorConfig>,
    pub(super) secrets: [[u64; 2]; 2],
    /// Whether the connections are queue pairs with a shared backup.
    pub(super) has_shared_backup: bool,
    pub(super) options: Option<ConnectionOptions>,
    /// The interval of the completion logs, if there are some.
    pub(super) log_interval: u32,
    /// The number of shared receive queues of each end of two XRC connections. `None`: no XRC.
    pub(super) xrc_queues: Option<usize>,
    /// The plans, by connection and end.
    pub(super) plans: Vec<[Plan; 2]>,
    pub(super) polling: [Polling; 2],
    /// The number of operations that are posted only when the faults have stopped, by connection
    /// and end.
    pub(super) held_back: Vec<[usize; 2]>,
    /// Whether a receive is posted for each message before the peer can send, so that no lack of
    /// receives causes an RNR NAK.
    pub(super) receives_posted_ahead: bool,
    pub(super) focus: Option<Focus>,
    /// The cell of the table of failures at which the faults are placed.
    pub(super) placed: Option<CoverageCell>,
    pub(super) limits: Limits,
    /// The times in which a part of an end gets no processor, in order.
    pub(super) starvation: Vec<Starvation>,
    /// See [`FIRST_GENERATION`].
    pub(super) is_first_generation: bool,
}

impl Setup {
    pub(super) fn draw(seed: u64) -> Setup {
        let (is_first_generation, seed) = (seed & FIRST_GENERATION != 0, seed & !FIRST_GENERATION);
        let placed = if is_first_generation { None } else { placed::cell(seed) };
        let focus = Focus::draw(seed, is_first_generation).filter(|_| placed.is_none());
        let mut setup = Setup::draw_first(seed, is_first_generation, focus, placed);
        if !is_first_generation {
            more_knobs::draw(seed, &mut setup);
        }
        if let Some(cell) = placed {
            placed::shape(cell, &mut setup);
        }
        setup
    }

    pub(super) fn draw_focused(seed: u64) -> Setup {
        Setup::draw_with_focus(seed, Focus::draw_always(seed))
    }

    fn draw_with_focus(seed: u64, focus: Focus) -> Setup {
        let mut setup = Setup::draw_first(seed, false, Some(focus), None);
        more_knobs::draw(seed, &mut setup);
        if let Some(focus) = setup.focus {
            focus.shape_setup(&mut setup);
        }
        setup
    }

    /// Draws a setup with epochs and sequence numbers close to their limits. A shared backup begins
    /// with the usual numbers.
    pub(super) fn draw_with_limits(seed: u64) -> Setup {
        let seed = seed & !FIRST_GENERATION;
        let mut setup = match Limits::draw_focus(seed) {
            Some(focus) => Setup::draw_with_focus(seed, focus),
            None => Setup::draw(seed),
        };
        if setup.is_vqp()
            && let Some(focus @ (Focus::UnplacedMessages | Focus::UnplacedOnLaterRail)) = setup.focus
        {
            setup.vqp.completion_log = Some(CompletionLogConfig {
                interval: setup.log_interval,
                durable: focus == Focus::UnplacedMessages,
                ..CompletionLogConfig::default()
            });
        }
        setup.limits = Limits::draw(seed, &setup);
        if setup.limits.first_seq > 0 {
            // An unsignalled operation ends only with a later operation, which may be refused.
            setup.plans.iter_mut().flatten().for_each(|plan| plan.unsignalled_ppm = 0);
        }
        if setup.has_shared_backup {
            (setup.limits.first_epoch, setup.limits.first_seq) = (1, 0);
        }
        setup
    }

    /// Draws a setup of which most rails are rings of shared memory.
    pub(super) fn draw_with_rings(seed: u64) -> Setup {
        let seed = seed & !FIRST_GENERATION;
        let mut setup = Setup::draw(seed);
        let rng = &mut Prng::stream(seed, "failover rings");
        for rail in &mut setup.rails {
            if rng.below(RAILS_PER_CABLE) > 0 {
                rail.link = rail.link.with_ring(rng);
            }
        }
        setup
    }

    /// Draws the knobs of the first generation. A world of repeatable WRITEs has no focus and no
    /// placed faults.
    fn draw_first(
        seed: u64,
        is_first_generation: bool,
        focus: Option<Focus>,
        placed: Option<CoverageCell>,
    ) -> Setup {
        let rng = &mut Prng::stream(seed, "failover setup");
        let mut world = Config::swarm(seed);
        // The schedule bounds the time for which an end is absent, so pauses are short.
        world.host.pause_ppm = *rng.pick(&[0, 0, 0, 1_000, 10_000]);
        world.host.pause_length = DurationRange::micros(50, 2_000 << rng.below(5));
        let rails = *rng.pick(&[1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 5, 8]);
        let completion_log = rng.below(2) == 0;
        let any_device = rng.below(3) == 0;
        let mut rails: Vec<_> =
            (0..rails).map(|_| draw_rail(rng, &world, any_device, completion_log)).collect();
        let is_repeatable = rng.below(8) == 0 && placed.is_none();
        let write_policy = if is_repeatable { WritePolicy::Repeatable } else { WritePolicy::Strict };
        let mut plans = vec![draw_plans(rng, write_policy)];
        let focus = focus.filter(|_| write_policy == WritePolicy::Strict);
        if let Some(focus) = focus {
            focus.shape(&mut world, &mut rails, &mut plans[0][0]);
        }
        // The shared backup is drawn from streams of its own, so that the draws from `rng` below
        // stay the same.
        let mut of_backup = Prng::stream(seed, "failover shared backup");
        let mut has_shared_backup = of_backup.below(SEEDS_PER_BACKUP) == 0;
        let mut options = None;
        if !has_shared_backup {
            of_backup = Prng::stream(seed, "failover shared backup with options");
            has_shared_backup = of_backup.below(SEEDS_PER_OPTIONS) == 0;
            options = has_shared_backup.then(|| ConnectionOptions::draw(&mut of_backup));
        }
        if options.is_some_and(|options| options.completion_log) {
            rails.iter_mut().flat_map(|rail| &mut rail.capabilities).for_each(|nic| nic.write_order = true);
        }
        if has_shared_backup {
            let of_backup = &mut of_backup;
            let is_large = plans[0].iter().any(|plan| plan.max_len >= LARGE);
            let more = if is_large { 1 } else { *of_backup.pick(&[0, 0, 1, 1, 2, 2, 3, 5, 7]) };
            plans.extend((0..more).map(|_| draw_plans(of_backup, write_policy)));
        }
        let of_xrc = &mut Prng::stream(seed, "failover xrc");
        let is_xrc = of_xrc.below(SEEDS_PER_XRC) == 0 && !has_shared_backup;
        let ordered = rails.iter().flat_map(|rail| rail.capabilities).all(|nic| nic.write_order);
        let ordered = ordered && write_policy == WritePolicy::Strict;
        plans.iter_mut().flatten().for_each(|plan| plan.ordered = ordered);
        let receives_posted_ahead = rng.below(4) == 0;
        if receives_posted_ahead {
            // One receive for each operation is enough, since a failed message leaves its receive.
            plans.iter_mut().flatten().for_each(|plan| plan.receives = plan.ops);
        }
        let mut vqp = draw_vqp(rng, &world, &rails, &plans, receives_posted_ahead);
        if let Some(focus) = focus {
            focus.shape_vqp(&mut vqp);
        }
        vqp.completion_log = (completion_log && !has_shared_backup).then(CompletionLogConfig::default);
        vqp.write_policy = write_policy;
        if let Some(options) = options {
            options.shape(&mut vqp);
        }
        // Each queue has a receive, so that no message waits for a receive of another queue.
        let fewest = plans[0].iter().map(|plan| plan.receives).min().unwrap_or(1);
        let xrc_queues = is_xrc.then(|| (*of_xrc.pick(&[1, 2, 3, 3])).min(fewest).max(1));
        if is_xrc {
            vqp.rnr_retry = 7; // slots may be full, however many receives there are
        }
        let mut held_back =
            |plans: &[Plan; 2]| plans.each_ref().map(|plan| plan.ops / *rng.pick(&[4, 8, 20]));
        let held_back = plans.iter().map(&mut held_back).collect();
        let polling = [0, 1].map(|_| match rng.below(6) {
            0 => Polling::CompletionsOnly(Duration::from_micros(500 << rng.below(3))),
            _ => Polling::Always,
        });
        let secrets = draw_secrets(rng);
        Setup {
            world,
            rails,
            vqp,
            second_detector: None,
            secrets,
            has_shared_backup,
            options,
            log_interval: 1,
            xrc_queues,
            plans,
            polling,
            held_back,
            receives_posted_ahead,
            focus,
            placed,
            limits: Limits::default(),
            starvation: Vec::new(),
            is_first_generation,
        }
    }

    /// Returns whether the connection is one vQP.
    pub(super) fn is_vqp(&self) -> bool {
        !self.has_shared_backup && self.xrc_queues.is_none()
    }

    pub(super) fn configs(&self) -> [VqpConfig; 2] {
        let detector = self.second_detector.unwrap_or(self.vqp.detector);
        [self.vqp, VqpConfig { detector, ..self.vqp }]
    }

    /// Returns whether the ends use heartbeats, which need both ends.
    pub(super) fn has_heartbeats(&self) -> bool {
        self.configs().iter().all(|config| config.detector.max_missed_heartbeats > 0)
    }

    /// The capabilities of all NICs.
    pub(super) fn nics(&self) -> impl Iterator<Item = Capabilities> {
        self.rails.iter().flat_map(|rail| rail.capabilities)
    }
}

fn draw_rail(rng: &mut Prng, world: &Config, any_device: bool, ordered: bool) -> RailSetup {
    let mut link = world.link;
    let slower = *rng.pick(&[1, 1, 1, 2, 8, 40]);
    link.latency = DurationRange { min: link.latency.min * slower, max: link.latency.max * slower };
    link.kib_time *= *rng.pick(&[1, 1, 4]);
    link.switched = rng.below(2) == 0;
    let mtu = *rng.pick(&Mtu::ALL);
    let other_mtu = if rng.below(3) == 0 { *rng.pick(&Mtu::ALL) } else { mtu };
    let capabilities = [0, 1].map(|_| {
        let mut nic = world.capabilities;
        if any_device {
            nic.psn_query = rng.below(3) > 0;
            nic.saved_results = rng.below(3) > 0;
            nic.ack_after_placement = rng.below(3) > 0;
            nic.write_order = ordered || rng.below(3) > 0;
            nic.reset = rng.below(6) > 0;
        }
        nic
    });
    RailSetup { link, capabilities, mtu: [mtu, other_mtu] }
}

fn draw_plans(rng: &mut Prng, write_policy: WritePolicy) -> [Plan; 2] {
    let large = rng.below(40) == 0;
    let ops = if large { 8 } else { *rng.pick(&[20, 40, 60, 60, 120]) };
    // Each turn compares all words of the first incomplete blocks. Large blocks would take most of
    // the time of a run.
    let (by_word, empty_ppm) = (rng.below(3) == 0 && !large, *rng.pick(&[0, 0, 100_000]));
    let overwritten_read_ppm = *rng.pick(&[0, 300_000, 1_000_000]);
    let one_sided = rng.below(8) == 0;
    [1, 2].map(|tag| {
        let mut plan = Plan::new(rng.bits(), if one_sided && tag == 2 { 0 } else { ops });
        plan.tag = tag;
        plan.max_len = if large { LARGE } else { 64 << rng.below(9) };
        let limit = if large { 4 } else { 64 };
        plan.depth = rng.between(1, limit) as usize;
        plan.receives = rng.between(1, limit) as usize;
        plan.unsignalled_ppm = *rng.pick(&[0, 200_000, 800_000]);
        plan.fence_ppm = *rng.pick(&[0, 50_000, 300_000]);
        (plan.by_word, plan.empty_ppm, plan.overwritten_read_ppm) =
            (by_word, empty_ppm, overwritten_read_ppm);
        // Half of the seeds use some kinds only, so that operations of one kind follow each other.
        if rng.below(2) == 0 {
            for weight in &mut plan.mix {
                *weight *= u32::from(rng.below(2) == 0);
            }
            if plan.mix == [0; 7] {
                plan.mix[rng.index(7)] = 1;
            }
        }
        if write_policy == WritePolicy::Repeatable {
            plan.consumes_late = true;
            plan.by_word = false;
            plan.mix[OpKind::Write as usize] = 0;
            plan.mix[OpKind::WriteImm as usize] = 0;
            plan.mix[OpKind::Block as usize] += 2;
        }
        plan
    })
}

fn draw_vqp(
    rng: &mut Prng,
    world: &Config,
    rails: &[RailSetup],
    plans: &[[Plan; 2]],
    receives_posted_ahead: bool,
) -> VqpConfig {
    let deepest = |of: fn(&Plan) -> usize| plans.iter().flatten().map(of).max().unwrap_or(1) as u32;
    let mut vqp = VqpConfig {
        send_wrs: deepest(|plan| plan.depth) + *rng.pick(&[0, 0, 1, 32]),
        recv_wrs: deepest(|plan| plan.receives).max(1) + *rng.pick(&[0, 0, 1, 32]),
        ..VqpConfig::default()
    };
    vqp.inline = *rng.pick(&[32, 64, 256]);
    vqp.rd_atomic = rng.between(1, 16) as u8;
    vqp.control_retry_interval = Duration::from_micros(250 << rng.below(5));
    vqp.peer_timeout = Duration::from_millis(300 << rng.below(3));
    vqp.rnr_retry = if receives_posted_ahead { rng.below(8) as u8 } else { 7 };
    vqp.min_rnr_timer = RnrTimer::from_duration(Duration::from_micros(10 << rng.below(7)));
    // With a timeout below a round trip, every request would fail on a rail without faults. An
    // acknowledgement follows the placement of a message, or of a quarter of the send window.
    let latency = rails.iter().map(|rail| rail.link.latency.max).max().unwrap_or_default();
    let longest = plans.iter().flatten().map(|plan| plan.max_len).max().unwrap_or(0);
    let acknowledged = longest.min(world.tuning.send_window as usize / 4);
    let chunks = acknowledged.div_ceil(world.memory.chunk_min) as u32;
    let placement = world.memory.chunk_delay.max * chunks;
    let shortest = LocalAckTimeout::from_duration(latency * 8 + placement).code().max(8);
    let code = rng.between(shortest.into(), u64::from(shortest) + 4);
    vqp.detector.local_ack_timeout = LocalAckTimeout::from_code(code as u8);
    vqp.detector.retry_cnt = *rng.pick(&[0, 1, 3, 5, 7, 7]);
    vqp.detector.heartbeat_interval = Duration::from_micros(1_000 << rng.below(5));
    vqp.detector.max_missed_heartbeats = *rng.pick(&[0, 3, 8, 8, 40]);
    vqp
}

/// Draws secrets. In half of the seeds, the first PSN of each end on rail 0 is close to the wrap
/// to 0.
fn draw_secrets(rng: &mut Prng) -> [[u64; 2]; 2] {
    let near_wrap = rng.below(2) == 0;
    [1, 2].map(|end| {
        let mut derived = rng.bits();
        if near_wrap {
            let psn = 0x100_0000 - rng.between(1, 64);
            derived = derived & !0xff_ffff | psn;
        }
        // The ends must differ in the first word.
        [rng.bits() & !3 | end, seed_of_first_word(derived)]
    })
}

/// Returns the secret from which a vQP derives this word for rail 0. This function inverts one step
/// of SplitMix64 (Steele, Lea, Flood, 2014).
pub(super) fn seed_of_first_word(word: u64) -> u64 {
    let mut z = word;
    z ^= z >> 31 ^ z >> 62;
    z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
    z ^= z >> 27 ^ z >> 54;
    z = z.wrapping_mul(0x96de_1b17_3f11_9089);
    z ^= z >> 30 ^ z >> 60;
    z.wrapping_sub(SPLIT_MIX_STEP)
}

#[cfg(test)]
mod tests {
    use mitra_verbs::WindowType;

    use super::*;

    #[test]
    fn every_knob_takes_several_values() {
        let setups: Vec<Setup> = (0..300).map(Setup::draw).collect();
        let distinct = |of: fn(&Setup) -> u64| {
            let mut values: Vec<u64> = setups.iter().map(of).collect();
            values.sort_unstable();
            values.dedup();
            values.len()
        };
        assert!(distinct(|s| s.rails.len() as u64) >= 5);
        assert_eq!(distinct(|s| s.rails[0].mtu[0].bytes() as u64), 5);
        assert_eq!(distinct(|s| u64::from(s.vqp.completion_log.is_some())), 2);
        assert_eq!(distinct(|s| u64::from(s.vqp.rnr_retry)), 8);
        assert!(distinct(|s| u64::from(s.vqp.rd_atomic)) >= 12);
        assert!(distinct(|s| s.plans[0][0].max_len as u64) >= 9);
        assert!(distinct(|s| s.plans[0][0].receives as u64) >= 40);
        assert_eq!(distinct(|s| u64::from(s.vqp.write_policy == WritePolicy::Repeatable)), 2);
        assert!(setups.iter().any(|s| s.plans[0][0].max_len == 1 << 20));
        assert!(setups.iter().any(|s| matches!(s.polling[0], Polling::CompletionsOnly(_))));
        assert!(setups.iter().filter(|s| s.polling[0] == Polling::WhenWoken && s.is_vqp()).count() > 20);
        assert!(setups.iter().any(|s| s.nics().any(|nic| !nic.ack_after_placement)));
        assert_eq!(distinct(|s| s.xrc_queues.unwrap_or(0) as u64), 4);
        let xrc = setups.iter().filter(|s| s.xrc_queues.is_some()).count();
        assert!(xrc > 20, "{xrc} of 300");
        let (backed, single): (Vec<_>, Vec<_>) = setups.iter().partition(|s| s.has_shared_backup);
        assert!(single.iter().all(|s| s.plans.len() == 1));
        assert!((1..=4).all(|members| backed.iter().any(|s| s.plans.len() == members)));
        assert!(backed.len() > 50, "{} of 300", backed.len());
        assert!(distinct(|s| s.vqp.completion_log.map_or(0, |log| log.interval.into())) >= 6);
        assert!(distinct(|s| s.vqp.failback.map_or(9, |failback| failback.rail.into())) >= 5);
        assert!(distinct(|s| s.plans[0][0].inline_limit.unwrap_or(0) as u64) == 4);
        assert_eq!(distinct(|s| s.plans[0][0].sges as u64), 3);
        assert_eq!(distinct(|s| u64::from(s.plans[0][0].empty_block_ppm)), 2);
        assert!(setups.iter().any(|s| s.plans[0][0].imm_by_word));
        assert_eq!(distinct(|s| u64::from(s.starvation.is_empty())), 2);
        let of_vqps: Vec<_> = single.iter().filter_map(|s| s.options).collect();
        assert!(of_vqps.iter().any(|o| o.durable) && of_vqps.iter().any(|o| o.windows.is_some()));
        assert!([0, 1].iter().all(|&h| of_vqps.iter().any(|o| o.shared_receives[h])));
        let mut first = (0..300).map(|seed| Setup::draw(FIRST_GENERATION | seed));
        assert!(first.all(|s| s.has_shared_backup || s.options.is_none()));
        let options: Vec<_> = backed.iter().filter_map(|s| s.options).collect();
        assert!(options.len() < backed.len());
        assert!(options.iter().any(|o| o.completion_log && !o.durable) && options.iter().any(|o| o.durable));
        assert!([0, 1].iter().all(|&h| options.iter().any(|o| o.shared_receives[h])));
        for windows in [None, Some(WindowType::Type1), Some(WindowType::Type2)] {
            assert!(options.iter().any(|o| o.windows == windows), "{windows:?}");
        }
    }
}
