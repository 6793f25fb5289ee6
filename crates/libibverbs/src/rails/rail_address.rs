//! Where a device is reached on a rail.

use mitra_verbs::Gid;

/// What a device receives datagrams with, of the rendezvous and of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Endpoint {
    /// It is not known, or each of them: a datagram goes to queue pair 1, and to the sockets of all
    /// processes at the address.
    Any,
    /// Queue pair 1 of the NIC, which one process has.
    QueuePair1,
    /// The UDP socket with this port, which one process has.
    Socket(u16),
}

/// The endpoints of a device at the address of its rail 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    pub(crate) has_queue_pair_1: bool,
    /// The port of the UDP socket.
    pub(crate) port: Option<u16>,
}

impl Endpoints {
    /// Returns the endpoint by which a device with the endpoints `own` reaches this device. It is
    /// queue pair 1, whose datagrams are on the rail, unless one of the devices has none.
    pub(crate) fn reached_from(self, own: Endpoints) -> Endpoint {
        match (self.has_queue_pair_1 && own.has_queue_pair_1, self.port, own.port) {
            (false, Some(port), Some(_)) => Endpoint::Socket(port),
            _ => Endpoint::QueuePair1,
        }
    }
}

/// The address of a device on one of its rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RailAddress {
    pub(crate) rail: usize,
    pub(crate) gid: Gid,
    pub(crate) endpoint: Endpoint,
}

impl RailAddress {
    /// Returns the address of all processes that have sockets there, for that of one of them.
    pub(crate) fn of_all_processes(self) -> RailAddress {
        match self.endpoint {
            Endpoint::Socket(_) => RailAddress { endpoint: Endpoint::Any, ..self },
            Endpoint::Any | Endpoint::QueuePair1 => self,
        }
    }
}
