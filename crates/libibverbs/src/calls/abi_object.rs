//! Objects that programs hold pointers to.

use std::cell::UnsafeCell;
use std::mem;

/// The C structure at the beginning of an object. Programs read and write it at any time, so nobody holds a reference
/// into it: it is read and written through its address.
#[repr(transparent)]
pub(crate) struct AbiHeader<F>(UnsafeCell<F>);

// SAFETY: `AbiHeader` gives nothing away but an address; who reads or writes through it answers for that.
unsafe impl<F> Send for AbiHeader<F> {}
// SAFETY: as above.
unsafe impl<F> Sync for AbiHeader<F> {}

impl<F> AbiHeader<F> {
    /// With these contents.
    pub(crate) fn new(contents: F) -> AbiHeader<F> {
        AbiHeader(UnsafeCell::new(contents))
    }

    /// All bytes zero: what rdma-core's `calloc` gives its users, who count on it.
    ///
    /// # Safety
    /// `F` must be valid with all bytes zero: integers, pointers, and optional functions are.
    pub(crate) unsafe fn zeroed() -> AbiHeader<F> {
        // SAFETY: the caller's promise.
        AbiHeader::new(unsafe { mem::zeroed() })
    }

    /// Where it lies.
    pub(crate) fn get(&self) -> *mut F {
        self.0.get()
    }
}

/// An object that begins with its C structure.
///
/// # Safety
/// The implementor is `repr(C)` and its first field is a `AbiHeader<Self::C>`.
pub(crate) unsafe trait AbiObject: Sized {
    /// The structure that programs know.
    type C;

    /// Hands it to the program, which gives it back to [`AbiObject::take`].
    fn give(self) -> *mut Self::C {
        Box::into_raw(Box::new(self)).cast()
    }

    /// The object that the program means.
    ///
    /// # Safety
    /// `c` came from [`AbiObject::give`] and was not taken back; nor will it be while the reference lives, which the
    /// manual pages ask of programs: nothing may be used while it is destroyed.
    unsafe fn of<'a>(c: *mut Self::C) -> &'a Self {
        // SAFETY: the caller's promise, and that of the trait about the layout.
        unsafe { &*c.cast::<Self>() }
    }

    /// Takes it back.
    ///
    /// # Safety
    /// As for [`AbiObject::of`], and nobody uses it any more.
    unsafe fn take(c: *mut Self::C) -> Box<Self> {
        // SAFETY: the caller's promise; it was a box before.
        unsafe { Box::from_raw(c.cast::<Self>()) }
    }
}
