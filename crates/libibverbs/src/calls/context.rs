//! The context of an open device.

use std::mem;
use std::sync::Arc;

use mitra_softnic::SoftNic;

use super::abi_object::AbiHeader;
use crate::abi::*;
use crate::rails::object_table::{AsyncEventQueue, ObjectEntry, ObjectTable};
use crate::rails::rail_set::RailSet;

/// The number of the device's only port.
pub(crate) const PORT: u8 = 1;

/// The context of an open device. Programs hold the address of the field `context` in `header`.
#[repr(C)]
pub(crate) struct Context {
    header: AbiHeader<verbs_context>,
    pub(crate) rails: Arc<RailSet>,
    pub(crate) events: Arc<AsyncEventQueue>,
}

impl Context {
    /// Creates a context that begins with a C structure.
    pub(crate) fn new(
        header: AbiHeader<verbs_context>,
        rails: Arc<RailSet>,
        events: AsyncEventQueue,
    ) -> Context {
        Context { header, rails, events: Arc::new(events) }
    }

    /// Returns the context that a program's pointer refers to.
    ///
    /// # Safety
    /// `context` came from `ibv_open_device`, and is not closed while the reference lives.
    pub(crate) unsafe fn borrow_raw<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: `ibv_open_device` returns `Context::address`, the address of the field `context` of the `verbs_context` that begins
        // a `Context`. Subtracting the field's offset leads back to the `Context`, which the caller keeps open.
        unsafe { &*context.byte_sub(mem::offset_of!(verbs_context, context)).cast::<Context>() }
    }

    /// Returns the address by which programs know the context.
    pub(crate) fn address(&self) -> *mut ibv_context {
        // SAFETY: the header is initialized and lives as long as `self`; only the address of a field is computed, nothing is read.
        unsafe { &raw mut (*self.header.get()).context }
    }

    /// Returns the NIC of rail 0.
    pub(crate) fn nic(&self) -> &SoftNic {
        self.rails.nic()
    }

    /// Returns the entry in the object table for an object of this context.
    pub(crate) fn object_entry(&self, address: usize) -> ObjectEntry {
        ObjectEntry { address, events: Arc::clone(&self.events) }
    }

    /// Removes an object that is being destroyed from the object table, and its events from the context's queue. Both happen under the table's
    /// lock. The verb that takes an event from the queue holds the same lock until the event is counted. Therefore no event about the object
    /// is queued or taken after this function returns.
    pub(crate) fn remove_object<T>(&self, address: usize, remove: impl FnOnce(&mut ObjectTable) -> T) {
        let mut objects = self.rails.objects();
        remove(&mut objects);
        self.events.retain(|event| event.element != address);
    }
}
