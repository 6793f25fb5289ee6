//! The state of the connection manager: all identifiers, channels and delivered events.
//!
//! The manager refers to an identifier by its handle, because the identifier of a request exists
//! before the program's `rdma_cm_id` for it. A call of the program passes the address of an
//! `rdma_cm_id`. A map translates the address to the handle. A call with an `rdma_cm_id` that was
//! destroyed, or that belongs to the parent process, therefore fails with `EINVAL`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::caller_ptr::CallerPtr;
use super::cm_event::{CmChannel, CmEvent, CmEventQueue, IdHandle};
use super::identifier::{Identifier, Listener, NetworkState};
use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};

/// An event that the program has read and not acknowledged.
pub struct DeliveredEvent {
    /// The identifier that the event concerns. Its destruction waits for the acknowledgement.
    pub owner: IdHandle,
    /// The private data, which the event points to and which must therefore live as long as the
    /// event.
    pub _private_data: Vec<u8>,
}

/// The state of the connection manager, which the manager's lock protects.
pub struct ManagerState {
    /// Whether the manager's thread runs.
    pub has_thread: bool,
    epoll: Arc<Epoll>,
    last_handle: IdHandle,
    identifiers: HashMap<IdHandle, Identifier>,
    handles: HashMap<CallerPtr<rdma_cm_id>, IdHandle>,
    last_channel: u64,
    /// The event channels. Each is boxed, because threads sleep on a futex in it, which must not
    /// move when the map grows.
    pub channels: HashMap<CallerPtr<rdma_event_channel>, Box<CmChannel>>,
    /// Destroyed channels that a thread of the program may still wait on (see
    /// `id_memory::destroy_channel`).
    pub destroyed_channels: HashSet<CallerPtr<rdma_event_channel>>,
    /// The events that the program has read and not acknowledged.
    pub delivered: HashMap<CallerPtr<rdma_cm_event>, DeliveredEvent>,
}

impl ManagerState {
    /// Creates an empty state. `epoll` is where [`watch`](Self::watch) registers sockets.
    pub fn new(epoll: Arc<Epoll>) -> Self {
        let (identifiers, handles, channels, destroyed_channels, delivered) = Default::default();
        Self {
            has_thread: false,
            epoll,
            last_handle: 0,
            identifiers,
            handles,
            last_channel: 0,
            channels,
            destroyed_channels,
            delivered,
        }
    }

    /// Adds a channel, whose address may be that of a destroyed one.
    pub fn add_channel(&mut self, memory: CallerPtr<rdma_event_channel>, events: CmEventQueue) {
        self.destroyed_channels.remove(&memory);
        self.last_channel += 1;
        self.channels.insert(memory, Box::new(CmChannel { number: self.last_channel, events }));
    }

    /// Returns the events of the channel with this address and number, unless the channel was
    /// destroyed.
    pub fn events_of(
        &self,
        memory: CallerPtr<rdma_event_channel>,
        number: Option<u64>,
    ) -> Option<&CmEventQueue> {
        let channel = self.channels.get(&memory).filter(|channel| Some(channel.number) == number)?;
        Some(&channel.events)
    }

    /// Adds an identifier and returns its handle.
    pub fn insert(&mut self, identifier: Identifier) -> IdHandle {
        self.last_handle += 1;
        self.identifiers.insert(self.last_handle, identifier);
        self.last_handle
    }

    /// Records the program's memory for an identifier.
    pub fn set_memory(&mut self, handle: IdHandle, memory: CallerPtr<rdma_cm_id>) {
        if let Some(identifier) = self.identifiers.get_mut(&handle) {
            identifier.memory = Some(memory);
            self.handles.insert(memory, handle);
        }
    }

    /// Removes and returns an identifier. Returns `None` if it was removed before.
    pub fn remove(&mut self, handle: IdHandle) -> Option<Identifier> {
        let identifier = self.identifiers.remove(&handle)?;
        if let Some(memory) = identifier.memory {
            self.handles.remove(&memory);
        }
        Some(identifier)
    }

    /// Returns the handle of the identifier with this memory.
    ///
    /// # Errors
    /// `EINVAL` if no identifier has this memory.
    pub fn handle(&self, memory: *mut rdma_cm_id) -> Result<IdHandle, Errno> {
        self.handles.get(&CallerPtr(memory)).copied().ok_or(Errno::EINVAL)
    }

    /// Returns the identifier with this handle.
    ///
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

    /// Returns all identifiers with their handles, in no particular order.
    pub fn identifiers(&mut self) -> impl Iterator<Item = (IdHandle, &mut Identifier)> {
        self.identifiers.iter_mut().map(|(handle, identifier)| (*handle, identifier))
    }

    /// Appends an event to the queue of the identifier's channel. Drops the event if the identifier
    /// was removed or the channel was destroyed.
    pub fn push_event(&mut self, handle: IdHandle, event: CmEvent) {
        if let Some(identifier) = self.identifiers.get(&handle)
            && let Some(channel) = self.channels.get(&identifier.channel)
        {
            channel.events.push((handle, event));
        }
    }

    /// Appends an event to the queue of each identifier that is bound to the device, as the kernel
    /// does when it removes a device.
    pub fn on_device_removed(&mut self) {
        let bound = |identifier: &Identifier| {
            identifier.addresses.0.is_some_and(|address| !address.ip().is_unspecified())
        };
        let known =
            self.identifiers().filter(|(_, identifier)| identifier.memory.is_some() && bound(identifier));
        let handles: Vec<IdHandle> = known.map(|(handle, _)| handle).collect();
        for handle in handles {
            self.push_event(handle, CmEvent::DeviceRemoved);
        }
    }

    /// Whether the program has not read all events of the identifier.
    ///
    /// # Errors
    /// `EINVAL` if the identifier was removed.
    pub fn has_events(&mut self, handle: IdHandle) -> Result<bool, Errno> {
        let channel = self.get(handle)?.channel;
        Ok(self
            .channels
            .get(&channel)
            .is_some_and(|channel| channel.events.count(|(owner, _)| *owner == handle) > 0))
    }

    /// Moves an identifier, with its events and requests that the program has not read, to another
    /// channel.
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

    /// Removes and returns the events of an identifier that the program has not read.
    pub fn take_events(&mut self, handle: IdHandle) -> VecDeque<CmEvent> {
        let channel = self.identifiers.get(&handle).map(|identifier| identifier.channel);
        let channel = channel.and_then(|channel| self.channels.get(&channel));
        let taken = channel.map(|channel| channel.events.extract(|(owner, _)| *owner == handle));
        taken.into_iter().flatten().map(|(_, event)| event).collect()
    }

    /// Registers an identifier's socket with epoll. A stream is edge-triggered: it is writable most
    /// of the time, so a level-triggered one would wake the manager continuously. Listeners and
    /// lookups are level-triggered, because one run of a listener's handler takes at most
    /// [`MAX_PER_RUN`](super::network_events) streams or datagrams and leaves the rest for the next
    /// run.
    ///
    /// # Errors
    /// `EINVAL` if the identifier has no socket to wait for, or the error of `epoll_ctl`.
    pub fn watch(&self, handle: IdHandle) -> Result<(), Errno> {
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let (port, flags) = match self.identifiers.get(&handle).map(|identifier| &identifier.network) {
            Some(NetworkState::Connected(stream)) => (stream.port.as_ref().ok_or(Errno::EINVAL)?, edges),
            Some(NetworkState::Listening(listener)) => (&listener.port, EpollFlags::EPOLLIN),
            Some(NetworkState::LookingUp(port, _)) => (port, EpollFlags::EPOLLIN),
            _ => return Err(Errno::EINVAL),
        };
        self.epoll.add(&**port, EpollEvent::new(flags, handle))
    }

    /// Removes a listener's socket from epoll.
    pub fn unwatch(&self, listener: IdHandle) {
        if let Some(Identifier { network: NetworkState::Listening(Listener { port, .. }), .. }) =
            self.identifiers.get(&listener)
        {
            // Fails only for a socket that is not registered.
            let _ = self.epoll.delete(&**port);
        }
    }
}
