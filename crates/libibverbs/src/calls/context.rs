//! The context of an open device.

use std::ffi::c_int;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mitra_verbs::{Error, Result};

use super::abi_object::{AbiHeader, AbiObject, AwaitedObject, abi_object};
use crate::common::errno::status;
use crate::rails::object_table::{AsyncEventQueue, ObjectEntry, ObjectTable};
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

/// The device's only port.
pub(crate) const PORT: u8 = 1;

/// The context of an open device. Programs hold the address of the field `context` in `header`.
#[repr(C)]
pub(crate) struct Context {
    pub(super) header: AbiHeader<verbs_context>,
    pub(crate) rails: Arc<RailSet>,
    pub(crate) events: Arc<AsyncEventQueue>,
    /// The owner of the descriptor `cmd_fd`.
    pub(super) _command_file: OwnedFd,
}

abi_object!(Context: verbs_context, "device context");

/// Returns the object that a program's pointer refers to, and the context in which the object was
/// created.
///
/// # Errors
/// The errors of [`AbiObject::find`] for the object and for the context.
///
/// # Safety
/// The requirements of [`AbiObject::find`]. The context is not closed while the reference lives.
pub(crate) unsafe fn find_with_context<'a, T: AbiObject>(c: *mut T::C) -> Result<(&'a T, &'a Context)> {
    // SAFETY: the caller upholds the requirements of `find`. Every C structure of an object begins
    // with the pointer to its context, which `ibv_open_device` returned.
    unsafe { Ok((T::find(c)?, Context::find_raw(*c.cast())?)) }
}

/// For the verb `call`, ends the use of an object by `end`, and destroys the object if `end`
/// succeeds. `end` gets the object and its context.
///
/// # Safety
/// The requirements of [`AbiObject::destroy`]. The context is not closed during the call.
pub(crate) unsafe fn destroy_with_context<T: AbiObject>(
    call: &str,
    c: *mut T::C,
    end: impl FnOnce(&T, &Context) -> Result<()>,
) -> c_int {
    // SAFETY: as in `find_with_context`.
    let destroyed = unsafe { T::destroy(c, |object| end(object, Context::find_raw(*c.cast())?)) };
    status(call, destroyed)
}

impl Context {
    /// Returns the context that a program's pointer refers to.
    ///
    /// # Errors
    /// `Invalid` if the pointer is null, `NoSuchObject` if the context was closed, or `System` if
    /// it belongs to the parent process.
    ///
    /// # Safety
    /// `context` is null or came from `ibv_open_device`, and is not closed while the reference
    /// lives.
    pub(crate) unsafe fn find_raw<'a>(context: *mut ibv_context) -> Result<&'a Context> {
        // SAFETY: the caller upholds the same requirements (`# Safety` above).
        unsafe { Context::find(Context::start_of(context)?) }
    }

    /// Returns the context that a program's pointer refers to, for a thread that waits for the
    /// context's events.
    ///
    /// # Errors
    /// The errors of [`Context::find_raw`].
    ///
    /// # Safety
    /// The requirements of [`Context::find_raw`].
    pub(crate) unsafe fn await_raw(context: *mut ibv_context) -> Result<AwaitedObject<Context>> {
        // SAFETY: the caller upholds the same requirements (`# Safety` above).
        unsafe { AwaitedObject::new(Context::start_of(context)?) }
    }

    /// Like [`Context::find_raw`], but also finds a context of the parent process. Only atomics and
    /// constant fields of such a context may be used, because its locks may be in any state.
    ///
    /// # Errors
    /// `Invalid` if the pointer is null, or `NoSuchObject` if the context was closed.
    ///
    /// # Safety
    /// `context` is null or came from `ibv_open_device`, and is not closed while the reference
    /// lives.
    pub(crate) unsafe fn find_raw_or_inherited<'a>(context: *mut ibv_context) -> Result<&'a Context> {
        // SAFETY: the caller upholds the same requirements (`# Safety` above).
        unsafe { Context::find_or_inherited(Context::start_of(context)?) }
    }

    /// # Errors
    /// The errors of [`AbiObject::destroy`].
    ///
    /// # Safety
    /// The requirements of [`AbiObject::destroy`], for the context that `ibv_open_device` returned
    /// as `context`.
    pub(crate) unsafe fn close(context: *mut ibv_context) -> Result<()> {
        // SAFETY: the caller upholds the same requirements (`# Safety` above).
        unsafe {
            Context::destroy(Context::start_of(context)?, |object| {
                object.rails.objects().contexts.retain(|other| other.address != context as usize);
                Ok(())
            })
        }
    }

    /// Returns the address of the `verbs_context` that contains an `ibv_context`.
    ///
    /// # Errors
    /// `Invalid` if the pointer is null.
    ///
    /// # Safety
    /// `context` is null or came from `ibv_open_device`.
    unsafe fn start_of(context: *mut ibv_context) -> Result<*mut verbs_context> {
        if context.is_null() {
            return Err(Error::Invalid(
                "the pointer to the device context is null; pass what ibv_open_device has returned",
            ));
        }
        // SAFETY: `ibv_open_device` returns `Context::address_in`, the address of the field
        // `context` of a `verbs_context`.
        Ok(unsafe { context.byte_sub(mem::offset_of!(verbs_context, context)).cast() })
    }

    /// Returns the address by which programs know the context in a `verbs_context`.
    pub(crate) fn address_in(header: *mut verbs_context) -> *mut ibv_context {
        header.wrapping_byte_add(mem::offset_of!(verbs_context, context)).cast()
    }

    /// Returns the address by which programs know the context.
    pub(crate) fn address(&self) -> *mut ibv_context {
        Context::address_in(self.header.get())
    }

    pub(crate) fn object_entry(&self, address: usize) -> ObjectEntry {
        ObjectEntry { address, events: Arc::clone(&self.events) }
    }

    /// Removes an object that is being destroyed from the object table, and its events from the
    /// context's queue, both under the table's lock. The verb that takes an event holds the same
    /// lock until the event is counted, so no event about the object is queued or taken afterwards.
    pub(crate) fn remove_object<T>(&self, address: usize, remove: impl FnOnce(&mut ObjectTable) -> T) {
        let mut objects = self.rails.objects();
        remove(&mut objects);
        self.events.retain(|event| event.element != address);
    }
}
