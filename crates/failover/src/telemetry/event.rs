use std::time::Duration;

use mitra_verbs::{Qpn, Time};

use crate::ballot::Ballot;
use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::ledger::RecoveryStats;

/// A step of a failover, or the closing of a vQP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverEvent {
    /// The position among all events of the domain, from 1.
    pub number: u64,
    /// On the clock of the vQP's NICs.
    pub at: Time,
    /// The vQP's number at that time.
    pub vqp: Qpn,
    /// The step.
    pub kind: EventKind,
}

/// The kind of a [`FailoverEvent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// The active rail failed at this end, or the peer said that it had failed.
    Detected {
        /// The rail.
        rail: usize,
        /// Why the rail counts as failed.
        cause: Cause,
    },
    /// The vQP stays on a rail whose failure was detected, because the rail works again.
    Stayed {
        /// The rail.
        rail: usize,
    },
    /// This end has fenced the rail, which executes nothing posted on it any more.
    Fenced {
        /// The rail.
        rail: usize,
    },
    /// This end has decided the operations that were in flight, and has moved.
    Decided {
        /// The old rail.
        from: usize,
        /// The new rail. It is the old rail if the vQP has replaced its queue pairs there, because
        /// no other rail is usable.
        to: usize,
        /// The ballot of the move.
        ballot: Ballot,
        /// Whether the vQP has left the new rail before.
        is_failback: bool,
        /// The operations that were in flight.
        stats: RecoveryStats,
    },
    /// The last operation that was in flight has completed.
    Recovered {
        /// The new rail.
        rail: usize,
        /// The time since the failure was detected.
        duration: Duration,
    },
    /// The vQP closed.
    Closed {
        /// The reason.
        reason: CloseReason,
    },
}
