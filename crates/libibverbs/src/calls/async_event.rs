//! `ibv_get_async_event` and `ibv_ack_async_event`.

use std::ffi::c_int;

use super::abi_object::AbiObject;
use super::completed_events::{CompletedEvents, completed_events};
use super::context::Context;
use super::cq::Cq;
use super::qp::Qp;
use super::srq::Srq;
use crate::common::errno::{minus_one, status};
use crate::common::event_queue::{take_or_sleep, wait_for_event};
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rails::object_table::PendingEvent;
use mitra_verbs_abi::*;

/// Returns the counts of the events of an object: those that wait for an acknowledgement, and those
/// that were acknowledged. Returns `None` for an event about the device or its port.
///
/// # Safety
/// For any other event, `object` is the address of an object of the kind that `event_type`
/// determines, and this object is not destroyed while the reference lives.
unsafe fn counts_of<'a>(
    event_type: ibv_event_type,
    object: usize,
) -> Option<(&'a UnacknowledgedEvents, CompletedEvents)> {
    // SAFETY: the caller upholds the same requirement (`# Safety` above). Every object begins with
    // its C structure.
    unsafe {
        match event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = object as *mut ibv_cq;
                Some((&Cq::borrow_raw(cq).async_events, completed_events!(cq, async_events_completed)))
            }
            IBV_EVENT_SRQ_LIMIT_REACHED => {
                let srq = object as *mut ibv_srq;
                Some((&Srq::borrow_raw(srq).events, completed_events!(srq, events_completed)))
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = object as *mut ibv_qp;
                Some((&Qp::borrow_raw(qp.cast()).events, completed_events!(qp, events_completed)))
            }
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: `context` is null or came from `ibv_open_device`.
    let awaited = match unsafe { Context::await_raw(context) } {
        Ok(awaited) => awaited,
        Err(error) => return minus_one(status("ibv_get_async_event", Err(error))),
    };
    let taken = wait_for_event(|| {
        // SAFETY: rule *objects* (module `calls`): the context may be closed while this thread
        // sleeps, but not in the course of this function.
        let context = unsafe { awaited.find()? };
        take_or_sleep(&*context.events, || {
            // While this thread holds the lock, no other thread can destroy the object between the
            // removal of the event from the queue and the increment of the object's event count.
            let _objects = context.rails.objects();
            let Some(queued) = context.events.pop_unless_closed()? else { return Ok(None) };
            // SAFETY: the object of an event in the queue exists, because a verb that destroys the
            // object removes its events under the lock that this thread holds.
            if let Some((unacknowledged, _)) = unsafe { counts_of(queued.event_type, queued.element) } {
                unacknowledged.add_one();
            }
            Ok(Some(queued))
        })
    });
    match taken {
        Ok(PendingEvent { event_type, element: object_or_port }) => {
            let element = match event_type {
                IBV_EVENT_PORT_ERR
                | IBV_EVENT_PORT_ACTIVE
                | IBV_EVENT_GID_CHANGE
                | IBV_EVENT_DEVICE_FATAL => ibv_async_event_element { port_num: object_or_port as c_int },
                _ => ibv_async_event_element { qp: object_or_port as *mut ibv_qp },
            };
            // SAFETY: rule *structures* (module `calls`): the pointer is valid.
            unsafe { event.write(ibv_async_event { element, event_type }) };
            0
        }
        Err(errno) => minus_one(errno as c_int),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the event came from `ibv_get_async_event`, which counted it, and the verb that
    // destroys the event's object waits for this acknowledgement, which is therefore the last step.
    unsafe {
        let event = &*event;
        if let Some((unacknowledged, completed)) = counts_of(event.event_type, event.element.qp as usize) {
            completed.add(1);
            unacknowledged.acknowledge(1);
        }
    }
}
