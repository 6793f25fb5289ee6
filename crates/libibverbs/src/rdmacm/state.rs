//! What the connection manager knows: identifiers, channels, and which memory of the program stands for which.
//!
//! An identifier is known by its handle; the memory that the program holds for it may come later (a request that the
//! program has not heard of) and is found by its address, so that a call with a pointer that was destroyed, or that a parent
//! process made, is refused.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::channel::Channel;
use super::connection::{Connection, Happening};
use super::lookup::{Lookup, RequestKey, Requests};
use super::message::{Answer, Inquiry, Offer};
use super::multicast::Membership;
use super::socket::{Port, Space};
use crate::abi::{ibv_pd, ibv_qp_init_attr, ibv_qp_type, rdma_cm_event, rdma_cm_id, rdma_event_channel};

/// An identifier, never used twice.
pub type Handle = u64;

/// A pointer that the program holds or gave.
pub struct Theirs<T>(pub *mut T);

impl<T> PartialEq for Theirs<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Theirs<T> {}

impl<T> Hash for Theirs<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.hash(hasher);
    }
}

impl<T> Clone for Theirs<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Theirs<T> {}

// SAFETY: the manager only compares such pointers and hands them back; who follows one says why he may.
unsafe impl<T> Send for Theirs<T> {}

/// An identifier's own address and the peer's, as far as they are known.
pub type Addresses = (Option<SocketAddr>, Option<SocketAddr>);

/// What is to be reported to the program.
pub enum Report {
    /// `rdma_resolve_addr` is done.
    AddressResolved,
    /// It failed.
    AddressError(Errno),
    /// `rdma_resolve_route` is done.
    RouteResolved,
    /// Somebody wants to connect to this listening identifier; `child` stands for the connection.
    Requested {
        /// The connection's identifier, which the program does not know yet.
        child: Handle,
    },
    /// Something happened to a connection.
    Connection(Happening),
    /// A datagram service was found.
    Found(Answer),
    /// It was not: an `rdma_cm_event.status`.
    NotFound(i32),
    /// A multicast group was joined, the identifier's membership of this number.
    Joined(u64),
}

/// What an identifier is doing on the network.
#[derive(Debug, Default)]
pub enum Endpoint {
    /// Nothing yet.
    #[default]
    Unbound,
    /// Holding a port.
    Bound(Port),
    /// Waiting for requests.
    Listening(Listener),
    /// A connection, or one in the making.
    Connected(Stream),
    /// Looking a datagram service up.
    Asking(Port, Lookup),
    /// Asked where its datagram service is.
    Asked {
        /// The listening identifier.
        listener: Handle,
        /// The request.
        key: RequestKey,
    },
    /// Nothing any more.
    Ended,
}

/// A listening port.
#[derive(Debug)]
pub struct Listener {
    /// It.
    pub port: Port,
    /// How many requests may wait until the program hears of them.
    pub backlog: usize,
    /// Requests of datagram services.
    pub requests: Requests,
}

/// A TCP stream with the connection on it.
#[derive(Debug)]
pub struct Stream {
    /// It.
    pub port: Port,
    /// Whether the stream is there yet.
    pub is_open: bool,
    /// What is said on it.
    pub connection: Connection,
    /// Of a passive connection, the identifier that listened.
    pub listener: Option<Handle>,
}

/// What both sides agreed on: what an `ibv_modify_qp` needs.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The first PSN that this side sends.
    pub starting_psn: u32,
    /// The other side.
    pub peer: Option<Offer>,
    /// What this side answers at once.
    pub responder_resources: u8,
    /// What this side has outstanding.
    pub initiator_depth: u8,
    /// Of this side's QP.
    pub retry_count: u8,
    /// Of this side's QP.
    pub rnr_retry_count: u8,
}

/// Options of `rdma_set_option`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// RDMA_OPTION_ID_REUSEADDR.
    pub reuse_address: bool,
    /// RDMA_OPTION_ID_AFONLY.
    pub v6_only: bool,
    /// RDMA_OPTION_ID_ACK_TIMEOUT.
    pub ack_timeout: Option<u8>,
    /// RDMA_OPTION_ID_TOS.
    pub traffic_class: u8,
}

/// An identifier.
pub struct Identifier {
    /// The program's memory for it.
    pub memory: Option<Theirs<rdma_cm_id>>,
    /// Where its events go.
    pub channel: Theirs<rdma_event_channel>,
    /// Whether the channel is its own and calls wait for their event.
    pub is_synchronous: bool,
    /// The program's own word, which a listener's connections inherit.
    pub context: Theirs<c_void>,
    /// Whose ports it uses.
    pub space: Space,
    /// The kind of its QP.
    pub qp_type: ibv_qp_type,
    /// What it is doing.
    pub endpoint: Endpoint,
    /// Its addresses.
    pub addresses: Addresses,
    /// Whether a path to the peer is known.
    pub is_routed: bool,
    /// What was asked of a datagram service.
    pub inquiry: Option<Inquiry>,
    /// What was agreed on.
    pub terms: Terms,
    /// What was set.
    pub options: Options,
    /// The QP that each connection of this listener gets from `rdma_get_request`.
    pub qp_for_requests: Option<(Theirs<ibv_pd>, QpAttributes)>,
    /// Private data in front of the program's (`rdma_addrinfo.ai_connect`).
    pub connect_data: Vec<u8>,
    /// The multicast groups that it is in.
    pub groups: Vec<Membership>,
    /// Groups that it ever joined.
    pub joins: u64,
    /// Events that the program has and did not acknowledge.
    pub unacknowledged: usize,
}

/// Attributes with pointers of the program in them.
#[derive(Clone, Copy)]
pub struct QpAttributes(pub ibv_qp_init_attr);

// SAFETY: as of `Theirs`.
unsafe impl Send for QpAttributes {}

/// An event that the program has.
pub struct Delivered {
    /// Who waits for its acknowledgement.
    pub owner: Handle,
    /// What the event points to, kept as long.
    pub _private_data: Vec<u8>,
}

/// Everything.
pub struct State {
    /// Whether somebody attends to the sockets.
    pub has_thread: bool,
    /// Whether a stream waits that could not be taken for want of descriptors.
    pub is_exhausted: bool,
    epoll: Arc<Epoll>,
    last_handle: Handle,
    identifiers: HashMap<Handle, Identifier>,
    handles: HashMap<Theirs<rdma_cm_id>, Handle>,
    /// The channels.
    pub channels: HashMap<Theirs<rdma_event_channel>, Channel>,
    /// Where channels were that threads may still be about to read, and wait: see `identifier::destroy_channel`.
    pub closed: HashSet<Theirs<rdma_event_channel>>,
    /// The events that the program has.
    pub delivered: HashMap<Theirs<rdma_cm_event>, Delivered>,
}

impl State {
    /// Knows nothing.
    pub fn new(epoll: Arc<Epoll>) -> Self {
        let (identifiers, handles, channels, closed, delivered) = Default::default();
        Self {
            has_thread: false,
            is_exhausted: false,
            epoll,
            last_handle: 0,
            identifiers,
            handles,
            channels,
            closed,
            delivered,
        }
    }

    /// Takes an identifier in.
    pub fn insert(&mut self, identifier: Identifier) -> Handle {
        self.last_handle += 1;
        self.identifiers.insert(self.last_handle, identifier);
        self.last_handle
    }

    /// Says which memory stands for an identifier.
    pub fn give_memory(&mut self, handle: Handle, memory: Theirs<rdma_cm_id>) {
        if let Some(identifier) = self.identifiers.get_mut(&handle) {
            identifier.memory = Some(memory);
            self.handles.insert(memory, handle);
        }
    }

    /// Forgets an identifier.
    pub fn remove(&mut self, handle: Handle) -> Option<Identifier> {
        let identifier = self.identifiers.remove(&handle)?;
        if let Some(memory) = identifier.memory {
            self.handles.remove(&memory);
        }
        Some(identifier)
    }

    /// Which identifier a program means.
    pub fn handle(&self, memory: *mut rdma_cm_id) -> Result<Handle, Errno> {
        self.handles.get(&Theirs(memory)).copied().ok_or(Errno::EINVAL)
    }

    /// The identifier.
    pub fn get(&mut self, handle: Handle) -> Result<&mut Identifier, Errno> {
        self.identifiers.get_mut(&handle).ok_or(Errno::EINVAL)
    }

    /// The identifier that a program means.
    pub fn find(&mut self, memory: *mut rdma_cm_id) -> Result<(Handle, &mut Identifier), Errno> {
        let handle = self.handle(memory)?;
        Ok((handle, self.get(handle)?))
    }

    /// All identifiers.
    pub fn identifiers(&mut self) -> impl Iterator<Item = (Handle, &mut Identifier)> {
        self.identifiers.iter_mut().map(|(handle, identifier)| (*handle, identifier))
    }

    /// Reports to whoever reads the identifier's channel; to nobody when that is gone.
    pub fn report(&mut self, handle: Handle, report: Report) {
        if let Some(identifier) = self.identifiers.get(&handle)
            && let Some(channel) = self.channels.get_mut(&identifier.channel)
        {
            channel.push(handle, report);
        }
    }

    /// Moves an identifier with what is to be reported of it to another channel.
    pub fn migrate(&mut self, handle: Handle, to: Theirs<rdma_event_channel>, is_synchronous: bool) {
        let reports = self.take_reports(handle);
        if let Some(identifier) = self.identifiers.get_mut(&handle) {
            (identifier.channel, identifier.is_synchronous) = (to, is_synchronous);
        }
        for report in reports {
            self.report(handle, report);
        }
    }

    /// Takes back what the program has not yet heard of an identifier.
    pub fn take_reports(&mut self, handle: Handle) -> VecDeque<Report> {
        let channel = self.identifiers.get(&handle).map(|identifier| identifier.channel);
        let channel = channel.and_then(|channel| self.channels.get_mut(&channel));
        channel.map_or_else(VecDeque::new, |channel| channel.take(handle))
    }

    /// Has the thread wait for an identifier's socket: a stream to become readable or writable, each time once, since it
    /// is mostly writable; another for as long as it is readable, since what is left over counts again.
    pub fn watch(&self, handle: Handle) -> Result<(), Errno> {
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let (port, flags) = match self.identifiers.get(&handle).map(|identifier| &identifier.endpoint) {
            Some(Endpoint::Connected(stream)) => (&stream.port, edges),
            Some(Endpoint::Listening(listener)) => (&listener.port, EpollFlags::EPOLLIN),
            Some(Endpoint::Asking(port, _)) => (port, EpollFlags::EPOLLIN),
            _ => return Err(Errno::EINVAL),
        };
        self.epoll.add(&**port, EpollEvent::new(flags, handle))
    }
}

impl Identifier {
    /// Of a request, who listened for it.
    pub fn listener(&self) -> Option<Handle> {
        match &self.endpoint {
            Endpoint::Connected(stream) => stream.listener,
            Endpoint::Asked { listener, .. } => Some(*listener),
            _ => None,
        }
    }

    /// One in a channel, doing nothing yet.
    pub fn new(
        channel: Theirs<rdma_event_channel>,
        is_synchronous: bool,
        context: Theirs<c_void>,
        space: Space,
        qp_type: ibv_qp_type,
    ) -> Self {
        Self {
            memory: None,
            channel,
            is_synchronous,
            context,
            space,
            qp_type,
            endpoint: Endpoint::Unbound,
            addresses: (None, None),
            is_routed: false,
            inquiry: None,
            terms: Terms::default(),
            options: Options::default(),
            qp_for_requests: None,
            connect_data: Vec::new(),
            groups: Vec::new(),
            joins: 0,
            unacknowledged: 0,
        }
    }

    /// One for a request to this listener.
    pub fn child(&self) -> Self {
        let Self { channel, is_synchronous, context, space, qp_type, .. } = *self;
        Self { options: self.options, ..Self::new(channel, is_synchronous, context, space, qp_type) }
    }
}
