//! The manager's state of one identifier (`rdma_cm_id`).

use std::ffi::c_void;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::caller_ptr::CallerPtr;
use super::cm_event::IdHandle;
use super::membership::Membership;
use super::network::PeerPath;
use super::protocol::message::{ConnectionParams, Service, SidrRequest};
use super::protocol::service_lookup::{RequestKey, ServiceLookup};
use super::rdma_port::{Port, PortSpace};
use super::refusals::Refusals;
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rails::cm_receiver::RailAddress;
use mitra_verbs_abi::{
    ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_cm_id, rdma_event_channel, rdma_port_space,
};

/// An identifier's own address and the peer's, each `None` until it is known.
pub type Addresses = (Option<SocketAddr>, Option<SocketAddr>);

#[derive(Debug, Default)]
pub enum NetworkState {
    /// Nothing was requested, and the identifier does not listen.
    #[default]
    Idle,
    /// The next hop to the destination is asked for its address.
    Resolving(Resolution),
    Listening(Listener),
    /// The communication id of a connection, until its `RDMA_CM_EVENT_TIMEWAIT_EXIT`.
    Connected(u32),
    LookingUp(Box<Lookup>),
    /// A request that a listener received and the program has not answered.
    ServiceRequested(ServiceOrigin),
    /// After the end of the connection or lookup, or the answer to the request.
    Closed,
}

#[derive(Debug)]
pub struct Listener {
    /// The number of requests that may wait in the channel for the program.
    pub backlog: usize,
    /// When the listener accepts streams again.
    pub paused_until: Option<Instant>,
}

/// The resolution of an address.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
    /// When the neighbour table is read again.
    pub due: Instant,
    /// When the resolution fails.
    pub deadline: Instant,
}

/// A lookup of a datagram service.
#[derive(Debug)]
pub struct Lookup {
    pub lookup: ServiceLookup,
    /// What is sent once the destination is known.
    pub request: SidrRequest,
    /// `None` until the destination is known.
    pub path: Option<PeerPath>,
    /// The requests that the host of the service has refused.
    pub refusals: Refusals,
}

/// Where a request for a datagram service came from.
#[derive(Clone, Copy, Debug)]
pub struct ServiceOrigin {
    pub key: RequestKey,
    pub from: RailAddress,
    pub transaction: u64,
}

/// The request for a datagram service, as the program sees it.
#[derive(Clone, Debug)]
pub struct ServiceRequest {
    /// The GID of the requester's device.
    pub gid: [u8; 16],
    pub private_data: Vec<u8>,
}

/// The parameters of this side's queue pair, from which the attributes for `ibv_modify_qp` are
/// taken.
#[derive(Clone, Debug, Default)]
pub struct NegotiatedParams {
    /// The first PSN that the queue pair receives. The peer's parameters have the first one that it
    /// sends.
    pub starting_psn: u32,
    /// The parameters in the peer's REQ or REP.
    pub peer: Option<ConnectionParams>,
    /// The maximum number of READs and atomics that the queue pair accepts at once as responder.
    pub responder_resources: u8,
    /// The maximum number of READs and atomics that the queue pair has outstanding as requester.
    pub initiator_depth: u8,
    /// From 0 to 7.
    pub retry_count: u8,
    /// From 0 to 7.
    pub rnr_retry_count: u8,
}

impl NegotiatedParams {
    pub fn apply_reply(&mut self, reply: &ConnectionParams) {
        // One side's initiator depth is the other side's responder resources. The passive side
        // determines how often the active side retries after an RNR NAK.
        self.responder_resources = reply.initiator_depth;
        self.initiator_depth = reply.responder_resources;
        self.rnr_retry_count = reply.rnr_retry_count;
        self.peer = Some(reply.clone());
    }
}

/// Options of `rdma_set_option`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub reuse_address: bool,
    pub v6_only: bool,
    /// The timeout is 4.096 µs · 2^value.
    pub ack_timeout: Option<u8>,
    pub traffic_class: u8,
}

/// Queue pair attributes that hold pointers of the program.
#[derive(Clone, Copy)]
pub struct QpInitAttr(pub ibv_qp_init_attr);

// SAFETY: the manager copies the attributes and passes them back in a call of the program. The
// manager follows none of the pointers, as with `CallerPtr`.
unsafe impl Send for QpInitAttr {}

#[derive(Default)]
pub struct Identifier {
    /// The program's `rdma_cm_id`. `None` for a request that the program has not read.
    pub memory: Option<CallerPtr<rdma_cm_id>>,
    pub channel: CallerPtr<rdma_event_channel>,
    /// Whether the identifier has a channel of its own, and its calls wait for their events.
    pub is_synchronous: bool,
    /// The program's context pointer.
    pub context: CallerPtr<c_void>,
    pub space: PortSpace,
    /// The port space that the program has chosen.
    pub program_space: rdma_port_space,
    pub qp_type: ibv_qp_type,
    pub network: NetworkState,
    /// The port of a bound identifier. A request has none.
    pub port: Option<Port>,
    /// The listener that received the request of this identifier.
    pub listener: Option<IdHandle>,
    pub addresses: Addresses,
    /// Whether `rdma_resolve_route` succeeded.
    pub is_route_resolved: bool,
    /// The request for a datagram service that this identifier represents.
    pub service_request: Option<ServiceRequest>,
    pub params: NegotiatedParams,
    pub options: Options,
    /// The queue pair that `rdma_get_request` creates for each connection of this listener.
    pub qp_for_requests: Option<(CallerPtr<ibv_pd>, QpInitAttr)>,
    /// Private data that precedes the program's private data in a request
    /// (`rdma_addrinfo.ai_connect`).
    pub connect_data: Vec<u8>,
    /// The multicast groups that the identifier has joined and not left.
    pub memberships: Vec<Membership>,
    /// The number of joins so far. Each membership gets its number from this count.
    pub joins: u64,
    /// The events that the program has read and not acknowledged.
    pub unacknowledged: Arc<UnacknowledgedEvents>,
}

impl Identifier {
    /// Creates the identifier of a request. The new identifier inherits from this listener.
    pub fn child(&self, listener: IdHandle) -> Self {
        let Self { channel, is_synchronous, context, space, program_space, qp_type, options, .. } = *self;
        Self {
            channel,
            is_synchronous,
            context,
            space,
            program_space,
            qp_type,
            options,
            listener: Some(listener),
            ..Self::default()
        }
    }

    /// Returns when the identifier's next timer expires, without that of its connection.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.network {
            NetworkState::LookingUp(lookup) => Some(lookup.lookup.deadline()),
            NetworkState::Listening(listener) => listener.paused_until,
            NetworkState::Resolving(resolution) => Some(resolution.due.min(resolution.deadline)),
            _ => None,
        }
    }

    /// Whether the identifier listens at the destination of a request.
    pub fn serves(&self, service: &Service) -> bool {
        let Some(port) = self.port.as_ref().filter(|_| matches!(self.network, NetworkState::Listening(_)))
        else {
            return false;
        };
        let (own, ip) = (port.address.ip().to_canonical(), service.destination.ip().to_canonical());
        port.space == service.space
            && port.address.port() == service.destination.port()
            && (own == ip || own.is_unspecified() && port.accepts_family_of(ip))
    }

    /// Returns `None` if the program has left the group.
    pub fn membership(&self, number: u64) -> Option<Membership> {
        self.memberships.iter().find(|membership| membership.number == number).copied()
    }

    pub fn remove_membership(&mut self, address: SocketAddr) -> Option<Membership> {
        let index = self.memberships.iter().position(|membership| membership.address == address)?;
        Some(self.memberships.remove(index))
    }
}
