//! `ibv_get_cq_event` and `ibv_ack_cq_events`.

use std::ffi::{c_int, c_void};

use super::abi_object::{AbiObject, AwaitedObject};
use super::channel::Channel;
use super::completed_events::completed_events;
use super::cq::Cq;
use crate::common::errno::{minus_one, status};
use crate::common::event_queue::{Closed, take_or_sleep, wait_for_event};
use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: `channel` is null or came from `ibv_create_comp_channel`.
    let awaited = match unsafe { AwaitedObject::<Channel>::new(channel) } {
        Ok(awaited) => awaited,
        Err(error) => return minus_one(status("ibv_get_cq_event", Err(error))),
    };
    let taken = wait_for_event(|| {
        // SAFETY: rule *objects* (module `calls`): the channel may be destroyed while this thread
        // sleeps, but not in the course of this function.
        let channel = unsafe { awaited.find()? };
        take_or_sleep(&channel.events, || take(channel))
    });
    match taken {
        Ok(signalled) => {
            // SAFETY: rule *structures* (module `calls`). The queue exists, because
            // `ibv_destroy_cq` waits for the acknowledgement of the event that `take` counted.
            unsafe {
                *cq = signalled;
                *cq_context = (*signalled).cq_context;
            }
            0
        }
        Err(errno) => minus_one(errno as c_int),
    }
}

/// Takes and counts the oldest event whose completion queue exists.
///
/// # Errors
/// `Closed` if there is no event, and will be none.
fn take(channel: &Channel) -> Result<Option<*mut ibv_cq>, Closed> {
    // While this thread holds the lock, no other thread can destroy the queue between the removal
    // of the event from the channel and the increment of the queue's event count.
    let objects = channel.rails.objects();
    while let Some(id) = channel.events.pop()? {
        if let Some(entry) = objects.cqs.get(&id) {
            let signalled = entry.address as *mut ibv_cq;
            // SAFETY: the queue exists, because `ibv_destroy_cq` removes it from the table first,
            // under the lock that this thread holds.
            unsafe { Cq::borrow_raw(signalled) }.comp_events.add_one();
            return Ok(Some(signalled));
        }
    }
    Ok(None)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call. The public
    // count changes first, because after the acknowledgement another thread may destroy the queue.
    unsafe {
        if let Ok(object) = Cq::find(cq) {
            completed_events!(cq, comp_events_completed).add(nevents);
            object.comp_events.acknowledge(nevents);
        }
    }
}
