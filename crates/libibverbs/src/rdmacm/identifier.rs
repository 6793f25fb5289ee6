//! The manager's state of one identifier (`rdma_cm_id`).

use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;

use super::caller_ptr::CallerPtr;
use super::cm_event::IdHandle;
use super::membership::Membership;
use super::protocol::connection::Connection;
use super::protocol::message::{ConnectionParams, SidrRequest};
use super::protocol::service_lookup::{RequestKey, ServiceLookup, ServiceRequests};
use super::rdma_port::{Port, PortSpace};
use crate::abi::{ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_cm_id, rdma_event_channel, rdma_port_space};
use crate::common::unacknowledged_events::UnacknowledgedEvents;

/// An identifier's own address and the peer's, each `None` until it is known.
pub type Addresses = (Option<SocketAddr>, Option<SocketAddr>);

#[derive(Debug, Default)]
pub enum NetworkState {
    #[default]
    Unbound,
    Bound(Port),
    Listening(Listener),
    /// A connection until its `RDMA_CM_EVENT_TIMEWAIT_EXIT`.
    Connected(ConnectionStream),
    LookingUp(Port, ServiceLookup),
    /// A request that a listener received and the program has not answered.
    ServiceRequested(RequestKey),
    /// After the end of the connection or lookup, or the answer to the request.
    Closed,
}

#[derive(Debug)]
pub struct Listener {
    pub port: Port,
    /// The number of requests that may wait in the channel for the program.
    pub backlog: usize,
    /// The requests for the datagram service at the port.
    pub requests: ServiceRequests,
    /// When the listener accepts streams again.
    pub paused_until: Option<Instant>,
}

/// A TCP stream and the connection whose messages it carries.
#[derive(Debug)]
pub struct ConnectionStream {
    /// The stream's socket, until the connection needs none.
    pub port: Option<Port>,
    /// Whether the TCP connection is established.
    pub is_open: bool,
    pub connection: Connection,
}

/// The parameters of this side's queue pair, from which the attributes for `ibv_modify_qp` are
/// taken.
#[derive(Clone, Debug, Default)]
pub struct NegotiatedParams {
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
    /// The listener that received the request of this identifier.
    pub listener: Option<IdHandle>,
    pub addresses: Addresses,
    /// Whether `rdma_resolve_route` succeeded.
    pub is_route_resolved: bool,
    /// The request for a datagram service that this identifier represents.
    pub service_request: Option<SidrRequest>,
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

    /// Whether the identifier is a stream of `listener` on which no REQ has arrived.
    pub fn is_pending_stream_of(&self, listener: IdHandle) -> bool {
        self.listener == Some(listener)
            && self.params.peer.is_none()
            && matches!(self.network, NetworkState::Connected(_))
    }

    /// Whether the identifier is a request for a connection that the program has not answered.
    pub fn awaits_answer(&self) -> bool {
        matches!(&self.network, NetworkState::Connected(stream) if stream.connection.awaits_answer())
    }

    /// Returns when the identifier's next timer expires.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.network {
            NetworkState::Connected(stream) => stream.connection.deadline(),
            NetworkState::LookingUp(_, lookup) => Some(lookup.deadline()),
            NetworkState::Listening(listener) => listener.paused_until,
            _ => None,
        }
    }

    /// Returns the bound address. For port 0 the kernel chooses the port.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is bound, or the error of [`Port::bind`].
    pub fn bind(&mut self, address: SocketAddr) -> Result<SocketAddr, Errno> {
        let NetworkState::Unbound = self.network else { return Err(Errno::EINVAL) };
        let port = Port::bind(self.space, address, self.options.reuse_address, self.options.v6_only)?;
        let bound = port.address()?;
        self.network = NetworkState::Bound(port);
        self.addresses.0 = Some(bound);
        Ok(bound)
    }

    /// Sets the addresses of the route to `destination` and returns the source address. An unbound
    /// identifier is bound to `source`, or to `route_source` if `source` is `None`. An unspecified
    /// source address is replaced by `route_source`.
    ///
    /// # Errors
    /// The error of [`bind`](Self::bind).
    pub fn set_route(
        &mut self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        route_source: IpAddr,
    ) -> Result<SocketAddr, Errno> {
        let source = match (self.addresses.0, source) {
            (Some(bound), _) => bound,
            (None, Some(source)) => self.bind(source)?,
            (None, None) => self.bind(SocketAddr::new(route_source, 0))?,
        };
        let ip = if source.ip().is_unspecified() { route_source } else { source.ip() };
        let source = SocketAddr::new(ip, source.port());
        self.addresses = (Some(source), Some(destination));
        Ok(source)
    }

    /// Removes the port from a bound identifier. The caller puts the port into the next state.
    ///
    /// # Errors
    /// `EINVAL` unless the state is [`NetworkState::Bound`]; the state is then unchanged.
    pub fn take_port(&mut self) -> Result<Port, Errno> {
        match std::mem::take(&mut self.network) {
            NetworkState::Bound(port) => Ok(port),
            other => {
                self.network = other;
                Err(Errno::EINVAL)
            }
        }
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
