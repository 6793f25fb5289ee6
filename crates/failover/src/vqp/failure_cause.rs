use mitra_verbs::WcStatus;

/// The detector that reported a rail's failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// An operation on the rail completed with this status.
    Completion(WcStatus),
    /// The local port is down, or the local NIC is dead.
    Device,
    /// Heartbeats on the rail were missed.
    Heartbeat,
    /// The peer proposed to move.
    Peer,
}
