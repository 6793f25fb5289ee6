//! The state of the connection manager: all identifiers, channels and delivered events.
//!
//! The manager refers to an identifier by a handle, because a request has an identifier before the
//! program gets an `rdma_cm_id` for the request. A map translates the address of the `rdma_cm_id`
//! in a call to the handle. A call with a destroyed `rdma_cm_id`, or with an `rdma_cm_id` of the
//! parent process, therefore fails with `EINVAL`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use mitra_os_util::random::random_u64;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::caller_ptr::CallerPtr;
use super::cm_event::{CmChannel, CmEvent, CmEventQueue, IdHandle};
use super::connection_table::ConnectionTable;
use super::identifier::{Identifier, Listener, NetworkState};
use super::network::Network;
use super::peer_watch::PeerWatches;
use super::protocol::message::Service;
use super::protocol::service_lookup::ServiceRequests;
use super::rdma_port::{EPHEMERAL, Port, check_local, errno_of};
use super::service_directory::ServiceDirectory;
use super::waker::Waker;
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use mitra_verbs_abi::{RDMA_CM_EVENT_DEVICE_REMOVAL, rdma_cm_event, rdma_cm_id, rdma_event_channel};

/// An event that the program has read and not acknowledged.
pub struct DeliveredEvent {
    /// The count of unacknowledged events of the event's identifier.
    pub unacknowledged: Arc<UnacknowledgedEvents>,
    /// The event points to this data.
    pub _private_data: Vec<u8>,
}

pub struct ManagerState {
    pub(super) epoll: Arc<Epoll>,
    pub(super) waker: Waker,
    /// The device's rails, once the device is open.
    pub network: Option<Network>,
    last_handle: IdHandle,
    pub(super) identifiers: HashMap<IdHandle, Identifier>,
    pub(super) connections: ConnectionTable,
    /// The identifiers that look up a service, by their request ids.
    pub(super) lookups: HashMap<u32, IdHandle>,
    pub(super) service_requests: ServiceRequests,
    pub(super) directory: ServiceDirectory,
    pub(super) watches: PeerWatches,
    handles: HashMap<CallerPtr<rdma_cm_id>, IdHandle>,
    last_channel: u64,
    /// Threads sleep on a futex in a channel. The box keeps the futex in place when the map grows.
    pub channels: HashMap<CallerPtr<rdma_event_channel>, Box<CmChannel>>,
    /// Destroyed channels on which a thread of the program may still wait (see
    /// `id_memory::destroy_channel`).
    pub destroyed_channels: HashSet<CallerPtr<rdma_event_channel>>,
    pub delivered: HashMap<CallerPtr<rdma_cm_event>, DeliveredEvent>,
}

impl ManagerState {
    pub fn new(epoll: Arc<Epoll>, waker: Waker) -> Self {
        Self {
            epoll,
            waker,
            network: None,
            last_handle: 0,
            identifiers: HashMap::new(),
            connections: ConnectionTable::default(),
            lookups: HashMap::new(),
            service_requests: ServiceRequests::default(),
            directory: ServiceDirectory::default(),
            watches: PeerWatches::default(),
            handles: HashMap::new(),
            last_channel: 0,
            channels: HashMap::new(),
            destroyed_channels: HashSet::new(),
            delivered: HashMap::new(),
        }
    }

    /// Adds a channel. `memory` may be an address in `destroyed_channels`, because the C library
    /// reuses freed memory.
    pub fn add_channel(&mut self, memory: CallerPtr<rdma_event_channel>, events: CmEventQueue) {
        self.destroyed_channels.remove(&memory);
        self.last_channel += 1;
        self.channels.insert(memory, Box::new(CmChannel { number: self.last_channel, events }));
    }

    /// Returns `None` if the channel with this address and number was destroyed.
    pub fn events_of(
        &self,
        memory: CallerPtr<rdma_event_channel>,
        number: Option<u64>,
    ) -> Option<&CmEventQueue> {
        let channel = self.channels.get(&memory).filter(|channel| Some(channel.number) == number)?;
        Some(&channel.events)
    }

    pub fn insert(&mut self, identifier: Identifier) -> IdHandle {
        self.last_handle += 1;
        self.identifiers.insert(self.last_handle, identifier);
        self.last_handle
    }

    pub fn set_memory(&mut self, handle: IdHandle, memory: CallerPtr<rdma_cm_id>) {
        if let Some(identifier) = self.identifiers.get_mut(&handle) {
            identifier.memory = Some(memory);
            self.handles.insert(memory, handle);
        }
    }

    /// Returns `None` if the identifier was already removed.
    pub fn remove(&mut self, handle: IdHandle) -> Option<Identifier> {
        let identifier = self.identifiers.remove(&handle)?;
        if let Some(memory) = identifier.memory {
            self.handles.remove(&memory);
        }
        Some(identifier)
    }

    /// # Errors
    /// `EINVAL` if no identifier has this memory.
    pub fn handle(&self, memory: *mut rdma_cm_id) -> Result<IdHandle, Errno> {
        self.handles.get(&CallerPtr(memory)).copied().ok_or(Errno::EINVAL)
    }

    /// # Errors
    /// `EINVAL` if the identifier was removed.
    pub fn get(&mut self, handle: IdHandle) -> Result<&mut Identifier, Errno> {
        self.identifiers.get_mut(&handle).ok_or(Errno::EINVAL)
    }

    /// Returns the identifier with this memory, and its handle.
    ///
    /// # Errors
    /// `EINVAL` if no identifier has this memory.
    pub fn find(&mut self, memory: *mut rdma_cm_id) -> Result<(IdHandle, &mut Identifier), Errno> {
        let handle = self.handle(memory)?;
        Ok((handle, self.get(handle)?))
    }

    pub fn identifiers(&self) -> impl Iterator<Item = &Identifier> {
        self.identifiers.values()
    }

    /// Returns the handles of the identifiers that fulfil the condition, in no particular order.
    pub fn select(&self, condition: impl Fn(&Identifier) -> bool) -> Vec<IdHandle> {
        let selected = self.identifiers.iter().filter(|(_, identifier)| condition(identifier));
        selected.map(|(handle, _)| *handle).collect()
    }

    /// Drops the event if the identifier was removed or the channel was destroyed.
    pub fn push_event(&mut self, handle: IdHandle, event: CmEvent) {
        if let Some(channel) = self.channel_of(handle) {
            channel.events.push((handle, event));
        }
    }

    /// Reports the removal to each identifier that is bound to the device, as the kernel does.
    pub fn on_device_removed(&mut self) {
        let handles = self.select(|identifier| {
            let source = identifier.addresses.0;
            identifier.memory.is_some() && source.is_some_and(|source| !source.ip().is_unspecified())
        });
        for handle in handles {
            self.push_event(handle, CmEvent::Plain(RDMA_CM_EVENT_DEVICE_REMOVAL));
        }
    }

    /// Returns the GUID of the device, or 0 before it is open.
    pub fn guid(&self) -> u64 {
        self.network.as_ref().map_or(0, Network::guid)
    }

    fn channel_of(&self, handle: IdHandle) -> Option<&CmChannel> {
        self.channels.get(&self.identifiers.get(&handle)?.channel).map(Box::as_ref)
    }

    /// Returns the number of events of the identifier in the queue, or `None` without a channel.
    pub fn unread_events(&self, handle: IdHandle) -> Option<usize> {
        Some(self.channel_of(handle)?.events.count(|(owner, _)| *owner == handle))
    }

    /// Moves an identifier to another channel, together with the identifier's events and requests
    /// that the program has not read.
    pub fn migrate(
        &mut self,
        handle: IdHandle,
        channel: CallerPtr<rdma_event_channel>,
        is_synchronous: bool,
    ) {
        let events = self.take_events(handle);
        for (own, identifier) in &mut self.identifiers {
            let is_unread_request = identifier.listener == Some(handle) && identifier.memory.is_none();
            if *own == handle || is_unread_request {
                (identifier.channel, identifier.is_synchronous) = (channel, is_synchronous);
            }
        }
        for event in events {
            self.push_event(handle, event);
        }
    }

    pub fn take_events(&mut self, handle: IdHandle) -> VecDeque<CmEvent> {
        let taken =
            self.channel_of(handle).map(|channel| channel.events.extract(|(owner, _)| *owner == handle));
        taken.into_iter().flatten().map(|(_, event)| event).collect()
    }

    /// Registers a listener's socket with epoll. Level-triggered, because the handler leaves what
    /// exceeds [`MAX_PER_RUN`](super::message_handling) for its next run.
    ///
    /// # Errors
    /// `EINVAL` if the identifier has no socket, or the error of `epoll_ctl`.
    pub fn watch(&self, handle: IdHandle) -> Result<(), Errno> {
        let port = self.identifiers.get(&handle).and_then(|identifier| identifier.port.as_ref());
        let socket = port.and_then(Port::socket).ok_or(Errno::EINVAL)?;
        self.epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, handle))
    }

    /// Binds an identifier to an address. Returns the bound address. For port 0 the kernel chooses
    /// the port.
    ///
    /// # Errors
    /// `EINVAL` if the identifier is bound or in use, or the errors of [`Port::check_conflict`] and
    /// [`Port::reserve`].
    pub fn bind(&mut self, handle: IdHandle, address: SocketAddr) -> Result<SocketAddr, Errno> {
        let identifier = self.get(handle)?;
        if !matches!(identifier.network, NetworkState::Idle) || identifier.port.is_some() {
            return Err(Errno::EINVAL);
        }
        let (space, options) = (identifier.space, identifier.options);
        let (reuse, v6_only) = (options.reuse_address, options.v6_only);
        if address.port() != 0 {
            self.ports().try_for_each(|port| port.check_conflict(space, address, reuse, v6_only))?;
        }
        let port = Port::reserve(space, address, reuse, v6_only)?;
        Ok(self.set_port(handle, port))
    }

    /// Binds an identifier that will connect. A port that the program does not choose takes no
    /// socket.
    ///
    /// # Errors
    /// As [`bind`](Self::bind), `EADDRNOTAVAIL` if the address is not one of this machine or no
    /// port is free, or the error of the system's random source.
    pub fn bind_requester(&mut self, handle: IdHandle, address: SocketAddr) -> Result<SocketAddr, Errno> {
        if address.port() != 0 {
            return self.bind(handle, address);
        }
        check_local(address.ip())?;
        let space = self.get(handle)?.space;
        let used: HashSet<u16> =
            self.ports().filter(|port| port.space == space).map(|port| port.address.port()).collect();
        let count = EPHEMERAL.len() as u64;
        let first = random_u64().map_err(errno_of)? % count;
        let number = (0..count)
            .map(|offset| EPHEMERAL.start() + ((first + offset) % count) as u16)
            .find(|number| !used.contains(number))
            .ok_or(Errno::EADDRNOTAVAIL)?;
        let address = SocketAddr::new(address.ip(), number);
        Ok(self.set_port(handle, Port::of_requester(space, address)))
    }

    fn ports(&self) -> impl Iterator<Item = &Port> {
        self.identifiers.values().filter_map(|identifier| identifier.port.as_ref())
    }

    fn set_port(&mut self, handle: IdHandle, port: Port) -> SocketAddr {
        let address = port.address;
        if let Ok(identifier) = self.get(handle) {
            identifier.addresses.0 = Some(address);
            identifier.port = Some(port);
        }
        address
    }

    /// Sets the addresses of the route to `destination` and returns the source address. An unbound
    /// identifier is bound to `source`, or to `route_source` if `source` is `None`. An unspecified
    /// source address is replaced by `route_source`.
    ///
    /// # Errors
    /// The errors of [`bind_requester`](Self::bind_requester).
    pub fn set_route(
        &mut self,
        handle: IdHandle,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        route_source: IpAddr,
    ) -> Result<SocketAddr, Errno> {
        let source = match (self.get(handle)?.addresses.0, source) {
            (Some(bound), _) => bound,
            (None, Some(source)) => self.bind_requester(handle, source)?,
            (None, None) => self.bind_requester(handle, SocketAddr::new(route_source, 0))?,
        };
        let ip = if source.ip().is_unspecified() { route_source } else { source.ip() };
        let source = SocketAddr::new(ip, source.port());
        self.get(handle)?.addresses = (Some(source), Some(destination));
        Ok(source)
    }

    /// Returns the identifier that listens at the destination of a request. One that is bound to
    /// the address precedes one that is bound to all.
    pub fn listener_of(&self, service: &Service) -> Option<IdHandle> {
        let serving = self.identifiers.iter().filter(|(_, identifier)| identifier.serves(service));
        serving
            .max_by_key(|(_, identifier)| {
                identifier.port.as_ref().map(|port| !port.address.ip().is_unspecified())
            })
            .map(|(handle, _)| *handle)
    }

    /// Returns the listener of an identifier, or `None` if the identifier does not listen any more.
    pub fn listener(&mut self, handle: IdHandle) -> Option<&mut Listener> {
        match &mut self.identifiers.get_mut(&handle)?.network {
            NetworkState::Listening(listener) => Some(listener),
            _ => None,
        }
    }

    /// Keeps the manager's thread from waiting for streams of a listener until `until`. The thread
    /// would spin otherwise, because the listener's socket stays readable.
    pub fn pause_listener(&mut self, handle: IdHandle, until: Instant) {
        if let Some(Identifier { network: NetworkState::Listening(listener), port: Some(port), .. }) =
            self.identifiers.get_mut(&handle)
        {
            if let Some(socket) = port.socket() {
                // Fails only for a socket that is not registered.
                let _ = self.epoll.delete(socket);
            }
            listener.paused_until = Some(until);
        }
    }
}
