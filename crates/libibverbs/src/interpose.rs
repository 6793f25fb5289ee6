//! Functions of the C library that this library overrides. An override may call the C library's function of the same name.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

mod device_files;
mod rdma_netlink;
mod run_time_loading;
#[cfg(target_arch = "x86_64")]
pub(crate) mod signal_actions;
#[cfg(target_arch = "x86_64")]
mod signal_masks;

/// The next definition of an overridden function in the search order of the dynamic linker, looked up in the first call.
pub(crate) struct NextFunction<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> NextFunction<F> {
    /// # Safety
    /// `F` is the function pointer type of the C library's function `name`.
    pub(crate) const unsafe fn new(name: &'static CStr) -> NextFunction<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        NextFunction { name, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// Returns the function, or `None` if no other library defines it.
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            // SAFETY: `name` is a C string, and RTLD_NEXT is a valid handle.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.address.store(address, Ordering::Release);
        }
        // SAFETY: by the contract of `new` the address is that of a function of type `F`, and `new` has checked the size.
        (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
    }
}
