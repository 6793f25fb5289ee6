//! Asynchronous events: from the NIC to the contexts, and from there to the program.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use mitra_os_util::thread;
use mitra_verbs::{AsyncEvent, Provider};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::abi_object::AbiObject;
use super::context::Context;
use super::cq::Cq;
use super::qp::Qp;
use super::srq::Srq;
use crate::abi::*;
use crate::common::errno::minus_one;
use crate::common::event_queue::{EventQueue, wait_for_event};
use crate::common::unacknowledged::UnacknowledgedEvents;
use crate::rails::{Objects, Rails};

/// An event in a context's queue: its type, and the address of what it is about, as an integer (or the port).
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    event_type: ibv_event_type,
    about: usize,
}

/// Starts the thread that hands on the asynchronous events of a NIC, as long as the process lives.
pub(crate) fn start(rails: &Arc<Rails>) -> io::Result<()> {
    let rails = Arc::clone(rails);
    thread::spawn("mitra-events", move || {
        let nic = rails.nic();
        loop {
            let mut ready = [PollFd::new(nic.async_event_fd(), PollFlags::POLLIN)];
            // A refused wait is a short one.
            let _ = poll(&mut ready, PollTimeout::NONE);
            while let Some(event) = nic.poll_async_event() {
                deliver(&rails, event);
            }
        }
    })?;
    Ok(())
}

/// The asynchronous events of a context.
pub(crate) type AsyncEvents = EventQueue<Queued>;

/// Events about the device or its port: every context hears of them.
fn of_the_device(event: AsyncEvent) -> Option<ibv_event_type> {
    match event {
        AsyncEvent::PortError => Some(IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive => Some(IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::DeviceFatal => Some(IBV_EVENT_DEVICE_FATAL),
        _ => None,
    }
}

/// Hands an event of the NIC to the contexts that it concerns.
pub(crate) fn deliver(rails: &Rails, event: AsyncEvent) {
    let objects = rails.objects();
    if let Some(event_type) = of_the_device(event) {
        for &context in &objects.contexts {
            // SAFETY: contexts leave the list before they go, under the lock that is held here.
            let context = unsafe { Context::of(context as *mut ibv_context) };
            context.events.push(Queued { event_type, about: 1 });
        }
        return;
    }
    let (event_type, about) = match event {
        AsyncEvent::QpFatal(qp) => (IBV_EVENT_QP_FATAL, objects.qps.get(&qp)),
        AsyncEvent::QpRequestError(qp) => (IBV_EVENT_QP_REQ_ERR, objects.qps.get(&qp)),
        AsyncEvent::QpAccessError(qp) => (IBV_EVENT_QP_ACCESS_ERR, objects.qps.get(&qp)),
        AsyncEvent::SqDrained(qp) => (IBV_EVENT_SQ_DRAINED, objects.qps.get(&qp)),
        AsyncEvent::CommunicationEstablished(qp) => (IBV_EVENT_COMM_EST, objects.qps.get(&qp)),
        AsyncEvent::LastWqeReached(qp) => (IBV_EVENT_QP_LAST_WQE_REACHED, objects.qps.get(&qp)),
        AsyncEvent::CqError(cq) => (IBV_EVENT_CQ_ERR, objects.cqs.get(&cq)),
        AsyncEvent::SrqLimitReached(srq) => (IBV_EVENT_SRQ_LIMIT_REACHED, objects.srqs.get(&srq)),
        _ => return,
    };
    // What was destroyed in the meantime has no events.
    let Some(&about) = about else { return };
    // SAFETY: objects leave the tables before they go, under the lock that is held here.
    let context = unsafe {
        match event_type {
            IBV_EVENT_CQ_ERR => (*(about as *mut ibv_cq)).context,
            IBV_EVENT_SRQ_LIMIT_REACHED => (*(about as *mut ibv_srq)).context,
            _ => (*(about as *mut ibv_qp)).context,
        }
    };
    // SAFETY: a context outlives its objects.
    unsafe { Context::of(context) }.events.push(Queued { event_type, about });
}

/// An object goes: removes it from its table, so that nothing new is said about it, and forgets what waits. Under one lock:
/// whoever takes an event holds it until the event is counted.
pub(crate) fn forget<T>(context: &Context, about: usize, remove: impl FnOnce(&mut Objects) -> T) {
    let mut objects = context.rails.objects();
    remove(&mut objects);
    context.events.retain(|queued| queued.about != about);
}

/// The count that an event about an object is kept in; none if it is about the device.
///
/// # Safety
/// The object of the event is there.
unsafe fn count_of<'a>(event_type: ibv_event_type, about: usize) -> Option<&'a UnacknowledgedEvents> {
    // SAFETY: the type says what kind of object it is; the caller, that it is there.
    unsafe {
        match event_type {
            IBV_EVENT_CQ_ERR => Some(&Cq::of(about as *mut ibv_cq).async_events),
            IBV_EVENT_SRQ_LIMIT_REACHED => Some(&Srq::of(about as *mut ibv_srq).events),
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_QP_LAST_WQE_REACHED => Some(&Qp::of(about as *mut ibv_qp_ex).events),
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: an open device.
    let context = unsafe { Context::of(context) };
    let taken = wait_for_event(context.events.fd(), || {
        // Between the queue and the count nobody may destroy the object.
        let _objects = context.rails.objects();
        let queued = context.events.pop()?;
        // SAFETY: its object is there: it would have left the queue otherwise.
        if let Some(count) = unsafe { count_of(queued.event_type, queued.about) } {
            count.add_one();
        }
        Some(queued)
    });
    match taken {
        Ok(Queued { event_type, about }) => {
            let element = match event_type {
                IBV_EVENT_PORT_ERR | IBV_EVENT_PORT_ACTIVE | IBV_EVENT_DEVICE_FATAL => {
                    ibv_async_event_element { port_num: about as c_int }
                }
                _ => ibv_async_event_element { qp: about as *mut ibv_qp },
            };
            // SAFETY: the caller's structure.
            unsafe { event.write(ibv_async_event { element, event_type }) };
            0
        }
        Err(errno) => minus_one(errno as c_int),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event that the program got; its object waits for this.
    unsafe {
        let event = &*event;
        if let Some(count) = count_of(event.event_type, event.element.qp as usize) {
            count.acknowledge(1);
        }
    }
}
