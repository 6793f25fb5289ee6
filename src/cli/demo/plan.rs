//! Where the rail dies in each round: placed where completions are in flight, at an operation of each kind in turn.

use mitra_transport::fault::{Failure, Stage, Trigger};

use super::workload::{Dice, Kind, Workload};

/// An end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It posts.
    Client,
    /// It lends its memory, and receives.
    Server,
}

impl Side {
    pub(super) const BOTH: [Side; 2] = [Side::Client, Side::Server];

    pub(super) fn name(self) -> &'static str {
        ["client", "server"][self as usize]
    }

    /// The role of this side's process on the command line of `mitra peer`.
    pub(crate) const fn peer_role(self) -> &'static str {
        match self {
            Side::Client => "demo-client",
            Side::Server => "demo-server",
        }
    }
}

/// How rail 0 dies in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) trigger: Trigger,
    /// Whose NIC it is armed at.
    pub(super) at: Side,
    /// The operation that it strikes at: the last that is executed on rail 0.
    pub(super) victim: Option<usize>,
}

impl Fault {
    /// A fault that the user chose. At which end a stage is seen follows from the stage.
    pub(super) fn chosen(trigger: Trigger) -> Fault {
        let at = match trigger.stage {
            Stage::Posted | Stage::RequestOnWire | Stage::Acknowledged => Side::Client,
            _ => Side::Server,
        };
        Fault { trigger, at, victim: None }
    }

    /// Whether the promise table has errors for it: what a dead responder had executed, only its log can tell.
    pub(super) fn allows_named_errors(&self) -> bool {
        self.at == Side::Server && self.trigger.failure != Failure::LinkDown
    }

    /// For people. `victim`: the kind of the operation that it strikes at, if it was aimed at one.
    pub(super) fn describe(&self, victim: Option<&str>) -> String {
        let what = match self.trigger.failure {
            Failure::LinkDown => "link of rail 0 down",
            Failure::NicDead => "NIC 0 dead",
            Failure::NicHung => "NIC 0 hung",
            Failure::NotPlaced => "placements held back",
        };
        let when = match self.trigger.stage {
            Stage::Posted => "before a request left",
            Stage::RequestOnWire => "with a request on the wire",
            Stage::Arrived => "with a request arrived, not executed",
            Stage::PartlyExecuted => "in the middle of a message",
            Stage::Executed => {
                let victim = victim.unwrap_or("an operation");
                return format!(
                    "{}’s {what}, with {victim} executed, not acknowledged ({})",
                    self.at.name(),
                    self.trigger
                );
            }
            Stage::AckOnWire => "with an acknowledgement on the wire",
            Stage::Acknowledged => "with an acknowledgement arrived, no completion yet",
            Stage::NotPlaced => "with an operation acknowledged, not placed",
        };
        format!("{}’s {what}, {when} ({})", self.at.name(), self.trigger)
    }
}

/// The rounds, over and over: five that strike at an executed operation of each kind, and other stages and failures
/// for which the promise table says exactly once.
const COURSE: [(Failure, Stage, Option<Kind>); 10] = [
    (Failure::LinkDown, Stage::Executed, Some(Kind::Faa)),
    (Failure::LinkDown, Stage::Executed, Some(Kind::Write)),
    (Failure::LinkDown, Stage::Executed, Some(Kind::Cas)),
    (Failure::LinkDown, Stage::Executed, Some(Kind::Send)),
    (Failure::LinkDown, Stage::Executed, Some(Kind::Read)),
    (Failure::LinkDown, Stage::PartlyExecuted, None),
    (Failure::NicDead, Stage::Acknowledged, None),
    (Failure::LinkDown, Stage::AckOnWire, None),
    (Failure::LinkDown, Stage::RequestOnWire, None),
    (Failure::LinkDown, Stage::AckOnWire, None),
];

/// Rounds after which every kind and stage had its turn.
pub(super) const ROUNDS: usize = COURSE.len();

/// The fault of a round. `log`: a completion log writes an entry behind each WRITE and atomic, which is counted too.
pub(super) fn fault(workload: &Workload, round: usize, dice: &mut Dice, log: bool) -> Fault {
    let (failure, stage, kind) = COURSE[round % ROUNDS];
    let count = workload.ops.len();
    // In the middle half, so that there is a stream before it and after it.
    let middle = |n: usize, dice: &mut Dice| n / 4 + dice.below(n as u64 / 2 + 1) as usize;
    let (nth, victim) = match stage {
        Stage::Executed => {
            let from = middle(count, dice);
            let victim = kind.and_then(|kind| workload.of_kind(kind, from)).unwrap_or(from);
            (ending_packets(workload, victim, log) as usize, Some(victim))
        }
        Stage::PartlyExecuted => {
            (middle(workload.ops.iter().map(|op| op.leading_packets() as usize).sum(), dice), None)
        }
        // READs and atomics are answered one by one, so there are at least so many responses.
        Stage::AckOnWire | Stage::Acknowledged => {
            let answered = |kind| matches!(kind, Kind::Read | Kind::Cas | Kind::Faa);
            (middle(workload.ops.iter().filter(|op| answered(op.kind)).count(), dice), None)
        }
        _ => (middle(count, dice), None),
    };
    let trigger = Trigger { stage, nth: nth.max(1) as u32, failure };
    Fault { victim, ..Fault::chosen(trigger) }
}

/// How many packets end a message up to operation `n` and with it, if none is sent twice.
fn ending_packets(workload: &Workload, n: usize, log: bool) -> u32 {
    let logged = |kind| log && matches!(kind, Kind::Write | Kind::Cas | Kind::Faa);
    let entries = workload.ops[..n].iter().filter(|op| logged(op.kind)).count();
    (n + 1 + entries) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rounds_strike_at_an_operation_of_each_kind() {
        let w = Workload::new(3, 300);
        let mut dice = Dice(4);
        let struck: Vec<Kind> = (0..5)
            .map(|round| {
                let fault = fault(&w, round, &mut dice, false);
                assert_eq!(fault.at, Side::Server);
                assert_eq!(fault.trigger.nth as usize, fault.victim.unwrap() + 1);
                w.ops[fault.victim.unwrap()].kind
            })
            .collect();
        assert!(Kind::ALL.iter().all(|kind| struck.contains(kind)), "{struck:?}");
    }

    #[test]
    fn log_entries_are_counted() {
        let w = Workload::new(3, 300);
        let before = |n| w.ops[..n].iter().filter(|op| op.word().is_some() || op.kind == Kind::Faa).count();
        assert_eq!(ending_packets(&w, 100, true) as usize, 101 + before(100));
    }

    #[test]
    fn a_stage_is_armed_where_it_is_seen() {
        for (script, at) in
            [("link-down@2:1", Side::Client), ("nic-dead@7:1", Side::Client), ("nic-dead@5:1", Side::Server)]
        {
            let fault = Fault::chosen(script.parse().unwrap());
            assert_eq!(fault.at, at, "{script}");
        }
        assert!(Fault::chosen("nic-dead@5:1".parse().unwrap()).allows_named_errors());
        assert!(!Fault::chosen("nic-dead@7:1".parse().unwrap()).allows_named_errors());
    }
}
