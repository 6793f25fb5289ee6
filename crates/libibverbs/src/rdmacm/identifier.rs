//! The manager's state of one identifier (`rdma_cm_id`).

use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
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

/// An identifier's own address and the peer's, each `None` until it is known.
pub type Addresses = (Option<SocketAddr>, Option<SocketAddr>);

/// The state of an identifier on the network.
#[derive(Debug, Default)]
pub enum NetworkState {
    /// No port yet.
    #[default]
    Unbound,
    /// Bound to a port.
    Bound(Port),
    /// Listening for requests.
    Listening(Listener),
    /// A connection, established, in progress, or ended while its `RDMA_CM_EVENT_TIMEWAIT_EXIT` is
    /// to come.
    Connected(ConnectionStream),
    /// Looking up a datagram service.
    LookingUp(Port, ServiceLookup),
    /// A service request, received by a listener, that waits for the program's answer. The value is
    /// its key at the listener.
    ServiceRequested(RequestKey),
    /// The connection or lookup ended, or the request was answered.
    Closed,
}

/// A listening port.
#[derive(Debug)]
pub struct Listener {
    /// The port.
    pub port: Port,
    /// The number of requests that may wait in the channel for the program.
    pub backlog: usize,
    /// The requests for the datagram service at the port.
    pub requests: ServiceRequests,
    /// When it accepts streams again, if it pauses.
    pub paused_until: Option<Instant>,
}

/// A TCP stream and the connection whose messages it carries.
#[derive(Debug)]
pub struct ConnectionStream {
    /// The stream's socket, until the connection needs none.
    pub port: Option<Port>,
    /// Whether the TCP connection is established.
    pub is_open: bool,
    /// The connection's state machine.
    pub connection: Connection,
}

/// The connection parameters of this side, from which the attributes for `ibv_modify_qp` are taken.
#[derive(Clone, Debug, Default)]
pub struct NegotiatedParams {
    /// The first PSN of this side's queue pair.
    pub starting_psn: u32,
    /// The peer's parameters, once its REQ or REP arrived.
    pub peer: Option<ConnectionParams>,
    /// The maximum number of READs and atomics that this side's queue pair accepts at once as
    /// responder.
    pub responder_resources: u8,
    /// The maximum number of READs and atomics that this side's queue pair has outstanding as
    /// requester.
    pub initiator_depth: u8,
    /// The maximum number of retransmissions by this side's queue pair, from 0 to 7.
    pub retry_count: u8,
    /// The maximum number of retries after RNR NAKs by this side's queue pair, from 0 to 7.
    pub rnr_retry_count: u8,
}

impl NegotiatedParams {
    /// Adopts the parameters of the passive side's REP.
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
    /// RDMA_OPTION_ID_REUSEADDR.
    pub reuse_address: bool,
    /// RDMA_OPTION_ID_AFONLY.
    pub v6_only: bool,
    /// RDMA_OPTION_ID_ACK_TIMEOUT: the timeout is 4.096 µs · 2^value.
    pub ack_timeout: Option<u8>,
    /// RDMA_OPTION_ID_TOS.
    pub traffic_class: u8,
}

/// Queue pair attributes that hold pointers of the program.
#[derive(Clone, Copy)]
pub struct QpInitAttr(pub ibv_qp_init_attr);

// SAFETY: the manager copies the attributes and passes them back in a call of the program. It
// follows none of the pointers, as with `CallerPtr`.
unsafe impl Send for QpInitAttr {}

/// An identifier.
pub struct Identifier {
    /// The program's `rdma_cm_id`. `None` for a request that the program has not read.
    pub memory: Option<CallerPtr<rdma_cm_id>>,
    /// The channel of the identifier's events.
    pub channel: CallerPtr<rdma_event_channel>,
    /// Whether the identifier is synchronous: it has a channel of its own, and its calls wait for
    /// their events.
    pub is_synchronous: bool,
    /// The program's context pointer. The requests of a listener inherit it.
    pub context: CallerPtr<c_void>,
    /// The port space.
    pub space: PortSpace,
    /// The port space that the program has chosen.
    pub program_space: rdma_port_space,
    /// The type of the identifier's queue pair.
    pub qp_type: ibv_qp_type,
    /// The state on the network.
    pub network: NetworkState,
    /// The listening identifier, of the identifier of a request.
    pub listener: Option<IdHandle>,
    /// The identifier's own address and the peer's address.
    pub addresses: Addresses,
    /// Whether `rdma_resolve_route` succeeded.
    pub is_route_resolved: bool,
    /// The request for a datagram service that this identifier represents.
    pub service_request: Option<SidrRequest>,
    /// The parameters of the connection.
    pub params: NegotiatedParams,
    /// The options.
    pub options: Options,
    /// The queue pair that `rdma_get_request` creates for each connection of this listener.
    pub qp_for_requests: Option<(CallerPtr<ibv_pd>, QpInitAttr)>,
    /// Private data that precedes the program's in a request (`rdma_addrinfo.ai_connect`).
    pub connect_data: Vec<u8>,
    /// The multicast groups that the identifier has joined and not left.
    pub memberships: Vec<Membership>,
    /// The number of joins so far. The numbers of memberships come from it.
    pub joins: u64,
    /// The number of events that the program has read and not acknowledged.
    pub unacknowledged: usize,
}

impl Identifier {
    /// Creates an unbound identifier.
    pub fn new(
        channel: CallerPtr<rdma_event_channel>,
        is_synchronous: bool,
        context: CallerPtr<c_void>,
        (space, program_space): (PortSpace, rdma_port_space),
        qp_type: ibv_qp_type,
    ) -> Self {
        Self {
            memory: None,
            channel,
            is_synchronous,
            context,
            space,
            program_space,
            qp_type,
            network: NetworkState::Unbound,
            listener: None,
            addresses: (None, None),
            is_route_resolved: false,
            service_request: None,
            params: NegotiatedParams::default(),
            options: Options::default(),
            qp_for_requests: None,
            connect_data: Vec::new(),
            memberships: Vec::new(),
            joins: 0,
            unacknowledged: 0,
        }
    }

    /// Creates the identifier of a request to this listener, with the channel, the context, the
    /// port space, the queue pair type and the options of the listener, whose handle is `listener`.
    pub fn child(&self, listener: IdHandle) -> Self {
        let Self { channel, is_synchronous, context, qp_type, options, .. } = *self;
        let (listener, spaces) = (Some(listener), (self.space, self.program_space));
        Self { options, listener, ..Self::new(channel, is_synchronous, context, spaces, qp_type) }
    }

    /// Whether this is a stream of `listener` on which no REQ has arrived.
    pub fn is_pending_stream_of(&self, listener: IdHandle) -> bool {
        self.listener == Some(listener)
            && self.params.peer.is_none()
            && matches!(self.network, NetworkState::Connected(_))
    }

    /// Whether this is a request for a connection that waits for the program's answer.
    pub fn awaits_answer(&self) -> bool {
        matches!(&self.network, NetworkState::Connected(stream) if stream.connection.awaits_answer())
    }

    /// Returns when the next timer of the identifier's state machine expires, or `None` if no timer
    /// runs.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.network {
            NetworkState::Connected(stream) => stream.connection.deadline(),
            NetworkState::LookingUp(_, lookup) => Some(lookup.deadline()),
            NetworkState::Listening(listener) => listener.paused_until,
            _ => None,
        }
    }

    /// Binds to a port and returns the bound address. For port 0 the kernel chooses the port.
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

    /// Sets the addresses of the route to `destination` and returns the source address. An
    /// identifier that is not bound is bound to `source`, or to `route_source` if that is `None`.
    /// `route_source` also replaces an unspecified source address.
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

    /// Removes the port from a bound identifier, for the caller to put it into the next network
    /// state.
    ///
    /// # Errors
    /// `EINVAL` unless the state is [`NetworkState::Bound`]; the state is unchanged then.
    pub fn take_port(&mut self) -> Result<Port, Errno> {
        match std::mem::take(&mut self.network) {
            NetworkState::Bound(port) => Ok(port),
            other => {
                self.network = other;
                Err(Errno::EINVAL)
            }
        }
    }

    /// Returns the membership with this number, if the program has not left the group.
    pub fn membership(&self, number: u64) -> Option<Membership> {
        self.memberships.iter().find(|membership| membership.number == number).copied()
    }

    /// Removes the first membership in the group at `address`.
    pub fn remove_membership(&mut self, address: SocketAddr) -> Option<Membership> {
        let index = self.memberships.iter().position(|membership| membership.address == address)?;
        Some(self.memberships.remove(index))
    }
}
