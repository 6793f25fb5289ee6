//! The table of the program's objects by number, and the delivery of asynchronous events to the
//! contexts of these objects.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mitra_verbs::{AsyncEvent, CompletionChannel, CqId, Qpn, SrqId, XrcdId};

use crate::common::event_queue::{Closed, EventQueue, SleepableQueue};
use mitra_verbs_abi::*;

/// An asynchronous event that the program has not taken.
#[derive(Clone, Copy)]
pub(crate) struct PendingEvent {
    pub(crate) event_type: ibv_event_type,
    /// The address of the object that the event is about. In an event about the device or its port,
    /// the number of the port.
    pub(crate) element: usize,
}

pub(crate) type AsyncEventQueue = EventQueue<PendingEvent>;

pub(crate) struct ObjectEntry {
    /// The address of the object's C structure. It is an integer because this module does not
    /// dereference it.
    pub(crate) address: usize,
    /// The queue for events about the object. It belongs to the context in which the object was
    /// created.
    pub(crate) events: Arc<AsyncEventQueue>,
}

/// The events of a completion channel of the program. Each is the number of a completion queue.
#[derive(Clone)]
pub(crate) enum ChannelEvents {
    /// The channel of the NIC of a device with one rail.
    Nic(Arc<dyn CompletionChannel>),
    /// A queue in this process, on a device with several rails.
    Process(Arc<EventQueue<CqId>>),
}

impl AsFd for ChannelEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ChannelEvents::Nic(channel) => channel.as_fd(),
            ChannelEvents::Process(events) => events.as_fd(),
        }
    }
}

impl SleepableQueue for ChannelEvents {
    fn begin_wait(&self) -> Option<(&AtomicU32, u32)> {
        match self {
            ChannelEvents::Nic(channel) => channel.begin_wait(),
            ChannelEvents::Process(events) => events.begin_wait(),
        }
    }
}

impl ChannelEvents {
    /// Removes and returns the oldest event.
    ///
    /// # Errors
    /// `Closed` if there is no event, and will be none.
    pub(crate) fn pop(&self) -> Result<Option<CqId>, Closed> {
        match self {
            ChannelEvents::Nic(channel) => channel.next_event().map_err(|_| Closed),
            ChannelEvents::Process(events) => events.pop_unless_closed(),
        }
    }

    fn close(&self) {
        match self {
            ChannelEvents::Nic(channel) => channel.close(),
            ChannelEvents::Process(events) => events.close(),
        }
    }
}

pub(crate) struct SrqEntry {
    pub(crate) object: ObjectEntry,
    /// The limit that `ibv_query_srq` returns. The event resets it, as the NIC's is.
    pub(crate) limit: Arc<AtomicU32>,
}

/// An XRC receive queue pair, for which the program may have several `ibv_qp`s (`ibv_open_qp`).
pub(crate) struct SharedQp {
    pub(crate) domain: XrcdId,
    pub(crate) handles: Vec<ObjectEntry>,
    /// The number of handles that threads are creating.
    pub(crate) handles_in_creation: usize,
}

impl SharedQp {
    pub(crate) fn new(domain: XrcdId) -> SharedQp {
        SharedQp { domain, handles: Vec::new(), handles_in_creation: 0 }
    }
}

/// The objects that exist. A verb that destroys an object removes it from the table under the
/// table's lock, and frees it afterwards. Therefore an address that is found in the table is valid
/// as long as the lock is held.
#[derive(Default)]
pub(crate) struct ObjectTable {
    pub(crate) contexts: Vec<ObjectEntry>,
    /// The completion channels by the addresses of their C structures.
    pub(crate) channels: HashMap<usize, ChannelEvents>,
    /// Whether `DEVICE_FATAL` was reported. It is the last event of each context, and the end of
    /// each channel.
    pub(crate) is_dead: bool,
    pub(crate) qps: HashMap<Qpn, ObjectEntry>,
    /// The XRC receive queue pairs, which are not in `qps`.
    pub(crate) shared_qps: HashMap<Qpn, SharedQp>,
    pub(crate) cqs: HashMap<CqId, ObjectEntry>,
    pub(crate) srqs: HashMap<SrqId, SrqEntry>,
}

/// The number of the device's only port, as used in events.
const PORT: usize = 1;

impl ObjectTable {
    /// Queues an event at the contexts that it concerns. An event about the device or its port
    /// concerns all contexts. Any other event concerns the context of its object, and is dropped if
    /// the object no longer exists.
    ///
    /// `DeviceFatal` ends all waits for events after the program has taken the earlier events,
    /// because a device that the kernel has removed reports no more events.
    pub(crate) fn deliver(&mut self, event: AsyncEvent) {
        if let Some(event_type) = device_event_type(event) {
            for context in &self.contexts {
                context.events.push(PendingEvent { event_type, element: PORT });
            }
            if event == AsyncEvent::DeviceFatal {
                self.is_dead = true;
                self.contexts.iter().for_each(|context| context.events.close());
                self.channels.values().for_each(ChannelEvents::close);
            }
            return;
        }
        let (event_type, objects) = match event {
            AsyncEvent::QpFatal(qp) => (IBV_EVENT_QP_FATAL, self.handles_of(qp)),
            AsyncEvent::QpRequestError(qp) => (IBV_EVENT_QP_REQ_ERR, self.handles_of(qp)),
            AsyncEvent::QpAccessError(qp) => (IBV_EVENT_QP_ACCESS_ERR, self.handles_of(qp)),
            AsyncEvent::SqDrained(qp) => (IBV_EVENT_SQ_DRAINED, self.handles_of(qp)),
            AsyncEvent::CommunicationEstablished(qp) => (IBV_EVENT_COMM_EST, self.handles_of(qp)),
            AsyncEvent::LastWqeReached(qp) => (IBV_EVENT_QP_LAST_WQE_REACHED, self.handles_of(qp)),
            AsyncEvent::CqError(id) => {
                tracing::warn!(
                    "completion queue {} has overflowed: a completion is lost, and the queue pairs that use the queue fail; poll the queue until it is empty after each event, or create it with more entries",
                    id.0
                );
                (IBV_EVENT_CQ_ERR, self.cqs.get(&id).map_or(&[][..], std::slice::from_ref))
            }
            AsyncEvent::SrqLimitReached(srq) => {
                let entry = self.srqs.get(&srq);
                entry.inspect(|entry| entry.limit.store(0, Ordering::Relaxed));
                let object = entry.map(|entry| &entry.object);
                (IBV_EVENT_SRQ_LIMIT_REACHED, object.map_or(&[][..], std::slice::from_ref))
            }
            _ => return,
        };
        for object in objects {
            object.events.push(PendingEvent { event_type, element: object.address });
        }
    }

    /// Removes an `ibv_qp` of an XRC receive queue pair. Returns whether it was the last one.
    pub(crate) fn remove_shared_qp(&mut self, qpn: Qpn, address: usize) -> bool {
        let Some(queue_pair) = self.shared_qps.get_mut(&qpn) else { return false };
        queue_pair.handles.retain(|handle| handle.address != address);
        let is_last = queue_pair.handles.is_empty() && queue_pair.handles_in_creation == 0;
        if is_last {
            self.shared_qps.remove(&qpn);
        }
        is_last
    }

    /// Returns the `ibv_qp`s of a queue pair.
    fn handles_of(&self, qp: Qpn) -> &[ObjectEntry] {
        match self.qps.get(&qp) {
            Some(only) => std::slice::from_ref(only),
            None => self.shared_qps.get(&qp).map_or(&[], |queue_pair| &queue_pair.handles),
        }
    }
}

/// Returns the type of an event about the device or its port, or `None` for any other event.
fn device_event_type(event: AsyncEvent) -> Option<ibv_event_type> {
    match event {
        AsyncEvent::PortError => Some(IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive => Some(IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::GidChange => Some(IBV_EVENT_GID_CHANGE),
        AsyncEvent::DeviceFatal => Some(IBV_EVENT_DEVICE_FATAL),
        _ => None,
    }
}
