//! The program's objects by the NIC's numbers, and the delivery of asynchronous events to their contexts.

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
    /// The address of the object that the event is about, or the number of the port.
    pub(crate) element: usize,
}

/// The asynchronous events of one context.
pub(crate) type AsyncEventQueue = EventQueue<PendingEvent>;

/// An object of the program.
pub(crate) struct ObjectEntry {
    /// The address of the C structure. It is an integer because this module never follows it.
    pub(crate) address: usize,
    /// Where events about the object go: to the context that it was created in.
    pub(crate) events: Arc<AsyncEventQueue>,
}

/// A completion queue of the program.
pub(crate) struct CqEntry {
    pub(crate) object: ObjectEntry,
    /// The queue that virtual queue pairs complete in, on a device with several rails.
    pub(crate) virtual_cq: Option<Arc<VirtualCq>>,
}

/// The objects that exist. A verb that destroys an object removes it here first, under the table's lock. So an address that is
/// found in the table under the lock is valid while the lock is held.
#[derive(Default)]
pub(crate) struct ObjectTable {
    pub(crate) contexts: Vec<ObjectEntry>,
    pub(crate) qps: HashMap<Qpn, ObjectEntry>,
    pub(crate) cqs: HashMap<CqId, CqEntry>,
    pub(crate) srqs: HashMap<SrqId, ObjectEntry>,
}

/// The number of the device's only port, in events about it.
const PORT: usize = 1;

impl ObjectTable {
    /// Queues an event of the NIC at the contexts that it concerns: all of them for the device and its port, otherwise the
    /// context of the object. An event about an object that is destroyed is dropped.
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

/// Returns the type of an event about the device or its port.
fn device_event_type(event: AsyncEvent) -> Option<ibv_event_type> {
    match event {
        AsyncEvent::PortError => Some(IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive => Some(IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::DeviceFatal => Some(IBV_EVENT_DEVICE_FATAL),
        _ => None,
    }
}
