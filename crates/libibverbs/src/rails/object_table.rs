//! The table of the program's objects by number, and the delivery of asynchronous events to the contexts of these objects.

use std::collections::HashMap;
use std::sync::Arc;

use mitra_verbs::{AsyncEvent, CqId, Qpn, SrqId};

use super::virtual_cq::VirtualCq;
use crate::abi::*;
use crate::common::event_queue::EventQueue;

/// An asynchronous event that the program has not taken.
#[derive(Clone, Copy)]
pub(crate) struct PendingEvent {
    pub(crate) event_type: ibv_event_type,
    /// The address of the object that the event is about. In an event about the device or its port, the number of the port.
    pub(crate) element: usize,
}

/// The asynchronous events of one context.
pub(crate) type AsyncEventQueue = EventQueue<PendingEvent>;

/// An object of the program.
pub(crate) struct ObjectEntry {
    /// The address of the object's C structure. It is an integer because this module does not dereference it.
    pub(crate) address: usize,
    /// The queue for events about the object. It belongs to the context in which the object was created.
    pub(crate) events: Arc<AsyncEventQueue>,
}

/// A completion queue of the program.
pub(crate) struct CqEntry {
    pub(crate) object: ObjectEntry,
    /// The queue in which virtual queue pairs complete. Present on a device with several rails.
    pub(crate) virtual_cq: Option<Arc<VirtualCq>>,
}

/// The objects that exist. A verb that destroys an object removes it from the table under the table's lock, and frees it afterwards.
/// Therefore an address that is found in the table is valid as long as the lock is held.
#[derive(Default)]
pub(crate) struct ObjectTable {
    pub(crate) contexts: Vec<ObjectEntry>,
    pub(crate) qps: HashMap<Qpn, ObjectEntry>,
    pub(crate) cqs: HashMap<CqId, CqEntry>,
    pub(crate) srqs: HashMap<SrqId, ObjectEntry>,
}

/// The number of the device's only port, as used in events.
const PORT: usize = 1;

impl ObjectTable {
    /// Queues an event at the contexts that it concerns. An event about the device or its port concerns all contexts. Any other event
    /// concerns the context of its object, and is dropped if the object no longer exists.
    pub(crate) fn deliver(&self, event: AsyncEvent) {
        if let Some(event_type) = device_event_type(event) {
            for context in &self.contexts {
                context.events.push(PendingEvent { event_type, element: PORT });
            }
            return;
        }
        let cq = |id| self.cqs.get(&id).map(|entry| &entry.object);
        let (event_type, object) = match event {
            AsyncEvent::QpFatal(qp) => (IBV_EVENT_QP_FATAL, self.qps.get(&qp)),
            AsyncEvent::QpRequestError(qp) => (IBV_EVENT_QP_REQ_ERR, self.qps.get(&qp)),
            AsyncEvent::QpAccessError(qp) => (IBV_EVENT_QP_ACCESS_ERR, self.qps.get(&qp)),
            AsyncEvent::SqDrained(qp) => (IBV_EVENT_SQ_DRAINED, self.qps.get(&qp)),
            AsyncEvent::CommunicationEstablished(qp) => (IBV_EVENT_COMM_EST, self.qps.get(&qp)),
            AsyncEvent::LastWqeReached(qp) => (IBV_EVENT_QP_LAST_WQE_REACHED, self.qps.get(&qp)),
            AsyncEvent::CqError(id) => (IBV_EVENT_CQ_ERR, cq(id)),
            AsyncEvent::SrqLimitReached(srq) => (IBV_EVENT_SRQ_LIMIT_REACHED, self.srqs.get(&srq)),
            _ => return,
        };
        if let Some(object) = object {
            object.events.push(PendingEvent { event_type, element: object.address });
        }
    }
}

/// Returns the type of an event about the device or its port, or `None` for an event about another object.
fn device_event_type(event: AsyncEvent) -> Option<ibv_event_type> {
    match event {
        AsyncEvent::PortError => Some(IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive => Some(IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::DeviceFatal => Some(IBV_EVENT_DEVICE_FATAL),
        _ => None,
    }
}
