//! Acknowledgement of events: the program has no more use for an event, and the event's memory is
//! freed.

use std::ptr;

use nix::errno::Errno;

use super::caller_ptr::CallerPtr;
use super::manager::Manager;
use crate::abi::{rdma_cm_event, rdma_cm_id};

/// Acknowledges an event and frees it.
///
/// # Errors
/// `EINVAL` if the event was not delivered or is acknowledged already.
pub fn acknowledge(manager: &Manager, event: *mut rdma_cm_event) -> Result<(), Errno> {
    let mut state = manager.lock();
    let delivered = state.delivered.remove(&CallerPtr(event)).ok_or(Errno::EINVAL)?;
    if let Ok(owner) = state.get(delivered.owner) {
        owner.unacknowledged -= 1;
    }
    drop(state);
    manager.notify_acknowledged();
    // SAFETY: `EventBuilder::deliver` made the event by `Box::into_raw` and entered it in
    // `delivered`. This call has removed the entry, so no other call frees the event.
    drop(unsafe { Box::from_raw(event) });
    Ok(())
}

/// Acknowledges the event that a synchronous identifier holds in its `event` field, if there is
/// one.
///
/// # Safety
/// `id` is the memory of a live identifier, and no other thread accesses its `event`.
pub unsafe fn acknowledge_held_event(manager: &Manager, id: *mut rdma_cm_id) {
    // SAFETY: by the contract `id` is readable and writable.
    let held = unsafe { std::mem::replace(&mut (*id).event, ptr::null_mut()) };
    if !held.is_null() {
        // Fails if the program has acknowledged the event itself.
        let _ = acknowledge(manager, held);
    }
}
