//! The coverage of failures: the stages of the operations in flight, the kinds of failure and
//! operation, and the points of a recovery.

mod observer;

use core::fmt;
use std::collections::BTreeMap;

use mitra_transport::fault::{Failure, Stage};
use mitra_verbs::SendOp;
use mitra_wire::Message;

pub(crate) use observer::CoverageObserver;

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub enum Operation {
    Write,
    WriteWithImm,
    Send,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Operation {
    /// All kinds.
    pub const ALL: [Operation; 6] = [
        Operation::Write,
        Operation::WriteWithImm,
        Operation::Send,
        Operation::Read,
        Operation::CompareSwap,
        Operation::FetchAdd,
    ];

    /// Returns `None` for a request that sends no packet.
    pub(crate) fn of(op: &SendOp) -> Option<Operation> {
        Some(match op {
            SendOp::Write(_) => Operation::Write,
            SendOp::WriteWithImm(..) => Operation::WriteWithImm,
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => Operation::Send,
            SendOp::Read(_) => Operation::Read,
            SendOp::CompareSwap { .. } => Operation::CompareSwap,
            SendOp::FetchAdd { .. } => Operation::FetchAdd,
            SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => return None,
        })
    }

    /// Returns whether an operation of this kind may have sent this request, or may be
    /// acknowledged by this response. A NAK of a READ or an atomic does not count.
    pub(crate) fn may_have_sent(self, message: &Message) -> bool {
        let is_write = matches!(self, Operation::Write | Operation::WriteWithImm);
        match message {
            Message::WriteFirst(_) | Message::WriteMiddle => is_write,
            Message::WriteLast | Message::WriteOnly(_) => self == Operation::Write,
            Message::WriteLastImm(_) | Message::WriteOnlyImm(..) => self == Operation::WriteWithImm,
            Message::ReadRequest(_)
            | Message::ReadFirst(_)
            | Message::ReadMiddle
            | Message::ReadLast(_)
            | Message::ReadOnly(_) => self == Operation::Read,
            Message::CompareSwap(_) => self == Operation::CompareSwap,
            Message::FetchAdd(_) => self == Operation::FetchAdd,
            Message::AtomicAck(..) => matches!(self, Operation::CompareSwap | Operation::FetchAdd),
            Message::Ack(_) => is_write || self == Operation::Send,
            _ => self == Operation::Send,
        }
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Write => "WRITE",
            Operation::WriteWithImm => "WRITE with immediate",
            Operation::Send => "SEND",
            Operation::Read => "READ",
            Operation::CompareSwap => "CAS",
            Operation::FetchAdd => "FAA",
        }
    }
}

/// How far a host is in a recovery: the last step that it took.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum RecoveryPoint {
    /// No recovery is under way.
    #[default]
    None,
    /// The host has fenced a queue pair: taken it to ERR or RESET, or destroyed it.
    Fenced,
    /// The host has sent or received a Propose.
    Proposed,
    /// The host has sent or received Evidence.
    Evidence,
    /// The host has sent or received a Resume, and replays operations.
    Resumed,
}

impl RecoveryPoint {
    /// All points.
    pub const ALL: [RecoveryPoint; 5] = [
        RecoveryPoint::None,
        RecoveryPoint::Fenced,
        RecoveryPoint::Proposed,
        RecoveryPoint::Evidence,
        RecoveryPoint::Resumed,
    ];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            RecoveryPoint::None => "no recovery",
            RecoveryPoint::Fenced => "fenced",
            RecoveryPoint::Proposed => "proposed",
            RecoveryPoint::Evidence => "evidence",
            RecoveryPoint::Resumed => "replaying",
        }
    }
}

/// A cell of the coverage table: a failure while an operation was in flight. If the failure came
/// during a recovery, `stage` is the operation's stage when that recovery began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CoverageCell {
    /// The stage of the operation (docs/faults.md).
    pub stage: Stage,
    /// The failure.
    pub failure: Failure,
    /// The kind of the operation.
    pub operation: Operation,
    /// The point of the recovery at which the failure came.
    pub point: RecoveryPoint,
}

impl CoverageCell {
    /// The failures of the table.
    pub const FAILURES: [Failure; 3] = [Failure::LinkDown, Failure::NicDead, Failure::NicHung];

    /// Returns all cells that can exist.
    pub fn all() -> impl Iterator<Item = CoverageCell> {
        let cells = Stage::ALL.into_iter().flat_map(|stage| {
            CoverageCell::FAILURES.into_iter().flat_map(move |failure| {
                Operation::ALL.into_iter().flat_map(move |operation| {
                    let cell = move |point| CoverageCell { stage, failure, operation, point };
                    RecoveryPoint::ALL.into_iter().map(cell)
                })
            })
        });
        cells.filter(|cell| cell.can_exist())
    }

    /// Returns whether an operation of this kind can be at the stage when the failure comes.
    pub fn can_exist(self) -> bool {
        let has_one_request_packet =
            matches!(self.operation, Operation::Read | Operation::CompareSwap | Operation::FetchAdd);
        match self.stage {
            // A request of one packet is executed as a whole.
            Stage::PartlyExecuted => !has_one_request_packet,
            // A READ changes nothing at the responder.
            Stage::NotPlaced => self.operation != Operation::Read,
            // A NIC that hangs still executes the packet that arrives, so the operation leaves
            // these stages. In a recovery, `stage` is older than the failure.
            Stage::Arrived | Stage::Acknowledged => {
                self.failure != Failure::NicHung || self.point != RecoveryPoint::None
            }
            _ => true,
        }
    }
}

impl fmt::Display for CoverageCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CoverageCell { stage, failure, operation, point } = self;
        write!(f, "stage {stage}, {failure}, {}, {}", operation.name(), point.name())
    }
}

/// The number of failures at operations in flight, by cell.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Coverage {
    counts: BTreeMap<CoverageCell, u64>,
}

impl Coverage {
    pub(crate) fn count(&mut self, cell: CoverageCell) {
        *self.counts.entry(cell).or_default() += 1;
    }

    /// Adds the counts of other runs.
    pub fn add(&mut self, other: &Coverage) {
        for (&cell, n) in &other.counts {
            *self.counts.entry(cell).or_default() += n;
        }
    }

    /// Returns the count of a cell.
    pub fn get(&self, cell: CoverageCell) -> u64 {
        self.counts.get(&cell).copied().unwrap_or(0)
    }

    /// Returns the cells whose count is not 0.
    pub fn cells(&self) -> impl Iterator<Item = CoverageCell> {
        self.counts.keys().copied()
    }

    /// Returns the cells that can exist and whose count is 0.
    pub fn empty_cells(&self) -> Vec<CoverageCell> {
        CoverageCell::all().filter(|&cell| self.get(cell) == 0).collect()
    }
}
