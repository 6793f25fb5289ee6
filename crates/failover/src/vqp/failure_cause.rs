use core::fmt;

use mitra_verbs::WcStatus;

/// The detector that reported a rail's failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// An operation on the rail completed with this status.
    Completion(WcStatus),
    /// The local port is down, or the local NIC is dead.
    Device,
    /// The address of the NIC has changed, at this end or the other.
    Address,
    /// Heartbeats on the rail were missed.
    Heartbeat,
    /// The peer proposed to move.
    Peer,
}

impl Cause {
    /// The names of the detectors, in the order of [`FailoverCounts::detected`](crate::telemetry::FailoverCounts::detected).
    pub const DETECTORS: [&str; 4] = ["completion", "device", "heartbeat", "peer"];

    /// Returns the index of the detector in [`Cause::DETECTORS`].
    pub fn detector(self) -> usize {
        match self {
            Cause::Completion(_) => 0,
            Cause::Device | Cause::Address => 1,
            Cause::Heartbeat => 2,
            Cause::Peer => 3,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Completion(status) => write!(f, "an operation failed ({status})"),
            Cause::Device => f.write_str("device event"),
            Cause::Address => f.write_str("change of address"),
            Cause::Heartbeat => f.write_str("heartbeats missed"),
            Cause::Peer => f.write_str("told by the peer"),
        }
    }
}
