//! The state of the connection manager: all identifiers, channels and delivered events.
//!
//! The manager refers to an identifier by its handle, because a request has an identifier before the program has memory for
//! it. A call of the program passes the memory's address. The address is looked up in a map, so that a call with memory that
//! was destroyed, or that belongs to the parent process, fails with `EINVAL`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};

use super::caller_ptr::CallerPtr;
use super::identifier::{Identifier, NetworkState};
use super::report::{IdHandle, Report};
use super::report_queue::ReportQueue;
use crate::abi::{rdma_cm_event, rdma_cm_id, rdma_event_channel};

/// An event that the program has read and not acknowledged.
pub struct DeliveredEvent {
    /// The identifier whose destruction waits for the acknowledgement.
    pub owner: IdHandle,
    /// The private data that the event points to. It lives as long as the event.
    pub _private_data: Vec<u8>,
}

/// The state of the connection manager, under the manager's lock.
pub struct State {
    /// Whether the manager's thread runs.
    pub has_thread: bool,
    /// Whether a listener could not accept a stream because the process has no descriptors or memory left.
    pub accept_failed: bool,
    epoll: Arc<Epoll>,
    last_handle: IdHandle,
    identifiers: HashMap<IdHandle, Identifier>,
    handles: HashMap<CallerPtr<rdma_cm_id>, IdHandle>,
    /// The report queues of the channels.
    pub channels: HashMap<CallerPtr<rdma_event_channel>, ReportQueue>,
    /// Destroyed channels that a thread of the program may still wait on (see `id_memory::destroy_channel`).
    pub destroyed_channels: HashSet<CallerPtr<rdma_event_channel>>,
    /// The events that the program has read and not acknowledged.
    pub delivered: HashMap<CallerPtr<rdma_cm_event>, DeliveredEvent>,
}

impl State {
    /// Creates an empty state. `epoll` is where [`watch`](Self::watch) registers sockets.
    pub fn new(epoll: Arc<Epoll>) -> Self {
        let (identifiers, handles, channels, destroyed_channels, delivered) = Default::default();
        Self {
            has_thread: false,
            accept_failed: false,
            epoll,
            last_handle: 0,
            identifiers,
            handles,
            channels,
            destroyed_channels,
            delivered,
        }
    }

    /// Adds an identifier.
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

    /// Removes an identifier.
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

    /// Returns the identifier with this memory.
    ///
    /// # Errors
    /// `EINVAL` if no identifier has this memory.
    pub fn find(&mut self, memory: *mut rdma_cm_id) -> Result<(IdHandle, &mut Identifier), Errno> {
        let handle = self.handle(memory)?;
        Ok((handle, self.get(handle)?))
    }

    /// Returns all identifiers, in no particular order.
    pub fn identifiers(&mut self) -> impl Iterator<Item = (IdHandle, &mut Identifier)> {
        self.identifiers.iter_mut().map(|(handle, identifier)| (*handle, identifier))
    }

    /// Appends a report to the identifier's channel. Drops the report if the channel was destroyed.
    pub fn report(&mut self, handle: IdHandle, report: Report) {
        if let Some(identifier) = self.identifiers.get(&handle)
            && let Some(channel) = self.channels.get_mut(&identifier.channel)
        {
            channel.push(handle, report);
        }
    }

    /// Whether reports of the identifier wait for the program.
    ///
    /// # Errors
    /// `EINVAL` if the identifier was removed.
    pub fn has_reports(&mut self, handle: IdHandle) -> Result<bool, Errno> {
        let channel = self.get(handle)?.channel;
        Ok(self.channels.get(&channel).is_some_and(|channel| channel.count(handle) > 0))
    }

    /// Moves an identifier and its reports to another channel.
    pub fn migrate(
        &mut self,
        handle: IdHandle,
        channel: CallerPtr<rdma_event_channel>,
        is_synchronous: bool,
    ) {
        let reports = self.take_reports(handle);
        if let Some(identifier) = self.identifiers.get_mut(&handle) {
            (identifier.channel, identifier.is_synchronous) = (channel, is_synchronous);
        }
        for report in reports {
            self.report(handle, report);
        }
    }

    /// Removes and returns the reports of an identifier that the program has not read.
    pub fn take_reports(&mut self, handle: IdHandle) -> VecDeque<Report> {
        let channel = self.identifiers.get(&handle).map(|identifier| identifier.channel);
        let channel = channel.and_then(|channel| self.channels.get_mut(&channel));
        channel.map_or_else(VecDeque::new, |channel| channel.take(handle))
    }

    /// Registers an identifier's socket with epoll. Streams are edge-triggered, because a stream is writable most of the time.
    /// Listeners and lookups are level-triggered, because the handler leaves a backlog beyond a limit for its next run.
    ///
    /// # Errors
    /// `EINVAL` if the identifier has no socket to wait for, or the error of `epoll_ctl`.
    pub fn watch(&self, handle: IdHandle) -> Result<(), Errno> {
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let (port, flags) = match self.identifiers.get(&handle).map(|identifier| &identifier.network) {
            Some(NetworkState::Connected(stream)) => (&stream.port, edges),
            Some(NetworkState::Listening(listener)) => (&listener.port, EpollFlags::EPOLLIN),
            Some(NetworkState::LookingUp(port, _)) => (port, EpollFlags::EPOLLIN),
            _ => return Err(Errno::EINVAL),
        };
        self.epoll.add(&**port, EpollEvent::new(flags, handle))
    }
}
