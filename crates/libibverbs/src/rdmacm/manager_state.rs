//! The state of the connection manager: all identifiers, channels and delivered events.
//!
//! The manager refers to an identifier by a handle, because a request has an identifier before the
//! program gets an `rdma_cm_id` for the request. A map translates the address of the `rdma_cm_id`
//! in a call to the handle. A call with a destroyed `rdma_cm_id`, or with an `rdma_cm_id` of the
//! parent process, therefore fails with `EINVAL`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::caller_ptr::CallerPtr;
use super::cm_event::{CmChannel, CmEvent, CmEventQueue, IdHandle};
use super::identifier::{Identifier, Listener, NetworkState};
use crate::abi::{RDMA_CM_EVENT_DEVICE_REMOVAL, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use crate::common::unacknowledged_events::UnacknowledgedEvents;

/// An event that the program has read and not acknowledged.
pub struct DeliveredEvent {
    /// The count of unacknowledged events of the event's identifier.
    pub unacknowledged: Arc<UnacknowledgedEvents>,
    /// The event points to this data.
    pub _private_data: Vec<u8>,
}

pub struct ManagerState {
    pub has_thread: bool,
    epoll: Arc<Epoll>,
    last_handle: IdHandle,
    identifiers: HashMap<IdHandle, Identifier>,
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
    pub fn new(epoll: Arc<Epoll>) -> Self {
        Self {
            has_thread: false,
            epoll,
            last_handle: 0,
            identifiers: HashMap::new(),
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

    /// Registers an identifier's socket with epoll. Streams are edge-triggered, because a stream is
    /// writable most of the time. Listeners and lookups are level-triggered, because a handler
    /// leaves what exceeds [`MAX_PER_RUN`](super::network_events) for its next run.
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
        if let Some(Identifier { network: NetworkState::Listening(listener), .. }) =
            self.identifiers.get_mut(&handle)
        {
            // Fails only for a socket that is not registered.
            let _ = self.epoll.delete(&*listener.port);
            listener.paused_until = Some(until);
        }
    }
}
