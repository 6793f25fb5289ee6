//! Acknowledgement of events.

use std::ptr;

use nix::errno::Errno;

use super::caller_ptr::CallerPtr;
use super::manager::Manager;
use mitra_verbs_abi::{rdma_cm_event, rdma_cm_id};

/// Acknowledges an event and frees it.
///
/// # Errors
/// `EINVAL` if the event was not delivered or is acknowledged already.
pub fn acknowledge(manager: &Manager, event: *mut rdma_cm_event) -> Result<(), Errno> {
    let delivered = manager.lock().delivered.remove(&CallerPtr(event)).ok_or(Errno::EINVAL)?;
    delivered.unacknowledged.acknowledge(1);
    // SAFETY: `EventBuilder::deliver` made the event by `Box::into_raw` and entered it in
    // `delivered`. This call has removed the entry, so no other call frees the event.
    drop(unsafe { Box::from_raw(event) });
    Ok(())
}

/// Acknowledges the event in the `event` field of a synchronous identifier, if there is one.
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
