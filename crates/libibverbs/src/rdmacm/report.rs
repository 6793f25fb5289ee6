//! Reports: what the manager has to tell the program about an identifier.

use nix::errno::Errno;

use super::protocol::connection::ConnectionEvent;
use super::protocol::message::SidrReply;

/// The number of an identifier. Numbers count from 1 and are never reused.
pub type IdHandle = u64;

/// An entry of an identifier's channel. `rdma_get_cm_event` turns it into an `rdma_cm_event`.
pub enum Report {
    /// `rdma_resolve_addr` succeeded.
    AddressResolved,
    /// `rdma_resolve_addr` failed.
    AddressError(Errno),
    /// `rdma_resolve_route` succeeded.
    RouteResolved,
    /// A connection request or a service request arrived at this listening identifier.
    Requested {
        /// The identifier of the request. The program has no memory for it yet.
        child: IdHandle,
    },
    /// The state of a connection changed.
    Connection(ConnectionEvent),
    /// The lookup of a datagram service succeeded.
    ServiceFound(SidrReply),
    /// The lookup of a datagram service failed with this `rdma_cm_event.status`.
    ServiceNotFound(i32),
    /// The identifier joined a multicast group: the number of the membership.
    Joined(u64),
}
