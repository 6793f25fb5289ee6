//! The fault of each round: which failure, at which stage, and at which operation.

use mitra_prng::Prng;
use mitra_transport::fault::{Failure, Stage, Trigger};
use serde::{Deserialize, Serialize};

use super::workload::{Kind, Workload};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Side {
    /// The side that posts operations: the process of the command.
    Client,
    /// The side that provides memory and receives: a process that the command starts.
    Server,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        ["client", "server"][self as usize]
    }
}

/// The fault of a round, which fails rail 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) trigger: Trigger,
    /// The side whose NIC injects the fault.
    pub(super) at: Side,
    /// The operation that the fault is aimed at: the last operation that is executed on rail 0.
    pub(super) victim: Option<usize>,
}

impl Fault {
    /// Returns the fault of a trigger that the user chose. The stage determines the side.
    pub(super) fn chosen(trigger: Trigger) -> Fault {
        let at = match trigger.stage {
            Stage::Posted | Stage::RequestOnWire | Stage::Acknowledged => Side::Client,
            _ => Side::Server,
        };
        Fault { trigger, at, victim: None }
    }

    /// Returns whether the promise table (docs/promises.md) allows named errors for this fault.
    /// After a failure of the responder's NIC, only a completion log shows what the NIC had
    /// executed.
    pub(super) fn allows_named_errors(&self) -> bool {
        self.at == Side::Server && self.trigger.failure != Failure::LinkDown
    }

    /// `victim` is the kind of the operation that the fault is aimed at.
    pub(super) fn describe(&self, victim: Option<&str>) -> String {
        let failure = match self.trigger.failure {
            Failure::LinkDown => "link of rail 0 down",
            Failure::NicDead => "NIC 0 dead",
            Failure::NicHung => "NIC 0 hung",
            Failure::NotPlaced => "placements held back",
        };
        let point = match self.trigger.stage {
            Stage::Posted => "before a request left",
            Stage::RequestOnWire => "with a request on the wire",
            Stage::Arrived => "with a request arrived, not executed",
            Stage::PartlyExecuted => "in the middle of a message",
            Stage::Executed => {
                let victim = victim.unwrap_or("an operation");
                return format!(
                    "{}’s {failure}, with {victim} executed, not acknowledged ({})",
                    self.at.name(),
                    self.trigger
                );
            }
            Stage::AckOnWire => "with an acknowledgement on the wire",
            Stage::Acknowledged => "with an acknowledgement arrived, no completion yet",
            Stage::NotPlaced => "with an operation acknowledged, not placed",
        };
        format!("{}’s {failure}, {point} ({})", self.at.name(), self.trigger)
    }
}

/// The faults of consecutive rounds. The sequence repeats. Each of the first five faults is aimed
/// at an executed operation, each time of another kind. The promise table (docs/promises.md)
/// guarantees exactly-once execution for all faults in the sequence.
const FAULT_SEQUENCE: [(Failure, Stage, Option<Kind>); 10] = [
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

/// The number of rounds after which the sequence repeats.
pub(super) const ROUNDS: usize = FAULT_SEQUENCE.len();

/// Returns the fault of a round. `log` says whether the vQP keeps a completion log, whose entries
/// are packets too.
pub(super) fn fault(workload: &Workload, round: usize, rng: &mut Prng, log: bool) -> Fault {
    let (failure, stage, kind) = FAULT_SEQUENCE[round % ROUNDS];
    let count = workload.ops.len();
    // A point in the middle half, so that operations come before and after the failure.
    let middle = |n: usize, rng: &mut Prng| n / 4 + rng.index(n / 2 + 1);
    let (nth, victim) = match stage {
        Stage::Executed => {
            let from = middle(count, rng);
            let victim = kind.and_then(|kind| workload.of_kind(kind, from)).unwrap_or(from);
            (ending_packets(workload, victim, log) as usize, Some(victim))
        }
        Stage::PartlyExecuted => {
            (middle(workload.ops.iter().map(|op| op.leading_packets() as usize).sum(), rng), None)
        }
        // Every READ and atomic gets a response of its own, so there are at least this many
        // responses.
        Stage::AckOnWire | Stage::Acknowledged => {
            let answered = |kind| matches!(kind, Kind::Read | Kind::Cas | Kind::Faa);
            (middle(workload.ops.iter().filter(|op| answered(op.kind)).count(), rng), None)
        }
        _ => (middle(count, rng), None),
    };
    let trigger = Trigger { stage, nth: nth.max(1) as u32, failure };
    Fault { victim, ..Fault::chosen(trigger) }
}

/// Returns the fault of a round on devices of the kernel: a reset of the client's NIC of rail 0
/// with operations in flight. Nothing else fails there on demand.
pub(super) fn reset(ops: usize, rng: &mut Prng) -> Fault {
    let nth = (ops / 4 + rng.index(ops / 2 + 1)).max(1) as u32;
    Fault::chosen(Trigger { stage: Stage::Posted, nth, failure: Failure::NicDead })
}

/// Returns the number of packets up to and including operation `n` that end a message, if no packet
/// is retransmitted: one for each operation, and one for each entry of the completion log before
/// operation `n`.
fn ending_packets(workload: &Workload, n: usize, log: bool) -> u32 {
    let logged = |kind| log && matches!(kind, Kind::Write | Kind::Cas | Kind::Faa);
    let entries = workload.ops[..n].iter().filter(|op| logged(op.kind)).count();
    (n + 1 + entries) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rounds_target_an_operation_of_each_kind() {
        let w = Workload::new(3, 300);
        let mut rng = Prng::new(4);
        let targets: Vec<Kind> = (0..5)
            .map(|round| {
                let fault = fault(&w, round, &mut rng, false);
                assert_eq!(fault.at, Side::Server);
                assert_eq!(fault.trigger.nth as usize, fault.victim.unwrap() + 1);
                w.ops[fault.victim.unwrap()].kind
            })
            .collect();
        assert!(Kind::ALL.iter().all(|kind| targets.contains(kind)), "{targets:?}");
    }

    #[test]
    fn log_entries_count_as_packets() {
        let w = Workload::new(3, 300);
        let before = |n| w.ops[..n].iter().filter(|op| op.word().is_some() || op.kind == Kind::Faa).count();
        assert_eq!(ending_packets(&w, 100, true) as usize, 101 + before(100));
    }

    #[test]
    fn fault_is_armed_at_the_side_of_its_stage() {
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
