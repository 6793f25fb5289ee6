//! Calls of the C library that we stand in front of.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

mod files;
#[cfg(target_arch = "x86_64")]
mod masks;
#[cfg(target_arch = "x86_64")]
pub(crate) mod signals;

/// The function that the program would have got without us.
pub(crate) struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    /// `F` is a function pointer, of the type that C libraries give that name.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Next<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next { name, found: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// The function, looked up once; none if no library has it.
    pub(crate) fn get(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            // SAFETY: the name ends in a zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.found.store(found, Ordering::Release);
        }
        // SAFETY: by the word of who made this.
        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
    }
}
