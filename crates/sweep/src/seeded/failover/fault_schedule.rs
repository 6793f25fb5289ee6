//! The faults of a world, drawn from its seed.

use core::time::Duration;

use super::placed;
use super::setup::Setup;
use crate::seeded::faults::{NIC_FAILURES, RAIL_FAILURES};
use mitra_sim::{Failure, Operation, PacketFate, PacketKind, Prng, RecoveryPoint, Stage};

/// A fault. `end`, `target` and `observer` are indices of hosts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Fault {
    /// The link of one end goes down, and up again after the time `down`, if given.
    Link { rail: Rail, end: usize, down: Option<Duration> },
    /// The NIC of one end dies or hangs.
    Nic { rail: Rail, end: usize, failure: Failure },
    /// Packets in one direction, sent by the end or arriving at the end, are lost for a time.
    OneWay { rail: Rail, end: usize, sends: bool, time: Duration, drop_ppm: u32 },
    /// The NIC of one end gets another address.
    Address { rail: Rail, end: usize },
    /// The program of an end sleeps for a time. With `then`, a NIC of the end fails shortly before
    /// the program wakes.
    Nap { end: usize, time: Duration, then: Option<(Rail, Failure)> },
    /// A link or NIC fails when the `nth` packet, or the `nth` packet of operations of a kind,
    /// reaches a stage at the observer.
    AtStage {
        rail: Rail,
        observer: usize,
        stage: Stage,
        operation: Option<Operation>,
        nth: u32,
        target: usize,
        failure: Failure,
        hold: Option<Duration>,
    },
    /// The `nth` packet of a kind that the end sends, or that arrives there, has the fate `fate`.
    /// With `then`, a link or NIC fails at this packet.
    AtPacket {
        rail: Rail,
        end: usize,
        kind: PacketKind,
        arriving: bool,
        nth: u32,
        fate: PacketFate,
        then: Option<(usize, Failure)>,
    },
    /// The link of `end` goes down. A second failure follows in the recovery: at the `nth` call by
    /// which the program of `end` changes or queries a NIC, the NIC of `target` on another rail
    /// fails.
    InRecovery { first: Rail, end: usize, nth: u64, second: Rail, target: usize, failure: Failure },
    /// A link or NIC fails when an end has reached a point of a recovery for the `nth` time.
    AtPoint { point: RecoveryPoint, nth: u32, rail: Rail, target: usize, failure: Failure },
    /// An end shuts its vQP or its shared backup down, or closes the first connection abruptly.
    Leave { end: usize, abruptly: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rail {
    Number(usize),
    /// The rail that is active at the end when the fault happens. If this rail is the spared rail,
    /// its link only blinks.
    Active,
}

impl Fault {
    /// A failure when the `nth` packet reaches a stage at end 1, counted from the beginning.
    pub(super) fn at_stage(
        rail: usize,
        stage: Stage,
        nth: u32,
        target: usize,
        failure: Failure,
    ) -> (Duration, Fault) {
        let (rail, observer, operation, hold) = (Rail::Number(rail), 1, None, None);
        (Duration::ZERO, Fault::AtStage { rail, observer, stage, operation, nth, target, failure, hold })
    }

    /// The fate of the `nth` packet of a kind that an end sends, counted from the beginning.
    pub(super) fn at_sent(
        rail: usize,
        end: usize,
        kind: PacketKind,
        nth: u32,
        fate: PacketFate,
        then: Option<(usize, Failure)>,
    ) -> (Duration, Fault) {
        let (rail, arriving) = (Rail::Number(rail), false);
        (Duration::ZERO, Fault::AtPacket { rail, end, kind, arriving, nth, fate, then })
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct FaultSchedule {
    /// The rail that stays usable at both ends, apart from blinks and noise. While there is such a
    /// rail, posted work must complete.
    pub(super) spared_rail: Option<usize>,
    pub(super) faults: Vec<(Duration, Fault)>,
    pub(super) end: Duration,
}

/// The longest blink of a link of the spared rail, far below `peer_timeout`.
pub(super) const LONGEST_BLINK: Duration = Duration::from_millis(30);

/// In packets per million.
pub(super) const ALL_PACKETS: u32 = 1_000_000;

/// The longest time for which a packet is held back.
pub(super) const LONGEST_HOLD: Duration = Duration::from_millis(60);

impl FaultSchedule {
    pub(super) fn draw(seed: u64, setup: &Setup) -> FaultSchedule {
        let rng = &mut Prng::stream(seed, "failover faults");
        let rails = setup.rails.len();
        let mut spared_rail = (rng.below(3) > 0).then(|| rng.index(rails));
        let span = 1 << rng.below(8);
        let mut at = Duration::ZERO;
        // A sleeping host and a starved one are alike absent.
        let mut naps = setup.starvation.iter().map(|starvation| starvation.time).sum::<Duration>();
        let mut faults = Vec::new();
        let kinds = draw_kinds(rng);
        let mut count = *rng.pick(&[0, 1, 1, 2, 2, 3, 4, 6, 10]);
        let special = rng.below(12);
        if let Some(focus) = setup.focus {
            spared_rail = spared_rail.filter(|&rail| rail != 0);
            faults.extend(focus.faults(rng));
            count /= 4;
        }
        if let Some(cell) = setup.placed {
            spared_rail = spared_rail.filter(|&rail| rail > 1);
            faults.extend(placed::faults(seed, cell));
            count = 0;
        }
        match special {
            _ if setup.focus.is_some() || setup.placed.is_some() => {}
            0 => {
                faults.push(sleep_through_completions(rng, None));
                count /= 4;
            }
            1 => {
                faults.extend(fail_again_during_recovery(rng));
                count /= 4;
            }
            _ => {}
        }
        for _ in 0..count {
            at += short_or_long(rng, 50_000 * span / 4);
            let rail = draw_rail(rng, rails, spared_rail);
            let end = rng.index(2);
            let fault = match (*rng.pick(&kinds), rail) {
                (Kind::Link, Some(rail)) => {
                    let down = (rng.below(4) > 0).then(|| short_or_long(rng, 20_000_000));
                    Fault::Link { rail, end, down }
                }
                (Kind::Link, None) => blink(rng, spared_rail, end),
                (Kind::Nic, Some(rail)) => Fault::Nic { rail, end, failure: *rng.pick(&NIC_FAILURES) },
                (Kind::OneWay, Some(rail)) => {
                    let (sends, time) = (rng.below(2) == 0, short_or_long(rng, 100_000_000));
                    Fault::OneWay { rail, end, sends, time, drop_ppm: ALL_PACKETS }
                }
                (Kind::AtStage, Some(rail)) => draw_stage(rng, rail),
                (Kind::Nap, _) => {
                    let left = (setup.vqp.peer_timeout / 2).saturating_sub(naps);
                    let time = short_or_long(rng, 200_000_000).min(left);
                    naps += time;
                    let failure = *rng.pick(&[Failure::LinkDown, Failure::NicDead, Failure::NicHung]);
                    let then = rail.filter(|_| rng.below(2) == 0).map(|rail| (rail, failure));
                    Fault::Nap { end, time, then }
                }
                _ => {
                    let any = rng.index(rails);
                    blink(rng, spared_rail.or(Some(any)), end)
                }
            };
            faults.push((at, fault));
        }
        if rng.below(24) == 0 && setup.placed.is_none() {
            let leave = Fault::Leave { end: rng.index(2), abruptly: rng.below(2) == 0 };
            faults.push((short_or_long(rng, 100_000 * span), leave));
        }
        if !setup.is_first_generation && setup.placed.is_none() {
            draw_more(seed, setup, spared_rail, span, &mut faults);
        }
        let last = faults.iter().map(|&(at, _)| at).max().unwrap_or_default();
        let end = last + short_or_long(rng, 100_000_000);
        FaultSchedule { spared_rail, faults, end }
    }

    /// Returns whether a program ends the connection with this index.
    pub(super) fn has_leave(&self, connection: usize) -> bool {
        self.has(|fault| matches!(fault, Fault::Leave { abruptly, .. } if connection == 0 || !abruptly))
    }

    pub(super) fn has(&self, is_wanted: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|(_, fault)| is_wanted(fault))
    }

    /// Returns whether a NIC may die or hang.
    pub(super) fn has_nic_failure(&self) -> bool {
        self.failures().any(|(_, failure)| failure != Failure::LinkDown)
    }

    /// Returns whether only NICs of this end may die or hang.
    pub(super) fn has_nic_failures_only_at(&self, end: usize) -> bool {
        self.failures().all(|(at, failure)| failure == Failure::LinkDown || at == end)
    }

    /// Returns whether a NIC may hang.
    pub(super) fn has_hang(&self) -> bool {
        self.failures().any(|(_, failure)| failure == Failure::NicHung)
    }

    /// Returns the failures of NICs and links, each with its end.
    fn failures(&self) -> impl Iterator<Item = (usize, Failure)> {
        self.faults.iter().filter_map(|(_, fault)| match *fault {
            Fault::Nic { failure, end, .. }
            | Fault::Nap { end, then: Some((_, failure)), .. }
            | Fault::AtPacket { then: Some((end, failure)), .. }
            | Fault::InRecovery { failure, target: end, .. }
            | Fault::AtPoint { failure, target: end, .. }
            | Fault::AtStage { failure, target: end, .. } => Some((end, failure)),
            _ => None,
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Link,
    Nic,
    OneWay,
    AtStage,
    Nap,
    Blink,
}

/// Draws the faults that worlds of the first generation lack.
fn draw_more(
    seed: u64,
    setup: &Setup,
    spared: Option<usize>,
    span: u64,
    faults: &mut Vec<(Duration, Fault)>,
) {
    let rng = &mut Prng::stream(seed, "failover more faults");
    for (_, fault) in faults.iter_mut() {
        if let Fault::OneWay { drop_ppm, .. } = fault {
            *drop_ppm = *rng.pick(&[ALL_PACKETS, ALL_PACKETS, 500_000, 100_000]);
        }
    }
    if rng.below(3) == 0 {
        for _ in 0..rng.between(1, 3) {
            faults.push((short_or_long(rng, 20_000 * span), draw_at_packet(rng, setup.rails.len(), spared)));
        }
    }
    if rng.below(4) == 0
        && let Some(second) = draw_rail(rng, setup.rails.len(), spared)
    {
        let nth = 1 + (rng.below(256) >> rng.below(6));
        let (end, target, failure) = (rng.index(2), rng.index(2), *rng.pick(&RAIL_FAILURES));
        let fault = Fault::InRecovery { first: Rail::Active, end, nth, second, target, failure };
        faults.push((short_or_long(rng, 400_000), fault));
    }
    let changes = if rng.below(6) == 0 { rng.between(1, 3) } else { 0 };
    for _ in 0..changes {
        if let Some(rail) = draw_rail(rng, setup.rails.len(), spared) {
            faults.push((short_or_long(rng, 100_000 * span), Fault::Address { rail, end: rng.index(2) }));
        }
    }
}

/// Draws a fault at a packet. On the spared rail, only the packet is lost or late.
fn draw_at_packet(rng: &mut Prng, rails: usize, spared: Option<usize>) -> Fault {
    let rail = draw_rail(rng, rails, spared);
    let fate = match rng.below(3) {
        0 => PacketFate::Passes,
        1 => PacketFate::Lost,
        _ => PacketFate::Held(short_or_long(rng, LONGEST_HOLD.as_nanos() as u64)),
    };
    let failure = *rng.pick(&RAIL_FAILURES);
    let then = (rail.is_some() && rng.below(3) > 0).then(|| (rng.index(2), failure));
    let kind = *rng.pick(&PacketKind::DRAWN);
    let nth = 1 + (rng.below(32) >> rng.below(6)) as u32;
    let rail = rail.unwrap_or(Rail::Number(spared.unwrap_or(0)));
    Fault::AtPacket { rail, end: rng.index(2), kind, arriving: rng.below(2) == 0, nth, fate, then }
}

/// Draws a nap in which operations complete. Their completions are lost with the NIC before the
/// program wakes, so that only evidence tells which operations were executed. If `end` is `None`,
/// the end is drawn.
pub(super) fn sleep_through_completions(rng: &mut Prng, end: Option<usize>) -> (Duration, Fault) {
    let failure = *rng.pick(&NIC_FAILURES);
    let time = Duration::from_micros(rng.between(100, 3_000));
    let end = end.unwrap_or_else(|| rng.index(2));
    let nap = Fault::Nap { end, time, then: Some((Rail::Active, failure)) };
    (short_or_long(rng, 200_000), nap)
}

/// Draws blinks of the active rail that follow so closely that a blink falls into the recovery from
/// the previous blink.
fn fail_again_during_recovery(rng: &mut Prng) -> Vec<(Duration, Fault)> {
    let mut at = short_or_long(rng, 200_000);
    let blinks = rng.between(2, 6);
    let blinks = (0..blinks).map(|_| {
        let fault =
            Fault::Link { rail: Rail::Active, end: rng.index(2), down: Some(short_or_long(rng, 2_000_000)) };
        let this = (at, fault);
        at += short_or_long(rng, 2_000_000);
        this
    });
    blinks.collect()
}

/// Draws the kinds of faults that a world has. With fewer kinds, the faults hide fewer of each
/// other's effects.
fn draw_kinds(rng: &mut Prng) -> Vec<Kind> {
    let all = [Kind::Link, Kind::Link, Kind::Nic, Kind::OneWay, Kind::AtStage, Kind::Nap, Kind::Blink];
    let mut kinds: Vec<Kind> = all.into_iter().filter(|_| rng.below(2) == 0).collect();
    if kinds.is_empty() {
        kinds.push(*rng.pick(&all));
    }
    kinds
}

/// Draws a rail. `None` is the spared rail.
fn draw_rail(rng: &mut Prng, rails: usize, spared: Option<usize>) -> Option<Rail> {
    let rail = rng.index(rails);
    if rng.below(2) == 0 {
        return Some(Rail::Active).filter(|_| rails > 1 || spared.is_none());
    }
    (Some(rail) != spared).then_some(Rail::Number(rail))
}

fn blink(rng: &mut Prng, rail: Option<usize>, end: usize) -> Fault {
    let down = Some(short_or_long(rng, LONGEST_BLINK.as_nanos() as u64));
    Fault::Link { rail: Rail::Number(rail.unwrap_or(0)), end, down }
}

fn draw_stage(rng: &mut Prng, rail: Rail) -> Fault {
    let stages: Vec<Stage> = Stage::ALL.into_iter().filter(|&stage| stage != Stage::NotPlaced).collect();
    Fault::AtStage {
        rail,
        observer: rng.index(2),
        stage: *rng.pick(&stages),
        operation: None,
        nth: rng.between(1, 40) as u32,
        target: rng.index(2),
        failure: *rng.pick(&RAIL_FAILURES),
        hold: (rng.below(2) == 0).then(|| short_or_long(rng, LONGEST_HOLD.as_nanos() as u64)),
    }
}

/// Draws a time of at most `longest` nanoseconds, the order of magnitude first.
pub(super) fn short_or_long(rng: &mut Prng, longest: u64) -> Duration {
    let limit = longest >> rng.below(10);
    Duration::from_nanos(rng.between(1_000, limit.max(2_000)))
}
