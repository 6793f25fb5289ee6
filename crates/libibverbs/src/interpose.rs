//! Calls of the C library that we stand in front of.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

pub(crate) mod signals;

/// The function that the program would have got without us.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address, looked up once; null if no library has it.
    pub(crate) fn address(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            // SAFETY: the name ends in a zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Release);
        }
        found
    }
}
