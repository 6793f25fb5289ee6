//! Worlds that combine certain operations with a failure at a certain stage. Independent draws
//! rarely meet these cases.

use core::time::Duration;

use mitra_failover::rail_negotiation::MessageKind;
use mitra_failover::{CompletionLogConfig, Config as VqpConfig};
use mitra_verbs::Mtu;

use super::fault_schedule::{Fault, Rail, short_or_long, sleep_through_completions};
use super::options::ConnectionOptions;
use super::setup::{Polling, RailSetup, Setup};
use crate::seeded::faults::NIC_FAILURES;
use mitra_sim::LONGEST_INLINE;
use mitra_sim::workload::{OpKind, Plan};
use mitra_sim::{Config, DurationRange, Failure, PacketFate, PacketKind, Prng, Stage};

const SEEDS_PER_FOCUS: u64 = 12;
/// In the workload `failover-cases`, one of so many seeds has the focus [`Focus::LatePlaced`].
const SEEDS_PER_LATE_FOCUS: u64 = 8;

/// The case on which a world concentrates. End 0 is the requester. Rail 0 fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Focus {
    /// READs of a counter, each followed by a fenced atomic on the counter. The requester's NIC
    /// fails when an atomic is executed, while the NIC places the data of the READ. A repeated READ
    /// would return the changed counter.
    FencedReads,
    /// Atomics whose results are not saved, and WRITEs with immediate of several packets. The value
    /// of an atomic is lost. The link fails when a WRITE behind that atomic is partly executed. The
    /// WRITE must not be reported as not executed.
    TornBehindError,
    /// The operations of `FencedReads` at a responder whose PSN cannot be read, so that no evidence
    /// tells whether the atomic was executed. A repeated READ might return the changed counter.
    UndecidedFence,
    /// READs of memory that a fenced WRITE of several packets overwrites. The requester's NIC fails
    /// while its program sleeps, when a WRITE is partly executed. A repeated READ would return a
    /// part of the new memory.
    TornFence,
    /// As many atomics in flight as the responder saves results. The requester's NIC fails when an
    /// atomic is executed, before the program sees the completions of earlier atomics, or while the
    /// program sleeps. Each value must come from a saved result.
    SavedResults,
    /// READs and WRITEs of several packets over one rail. A packet of a WRITE is lost. Without
    /// retries, the queue pairs are replaced. The connection may close before the rest of the WRITE
    /// is sent, and the WRITE must not be reported as not executed.
    TornThenClosed,
    /// SENDs and WRITEs of a durable connection. A message about the operations that the peer has
    /// seen is held back on one rail while the other rail fails. The message arrives after the
    /// move, while the programs often sleep, and must not confirm operations of the new epoch.
    LatePlaced,
    /// WRITEs with immediate of several packets over three rails. The link fails when a WRITE is
    /// partly executed. Each Resume of the requester is lost, until the next rail fails too. Then
    /// only evidence tells how much of the WRITE was executed on the first rail.
    LostResume,
    /// Messages in mode `durable`. The responder's NIC dies before an acknowledged message is in
    /// memory.
    UnplacedMessages,
    /// WRITEs with log entries. The NICs of rail 0 place before they acknowledge. After a failure
    /// of the link of rail 0, a NIC of rail 1 dies before an acknowledged WRITE is in memory.
    UnplacedOnLaterRail,
    /// Two rails whose links fail in turn. Messages about the new queue pairs of a rail arrive when
    /// the vQP has left that rail again.
    LateNewQps,
}

/// The number of Resumes that are lost on each rail.
const LOST_RESUMES: u32 = 8;

impl Focus {
    /// The cases of the workload `failover-limits`.
    pub(super) const OF_LIMITS: [Focus; 4] =
        [Focus::LostResume, Focus::UnplacedMessages, Focus::UnplacedOnLaterRail, Focus::LateNewQps];

    /// The cases of the workload `failover-cases`, which draws `LatePlaced` separately. The
    /// workload `failover` draws from the first four cases. In the first generation, it draws from
    /// the first two.
    const ALL: [Focus; 6] = [
        Focus::FencedReads,
        Focus::TornBehindError,
        Focus::UndecidedFence,
        Focus::TornFence,
        Focus::SavedResults,
        Focus::TornThenClosed,
    ];

    /// Draws a case for the workload `failover`.
    pub(super) fn draw(seed: u64, is_first_generation: bool) -> Option<Focus> {
        let rng = &mut Prng::stream(seed, "failover focus");
        let drawn = &Focus::ALL[..if is_first_generation { 2 } else { 4 }];
        (rng.below(SEEDS_PER_FOCUS) == 0).then(|| *rng.pick(drawn))
    }

    /// Draws a case for the workload `failover-cases`.
    pub(super) fn draw_always(seed: u64) -> Focus {
        if Prng::stream(seed, "failover late focus").below(SEEDS_PER_LATE_FOCUS) == 0 {
            return Focus::LatePlaced;
        }
        *Prng::stream(seed, "failover focus of every seed").pick(&Focus::ALL)
    }

    /// Adapts the fabric, the NICs, and the operations of the requester.
    pub(super) fn shape(self, world: &mut Config, rails: &mut Vec<RailSetup>, plan: &mut Plan) {
        let mut only = |kinds: &[OpKind]| *plan = plan.clone().only(kinds);
        let capabilities = rails.iter_mut().flat_map(|rail| &mut rail.capabilities);
        match self {
            Focus::FencedReads | Focus::UndecidedFence => {
                only(&[OpKind::Read]);
                (plan.counted_read_ppm, plan.overwritten_read_ppm) = (1_000_000, 0);
                // The NIC still places the data of a READ when the responder executes the next
                // atomic.
                world.memory.chunk_delay = DurationRange::nanos(1, 1_600);
                capabilities.for_each(|nic| nic.psn_query = self == Focus::FencedReads);
            }
            Focus::TornFence => {
                only(&[OpKind::Read]);
                (plan.counted_read_ppm, plan.overwritten_read_ppm) = (0, 1_000_000);
                // The NIC still places the data of a READ when the responder executes the next
                // WRITE.
                world.memory.chunk_delay = DurationRange::nanos(1, 10_000);
                capabilities.for_each(|nic| nic.psn_query = true);
            }
            Focus::UnplacedMessages => {
                only(&[OpKind::Send, OpKind::WriteImm]);
                capabilities.for_each(|nic| (nic.ack_after_placement, nic.write_order) = (false, true));
                world.memory.chunk_delay = DurationRange::nanos(1, 20_000);
            }
            Focus::LateNewQps => {
                only(&[OpKind::Write, OpKind::Send, OpKind::FetchAdd]);
                rails.resize(2, rails[0].clone());
            }
            Focus::UnplacedOnLaterRail => {
                only(&[OpKind::Write, OpKind::Block, OpKind::FetchAdd]);
                capabilities.for_each(|nic| nic.write_order = true);
                world.memory.chunk_delay = DurationRange::nanos(1, 20_000);
                rails.resize(rails.len().max(3), rails[0].clone());
                for (number, rail) in rails.iter_mut().enumerate() {
                    rail.capabilities.iter_mut().for_each(|nic| nic.ack_after_placement = number == 0);
                }
            }
            Focus::LostResume => {
                only(&[OpKind::WriteImm]);
                capabilities.for_each(|nic| nic.psn_query = true);
                rails.resize(rails.len().max(3), rails[0].clone());
            }
            Focus::SavedResults => {
                only(&[OpKind::FetchAdd, OpKind::CompareSwap]);
                plan.depth = plan.depth.max(16);
                // The NIC sends the next atomic before the program sees the completion of an atomic
                // that was answered.
                world.memory.chunk_delay = DurationRange::nanos(1, 20_000);
                capabilities.for_each(|nic| {
                    (nic.psn_query, nic.saved_results, nic.reset) = (true, true, true);
                    nic.ack_after_placement = true;
                });
            }
            Focus::LatePlaced => {
                only(&[OpKind::Send, OpKind::Write]);
                (plan.ops, plan.depth) = (plan.ops.max(60), plan.depth.max(16));
                capabilities.for_each(|nic| (nic.ack_after_placement, nic.write_order) = (false, true));
                rails.resize(rails.len().clamp(2, 3), rails[0].clone());
            }
            Focus::TornThenClosed => {
                only(&[OpKind::Write, OpKind::WriteImm, OpKind::Read]);
                capabilities.for_each(|nic| nic.psn_query = true);
                rails.truncate(1);
            }
            Focus::TornBehindError => {
                only(&[OpKind::WriteImm, OpKind::FetchAdd, OpKind::CompareSwap]);
                capabilities.for_each(|nic| (nic.psn_query, nic.saved_results) = (true, false));
            }
        }
        plan.max_len = plan.max_len.max(8 << 10);
    }

    pub(super) fn shape_vqp(self, vqp: &mut VqpConfig) {
        match self {
            // The requester has more atomics to post than the responder saves results.
            Focus::SavedResults => vqp.rd_atomic = 1 + vqp.rd_atomic % 4,
            Focus::TornThenClosed => vqp.detector.retry_cnt = 0,
            Focus::LateNewQps => {
                (vqp.detector.retry_cnt, vqp.detector.heartbeat_interval) = (0, Duration::from_millis(1));
            }
            _ => {}
        }
    }

    /// Adapts those parts of a setup that `shape` does not adapt. Only the workloads
    /// `failover-cases` and `failover-limits` need this.
    pub(super) fn shape_setup(self, setup: &mut Setup) {
        if self == Focus::TornFence {
            // A fetch of data would complete the placement that the NIC has begun. So all data is
            // inline, which needs no fetch, and the peer posts no READs.
            setup.rails.iter_mut().for_each(|rail| rail.mtu = [Mtu::M256; 2]);
            setup.vqp.inline = LONGEST_INLINE;
            setup.plans.truncate(1);
            setup.held_back.truncate(1);
            setup.plans[0][1].ops = 0;
            let plan = &mut setup.plans[0][0];
            (plan.max_len, plan.inline_limit) = (LONGEST_INLINE as usize, Some(LONGEST_INLINE as usize));
        }
        if self != Focus::LatePlaced {
            return;
        }
        setup.world.host.pause_ppm = 50_000;
        setup.world.host.pause_length = DurationRange::micros(20, 400);
        (setup.has_shared_backup, setup.xrc_queues) = (false, None);
        setup.plans.truncate(1);
        setup.held_back.truncate(1);
        setup.polling = [Polling::Always; 2];
        let options = ConnectionOptions {
            completion_log: true,
            durable: true,
            shared_receives: [false; 2],
            windows: None,
        };
        let log = CompletionLogConfig { interval: setup.log_interval, ..CompletionLogConfig::default() };
        setup.vqp.completion_log = Some(log);
        options.shape(&mut setup.vqp);
        setup.options = Some(options);
    }

    pub(super) fn faults(self, rng: &mut Prng) -> Vec<(Duration, Fault)> {
        match self {
            Focus::SavedResults if rng.below(3) == 0 => return vec![sleep_through_completions(rng, Some(0))],
            Focus::LatePlaced => return hold_placed_back(rng),
            Focus::TornThenClosed => return tear_and_close(rng),
            Focus::LostResume => return tear_and_lose_resumes(rng),
            Focus::UnplacedOnLaterRail => return lose_placements_on_rail_1(rng),
            Focus::LateNewQps => return flap_and_hold_new_qps(rng),
            _ => {}
        }
        let (stage, failure, target) = match self {
            Focus::FencedReads | Focus::UndecidedFence | Focus::SavedResults => {
                (Stage::Executed, *rng.pick(&NIC_FAILURES), 0)
            }
            Focus::TornBehindError => (Stage::PartlyExecuted, Failure::LinkDown, rng.index(2)),
            Focus::UnplacedMessages => (Stage::NotPlaced, Failure::NicDead, 1),
            _ => (Stage::PartlyExecuted, *rng.pick(&NIC_FAILURES), 0),
        };
        let nth = rng.between(1, if self == Focus::SavedResults { 40 } else { 12 }) as u32;
        let mut faults = vec![Fault::at_stage(0, stage, nth, target, failure)];
        if matches!(self, Focus::UndecidedFence | Focus::TornFence) {
            // The completions of the READs are lost with the NIC.
            let time = Duration::from_micros(rng.between(100, 3_000));
            faults.push((short_or_long(rng, 100_000), Fault::Nap { end: 0, time, then: None }));
        }
        faults
    }
}

/// Draws faults of a message about the operations that end 1 has seen. The copy on rail 0 is lost,
/// and the link of rail 0 fails. The copy on rail 1 arrives later.
fn hold_placed_back(rng: &mut Prng) -> Vec<(Duration, Fault)> {
    let nth = rng.between(2, 30) as u32;
    let kind = PacketKind::Control(MessageKind::Placed);
    let held = PacketFate::Held(short_or_long(rng, 10_000_000));
    let then = Some((rng.index(2), Failure::LinkDown));
    let lost = Fault::at_sent(0, 1, kind, nth, PacketFate::Lost, then);
    vec![lost, Fault::at_sent(1, 1, kind, nth, held, None)]
}

/// Draws blinks of the active rail, and delays of messages about new queue pairs.
fn flap_and_hold_new_qps(rng: &mut Prng) -> Vec<(Duration, Fault)> {
    let (mut at, mut faults) = (Duration::ZERO, Vec::new());
    for _ in 0..8 {
        at += Duration::from_nanos(rng.between(1_000_000, 12_000_000));
        let down = Some(Duration::from_nanos(rng.between(100_000, 3_000_000)));
        faults.push((at, Fault::Link { rail: Rail::Active, end: rng.index(2), down }));
    }
    for nth in 1..=12 {
        let (rail, end) = (rng.index(2), rng.index(2));
        let fate = PacketFate::Held(Duration::from_nanos(rng.between(1_000_000, 60_000_000)));
        let kind = PacketKind::Control(MessageKind::NewQp);
        faults.push(Fault::at_sent(rail, end, kind, nth, fate, None));
    }
    faults
}

/// Draws the failure of rail 0, and the death of the responder's NIC of rail 1 when acknowledged
/// data is not in memory.
fn lose_placements_on_rail_1(rng: &mut Prng) -> Vec<(Duration, Fault)> {
    let [first, second] = [8, 12].map(|most| rng.between(1, most) as u32);
    vec![
        Fault::at_stage(0, Stage::Executed, first, 1, Failure::LinkDown),
        Fault::at_stage(1, Stage::NotPlaced, second, 1, Failure::NicDead),
    ]
}

/// Draws the failure of rail 0 in a WRITE of the requester, the loss of the requester's Resumes,
/// and the failure of the next rail when the rest of the WRITE is acknowledged.
fn tear_and_lose_resumes(rng: &mut Prng) -> Vec<(Duration, Fault)> {
    let (nth, target) = (rng.between(1, 12) as u32, rng.index(2));
    let mut faults = vec![Fault::at_stage(0, Stage::PartlyExecuted, nth, target, Failure::LinkDown)];
    for (rail, nth) in [1, 2].into_iter().flat_map(|rail| (1..=LOST_RESUMES).map(move |nth| (rail, nth))) {
        let resume = PacketKind::Control(MessageKind::Resume);
        faults.push(Fault::at_sent(rail, 0, resume, nth, PacketFate::Lost, None));
    }
    let (then, nth) = (Some((rng.index(2), Failure::LinkDown)), rng.between(1, 2) as u32);
    let (rail, kind, fate) = (Rail::Number(1), PacketKind::Ack, PacketFate::Passes);
    let next = Fault::AtPacket { rail, end: 0, kind, arriving: true, nth, fate, then };
    faults.push((Duration::ZERO, next));
    faults
}

/// Draws the loss of a packet of a WRITE of the requester, and perhaps the end of the connection
/// shortly after.
fn tear_and_close(rng: &mut Prng) -> Vec<(Duration, Fault)> {
    let (kind, nth) = (PacketKind::WriteFragment(rng.between(1, 2) as u32), rng.between(1, 4) as u32);
    let mut faults = vec![Fault::at_sent(0, 0, kind, nth, PacketFate::Lost, None)];
    if rng.below(4) > 0 {
        let leave = Fault::Leave { end: rng.index(2), abruptly: rng.below(2) == 0 };
        faults.push((short_or_long(rng, 10_000_000), leave));
    }
    faults
}
