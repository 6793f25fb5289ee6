//! The events of identifiers that the program has not read.

use nix::errno::Errno;

use super::protocol::connection::ConnectionEvent;
use super::protocol::message::SidrReply;
use crate::common::event_queue::EventQueue;

/// The number of an identifier. The first identifier has number 1. Numbers are never reused.
pub type IdHandle = u64;

/// The events of the identifiers on one event channel, each with its identifier, oldest first.
pub type CmEventQueue = EventQueue<(IdHandle, CmEvent)>;

/// An event channel.
pub struct CmChannel {
    /// Tells the channel from a later one at the same address. Numbers are never reused.
    pub number: u64,
    /// The events that the program has not read.
    pub events: CmEventQueue,
}

/// An event in the queue of an identifier's channel. `rdma_get_cm_event` creates an `rdma_cm_event`
/// from it.
pub enum CmEvent {
    /// `rdma_resolve_addr` succeeded.
    AddressResolved,
    /// `rdma_resolve_addr` failed.
    AddressError(Errno),
    /// `rdma_resolve_route` succeeded.
    RouteResolved,
    /// A connection request or a service request arrived at this listening identifier.
    Requested {
        /// The identifier of the request. The program has no `rdma_cm_id` for it yet.
        child: IdHandle,
    },
    /// The state of a connection changed.
    Connection(ConnectionEvent),
    /// The lookup of a datagram service was answered, with
    /// [`VALID`](super::protocol::message::sidr_status::VALID) if it succeeded.
    ServiceReplied(SidrReply),
    /// The lookup of a datagram service failed without an answer.
    LookupFailed(Errno),
    /// The identifier joined a multicast group. The value is the
    /// [number](super::membership::Membership::number) of the membership.
    Joined(u64),
    /// The device of the identifier is gone: its last NIC has died.
    DeviceRemoved,
}
