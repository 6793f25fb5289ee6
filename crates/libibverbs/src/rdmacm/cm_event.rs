//! The events of identifiers that the program has not read.

use nix::errno::Errno;

use super::protocol::connection::ConnectionEvent;
use super::protocol::message::SidrReply;
use crate::common::event_queue::EventQueue;
use mitra_verbs_abi::rdma_cm_event_type;

/// The number of an identifier, from 1. Numbers are never reused.
pub type IdHandle = u64;

/// The events of the identifiers on one event channel, each with its identifier, oldest first.
pub type CmEventQueue = EventQueue<(IdHandle, CmEvent)>;

pub struct CmChannel {
    /// Distinguishes the channel from a later channel at the same address. Numbers are never
    /// reused.
    pub number: u64,
    pub events: CmEventQueue,
}

/// An event in a queue, from which `rdma_get_cm_event` makes an `rdma_cm_event`.
pub enum CmEvent {
    /// An event of this type without parameters.
    Plain(rdma_cm_event_type),
    /// An event of this type that reports an error.
    Failed(rdma_cm_event_type, Errno),
    /// A connection request or a service request arrived at this listening identifier.
    Requested {
        /// The identifier of the request, which has no `rdma_cm_id` yet.
        child: IdHandle,
    },
    Connection(ConnectionEvent),
    /// The lookup of a datagram service was answered.
    /// Contains the GID of the service's device.
    ServiceReplied(SidrReply, [u8; 16]),
    /// The identifier joined a multicast group. The value is the
    /// [number](super::membership::Membership::number) of the membership.
    Joined(u64),
}
