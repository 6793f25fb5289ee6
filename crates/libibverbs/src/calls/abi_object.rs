//! The memory layout of objects to which programs hold pointers: boxes that begin with a C structure.

use std::cell::UnsafeCell;
use std::mem;

/// The C structure at the beginning of an object. Programs may read and write it, so the library holds no reference to it while C code
/// can run, and accesses it through its address.
#[repr(transparent)]
pub(crate) struct AbiHeader<F>(UnsafeCell<F>);

// SAFETY: `AbiHeader` gives access only to the address of its content. Code that reads or writes through the address is `unsafe`, and
// must exclude data races.
unsafe impl<F> Send for AbiHeader<F> {}
// SAFETY: as for `Send`.
unsafe impl<F> Sync for AbiHeader<F> {}

impl<F> AbiHeader<F> {
    /// Wraps a C structure.
    pub(crate) fn new(contents: F) -> AbiHeader<F> {
        AbiHeader(UnsafeCell::new(contents))
    }

    /// Returns a C structure of zeros. Programs rely on zeros in the fields that a verb does not set, because rdma-core
    /// allocates with `calloc`.
    ///
    /// # Safety
    /// All zeros must be a valid `F`, as they are for integers, raw pointers, and `Option`s of function pointers.
    pub(crate) unsafe fn zeroed() -> AbiHeader<F> {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        AbiHeader::new(unsafe { mem::zeroed() })
    }

    /// Returns the address of the C structure.
    pub(crate) fn get(&self) -> *mut F {
        self.0.get()
    }
}

/// An object that begins with its C structure.
///
/// # Safety
/// The implementor is `repr(C)`, and its first field is an `AbiHeader<Self::C>`.
pub(crate) unsafe trait AbiObject: Sized {
    /// The C structure.
    type C;

    /// Moves the object to a box, and returns the address for the program. [`AbiObject::from_raw`] takes the object back.
    fn into_raw(self) -> *mut Self::C {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Returns the object that a program's pointer refers to.
    ///
    /// # Safety
    /// `c` came from [`AbiObject::into_raw`], and is not passed to [`AbiObject::from_raw`] while the reference lives.
    unsafe fn borrow_raw<'a>(c: *mut Self::C) -> &'a Self {
        // SAFETY: `c` came from `into_raw` and was not passed to `from_raw`, so it is the address of a live `Self`.
        unsafe { &*c.cast::<Self>() }
    }

    /// Takes the object back from the program.
    ///
    /// # Safety
    /// `c` came from [`AbiObject::into_raw`], is passed to this function once, and no reference to the object lives.
    unsafe fn from_raw(c: *mut Self::C) -> Box<Self> {
        // SAFETY: `c` came from `into_raw`, which leaked a `Box<Self>`, and the caller guarantees that nothing else uses the
        // object.
        unsafe { Box::from_raw(c.cast::<Self>()) }
    }
}
