//! `ibv_get_cq_event` and `ibv_ack_cq_events`.

use std::ffi::{c_int, c_void};

use super::abi_object::AbiObject;
use super::channel::{Channel, EventSource};
use super::cq::Cq;
use crate::abi::*;
use crate::common::errno::minus_one;
use crate::common::event_queue::wait_for_event;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel.
    let channel = unsafe { Channel::of(channel) };
    let taken = wait_for_event(channel.source.fd(), || {
        // Between the channel and the count nobody may destroy the queue.
        let objects = channel.rails.objects();
        loop {
            let found = match &channel.source {
                EventSource::Nic(events) => match objects.cqs.get(&events.next_event().ok()??) {
                    Some(found) => found.object.address,
                    // An event of a queue that was destroyed concerns nobody.
                    None => continue,
                },
                EventSource::Process(events) => events.pop()?,
            };
            let found = found as *mut ibv_cq;
            // SAFETY: queues leave the table before they go.
            unsafe { Cq::of(found) }.comp_events.add_one();
            return Some(found);
        }
    });
    match taken {
        Ok(found) => {
            // SAFETY: the caller's variables, and a queue that waits for the acknowledgement of this event.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
            0
        }
        Err(errno) => minus_one(errno as c_int),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: a completion queue.
    unsafe { Cq::of(cq) }.comp_events.acknowledge(nevents);
}
