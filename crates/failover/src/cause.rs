use core::fmt;

use mitra_verbs::WcStatus;

/// The reason why a vQP leaves a rail: the detector of its failure, or a preference for another
/// rail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// An operation on the rail completed with this status.
    Completion(WcStatus),
    /// The local port is down, or the local NIC is dead.
    Device,
    /// The address of the NIC has changed, at either end.
    Address,
    /// The peer answered questions on another rail, and not on this one.
    Silence,
    /// The peer proposed to move.
    Peer,
    /// The rail works, and the vQP moves back to the preferred one.
    Failback,
}

impl Cause {
    /// The names of the detectors, in the order of
    /// [`FailoverCounts::detected`](crate::telemetry::FailoverCounts::detected).
    pub const DETECTORS: [&str; 4] = ["completion", "device", "heartbeat", "peer"];

    /// The index in [`Cause::DETECTORS`]. `None` if the rail has not failed.
    pub fn detector(self) -> Option<usize> {
        match self {
            Cause::Completion(_) => Some(0),
            Cause::Device | Cause::Address => Some(1),
            Cause::Silence => Some(2),
            Cause::Peer => Some(3),
            Cause::Failback => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Completion(status) => write!(f, "an operation failed ({status})"),
            Cause::Device => f.write_str("device event"),
            Cause::Address => f.write_str("change of address"),
            Cause::Silence => f.write_str("silent, and another rail answers"),
            Cause::Peer => f.write_str("told by the peer"),
            Cause::Failback => f.write_str("back to the preferred rail"),
        }
    }
}
