//! Functions of the C library that this library overrides. An override may call the overridden
//! function.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Defines a module with the C library's functions of these names. Each type must be the type of
/// the function.
macro_rules! next_functions {
    ($module:ident; $($name:ident: $type:ty;)*) => {
        mod $module {
            use super::*;
            $(
                // SAFETY: this is the type of the C library's function.
                #[expect(non_upper_case_globals, reason = "it has the name of the function")]
                pub(super) static $name: $crate::interpose::NextFunction<$type> = unsafe {
                    $crate::interpose::NextFunction::new($crate::interpose::c_name(concat!(stringify!($name), "\0")))
                };
            )*

            pub(super) fn look_up() {
                $($name.get();)*
            }
        }
    };
}

mod device_files;
mod rdma_netlink;
pub(crate) mod run_time_loading;
#[cfg(target_arch = "x86_64")]
pub(crate) mod signal_actions;
#[cfg(target_arch = "x86_64")]
mod signal_masks;

/// The next definition of an overridden function in the search order of the dynamic linker. The
/// definition is looked up when this library is loaded, or by the first `get`.
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
        // SAFETY: the caller of `new` guarantees that the function has type `F`, and `new` has
        // checked the size.
        (!address.is_null()).then(|| unsafe { transmute_copy(&address) })
    }
}

const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only zero"),
    }
}

/// Looks up the functions of files and sockets when this library is loaded. During a program's
/// call, dlsym(3) could do harm: it takes the linker's lock, even in a signal handler, and clears
/// the error that the program's next dlerror(3) would return.
extern "C" fn look_up() {
    device_files::look_up();
    rdma_netlink::look_up();
}

#[used]
// SAFETY: the section holds addresses of functions of this type, which the dynamic linker calls
// before `main` (System V ABI).
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = look_up;
