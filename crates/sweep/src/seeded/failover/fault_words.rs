//! The faults of a world in words, for the page and for the output of a failing seed.

use core::fmt::{self, Display, Formatter};
use core::time::Duration;

use super::fault_schedule::{ALL_PACKETS, Fault, FaultSchedule, Rail};
use mitra_sim::{Failure, PacketFate, PacketKind, RecoveryPoint, Stage};

impl FaultSchedule {
    /// Describes each fault in a line, in order of time.
    pub(super) fn describe(&self) -> Vec<String> {
        let mut faults: Vec<_> = self.faults.iter().collect();
        faults.sort_by_key(|(at, _)| *at);
        let line = |(at, fault): &(Duration, Fault)| match (at.is_zero(), fault.has_condition()) {
            (true, true) => format!("from the start: {fault}"),
            (false, true) => format!("from {at:?} on: {fault}"),
            (_, false) => format!("at {at:?}: {fault}"),
        };
        faults.into_iter().map(line).collect()
    }
}

impl Fault {
    /// Returns whether the fault waits for something, such as a packet.
    fn has_condition(&self) -> bool {
        matches!(
            self,
            Fault::AtStage { .. } | Fault::AtPacket { .. } | Fault::InRecovery { .. } | Fault::AtPoint { .. }
        )
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Fault::Link { rail, end, down } => {
                write!(f, "{}", Failing(rail, end, Failure::LinkDown))?;
                down.map_or(Ok(()), |down| write!(f, " for {down:?}"))
            }
            Fault::Nic { rail, end, failure } => write!(f, "{}", Failing(rail, end, failure)),
            Fault::OneWay { rail, end, sends, time, drop_ppm } => {
                let share = f64::from(drop_ppm) / f64::from(ALL_PACKETS) * 100.0;
                let direction = if sends { "from" } else { "to" };
                write!(f, "{share} % of the packets {direction} {} are lost for {time:?}", Nic(rail, end))
            }
            Fault::Address { rail, end } => write!(f, "{} gets another address", Nic(rail, end)),
            Fault::Nap { end, time, then } => {
                write!(f, "host {} sleeps for {time:?}", host(end))?;
                then.map_or(Ok(()), |(rail, failure)| {
                    write!(f, "; shortly before it wakes, {}", Failing(rail, end, failure))
                })
            }
            Fault::AtStage { rail, observer, stage, operation, nth, target, failure, hold } => {
                let kind = operation.map_or("request", |operation| operation.name());
                write!(f, "when {kind} {nth} {} at {}, ", reaches(stage), Nic(rail, observer))?;
                write!(f, "{}", Failing(rail, target, failure))?;
                hold.map_or(Ok(()), |hold| write!(f, "; its packet is held back for {hold:?}"))
            }
            Fault::AtPacket { rail, end, kind, arriving, nth, fate, then } => {
                let direction = if arriving { "to" } else { "from" };
                write!(f, "occurrence {nth} of {} {direction} {} ", packet(kind), Nic(rail, end))?;
                match fate {
                    PacketFate::Passes => f.write_str("passes")?,
                    PacketFate::Lost => f.write_str("is lost")?,
                    PacketFate::Held(time) => write!(f, "is held back for {time:?}")?,
                }
                then.map_or(Ok(()), |(end, failure)| write!(f, "; then {}", Failing(rail, end, failure)))
            }
            Fault::InRecovery { first, end, nth, second, target, failure } => {
                write!(
                    f,
                    "{}; in the recovery, at call {nth} of host {}, ",
                    Failing(first, end, Failure::LinkDown),
                    host(end)
                )?;
                write!(f, "{}", Failing(second, target, failure))
            }
            Fault::AtPoint { point, nth, rail, target, failure } => {
                write!(
                    f,
                    "when a host {} for time {nth}, {}",
                    has_come(point),
                    Failing(rail, target, failure)
                )
            }
            Fault::Leave { end, abruptly: true } => {
                write!(f, "host {} closes its first connection abruptly", host(end))
            }
            Fault::Leave { end, abruptly: false } => {
                write!(f, "host {} shuts its connections down", host(end))
            }
        }
    }
}

const fn host(end: usize) -> char {
    if end == 0 { 'a' } else { 'b' }
}

/// A NIC by its name on the page, such as a0.
struct Nic(Rail, usize);

impl Display for Nic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Nic(Rail::Number(number), end) => write!(f, "{}{number}", host(end)),
            Nic(Rail::Active, end) => write!(f, "the NIC of {} on its active rail", host(end)),
        }
    }
}

/// A failure of a NIC or its link.
struct Failing(Rail, usize, Failure);

impl Display for Failing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Failing(rail, end, failure) = *self;
        let nic = Nic(rail, end);
        match failure {
            Failure::LinkDown => write!(f, "the link of {nic} goes down"),
            Failure::NicDead => write!(f, "{nic} dies"),
            Failure::NicHung => write!(f, "{nic} hangs"),
            Failure::NotPlaced => write!(f, "{nic} acknowledges writes before their data is in memory"),
        }
    }
}

fn reaches(stage: Stage) -> &'static str {
    match stage {
        Stage::Posted => "is posted",
        Stage::RequestOnWire => "is on the wire",
        Stage::Arrived => "has arrived",
        Stage::PartlyExecuted => "is partly executed",
        Stage::Executed => "is executed",
        Stage::AckOnWire => "has its acknowledgement on the wire",
        Stage::Acknowledged => "is acknowledged",
        Stage::NotPlaced => "is acknowledged and not yet in memory",
    }
}

fn has_come(point: RecoveryPoint) -> &'static str {
    match point {
        RecoveryPoint::None => "has ended a recovery",
        RecoveryPoint::Fenced => "has fenced a queue pair",
        RecoveryPoint::Proposed => "has sent or received a Propose",
        RecoveryPoint::Evidence => "has sent or received Evidence",
        RecoveryPoint::Resumed => "has sent or received a Resume",
    }
}

fn packet(kind: PacketKind) -> String {
    match kind {
        PacketKind::Control(kind) => format!("{kind:?}"),
        PacketKind::AnyControl => "control message".to_owned(),
        PacketKind::WriteFragment(at) => format!("packet {at} of a WRITE"),
        PacketKind::ReadRequest => "READ request".to_owned(),
        PacketKind::AtomicRequest => "atomic request".to_owned(),
        PacketKind::AtomicAck => "atomic acknowledgement".to_owned(),
        PacketKind::Ack => "acknowledgement".to_owned(),
        PacketKind::Nak => "NAK".to_owned(),
        PacketKind::ReadResponse => "READ response".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::setup::Setup;
    use super::*;
    use mitra_sim::Operation;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn faults_are_described_in_order_of_time_and_in_words() {
        let (rail, active, failure) = (Rail::Number(1), Rail::Active, Failure::NicDead);
        let faults = vec![
            (3 * MS, Fault::Nap { end: 1, time: MS, then: Some((active, Failure::NicHung)) }),
            (MS, Fault::OneWay { rail, end: 0, sends: false, time: MS, drop_ppm: ALL_PACKETS / 10 }),
            (2 * MS, Fault::Link { rail, end: 0, down: Some(MS) }),
            Fault::at_stage(0, Stage::Executed, 7, 0, failure),
            (4 * MS, Fault::Leave { end: 0, abruptly: true }),
            (5 * MS, Fault::InRecovery { first: active, end: 0, nth: 9, second: rail, target: 1, failure }),
            (6 * MS, Fault::AtPoint { point: RecoveryPoint::Evidence, nth: 2, rail, target: 0, failure }),
            Fault::at_sent(1, 1, PacketKind::WriteFragment(2), 3, PacketFate::Held(MS), Some((0, failure))),
        ];
        let schedule = FaultSchedule { spared_rail: None, faults, end: 9 * MS };
        assert_eq!(
            schedule.describe(),
            [
                "from the start: when request 7 is executed at b0, a0 dies",
                "from the start: occurrence 3 of packet 2 of a WRITE from b1 is held back for 1ms; then a1 dies",
                "at 1ms: 10 % of the packets to a1 are lost for 1ms",
                "at 2ms: the link of a1 goes down for 1ms",
                "at 3ms: host b sleeps for 1ms; shortly before it wakes, the NIC of b on its active rail hangs",
                "at 4ms: host a closes its first connection abruptly",
                "from 5ms on: the link of the NIC of a on its active rail goes down; in the recovery, at call 9 of host a, b1 dies",
                "from 6ms on: when a host has sent or received Evidence for time 2, a1 dies",
            ]
        );
    }

    /// No Debug text of a Rust type is left in the words of any seed.
    #[test]
    fn words_of_drawn_faults_name_no_types() {
        let mut seen = 0;
        for seed in 0..2_000 {
            let schedule = FaultSchedule::draw(seed, &Setup::draw(seed));
            for line in schedule.describe() {
                assert!(!line.contains(['{', '}', '(', '_']), "seed {seed}: {line}");
                seen += 1;
            }
        }
        assert!(seen > 2_000, "{seen}");
        let operation = Some(Operation::WriteWithImm);
        let at = Fault::AtStage {
            rail: Rail::Number(0),
            observer: 0,
            stage: Stage::Posted,
            operation,
            nth: 8,
            target: 1,
            failure: Failure::LinkDown,
            hold: Some(MS),
        };
        assert_eq!(
            at.to_string(),
            "when WRITE with immediate 8 is posted at a0, the link of b0 goes down; its packet is held back for 1ms"
        );
    }
}
