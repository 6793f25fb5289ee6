//! `ibv_get_cq_event` and `ibv_ack_cq_events`.

use std::ffi::{c_int, c_void};

use super::abi_object::AbiObject;
use super::channel::{Channel, EventSource};
use super::cq::Cq;
use crate::abi::*;
use crate::common::errno::{minus_one, status};
use crate::common::event_queue::wait_for_event;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `channel` is not destroyed during the call.
    let channel = match unsafe { Channel::find(channel) } {
        Ok(channel) => channel,
        Err(error) => return minus_one(status("ibv_get_cq_event", Err(error))),
    };
    let taken = wait_for_event(channel.source.fd(), || {
        // While this thread holds the lock, no other thread can destroy the queue between the removal of the event from the channel and
        // the increment of the queue's event count.
        let objects = channel.rails.objects();
        loop {
            let signalled = match &channel.source {
                EventSource::Nic(events) => match objects.cqs.get(&events.next_event().ok()??) {
                    Some(entry) => entry.object.address,
                    // The completion queue of the event was destroyed.
                    None => continue,
                },
                EventSource::Process(events) => events.pop()?,
            };
            let signalled = signalled as *mut ibv_cq;
            // SAFETY: `ibv_destroy_cq` removes a queue from the table and its events from the channel before it frees the
            // queue, under the lock that is held here.
            unsafe { Cq::borrow_raw(signalled) }.comp_events.add_one();
            return Some(signalled);
        }
    });
    match taken {
        Ok(signalled) => {
            // SAFETY: rule *structures* (module `calls`): `cq` and `cq_context` are valid for writing. The queue exists, because
            // `ibv_destroy_cq` waits until the program has acknowledged the event that was counted above.
            unsafe {
                *cq = signalled;
                *cq_context = (*signalled).cq_context;
            }
            0
        }
        Err(errno) => minus_one(errno as c_int),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    if let Ok(cq) = unsafe { Cq::find(cq) } {
        cq.comp_events.acknowledge(nevents);
    }
}
