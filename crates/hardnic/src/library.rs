//! The functions of the system's libibverbs, which is loaded at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_os_util::fork_generation;
use mitra_verbs_abi::*;
use nix::errno::Errno;

/// The name by which the loader finds the library.
const NAME: &CStr = c"libibverbs.so.1";

/// Why the system's libibverbs cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The loader does not find the library.
    #[error(
        "libibverbs.so.1 cannot be loaded ({0}); install rdma-core: libibverbs1 and ibverbs-providers on Debian, libibverbs on Fedora"
    )]
    NotFound(String),
    /// This process and its ancestors have loaded the library as often as the loader permits.
    #[error("libibverbs.so.1 cannot be loaded in a child of {0} forks; open the device fewer forks deep")]
    TooManyForks(u32),
    /// The loader has no room for the library in another namespace.
    #[error(
        "libibverbs.so.1 cannot be loaded into a namespace of its own ({0}); set \
         GLIBC_TUNABLES=glibc.rtld.nns=16, and open the device fewer forks deep"
    )]
    NoRoom(String),
    /// The library is too old.
    #[error("libibverbs.so.1 has no {symbol} of {version}; install rdma-core 32 or newer")]
    TooOld {
        /// The function that is missing.
        symbol: &'static str,
        /// The version node in which it is searched.
        version: &'static str,
    },
}

/// Declares the functions with their version nodes. The types are those of the manual pages.
macro_rules! functions {
    ($($name:ident @ $symbol:literal $version:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library. The objects that they return may be used by all threads
        /// (`ibv_*(3)`: the library is thread-safe).
        #[derive(Debug)]
        pub(crate) struct Library {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
            /// Returns where the C library of these functions keeps `errno`.
            errno_location: unsafe extern "C" fn() -> *mut c_int,
        }

        impl Library {
            /// # Safety
            /// `handle` is the handle of a loaded libibverbs, which is never unloaded.
            unsafe fn resolve(handle: *mut c_void, dlvsym: Dlvsym) -> Result<Library, LibraryError> {
                Ok(Library {
                    // SAFETY: the caller upholds the same requirement (`# Safety` above).
                    errno_location: unsafe { errno_location(handle)? },
                    $($name: {
                        let (symbol, version) = (concat!($symbol, "\0"), concat!($version, "\0"));
                        // SAFETY: the handle is valid, and both strings end with a zero.
                        let address = unsafe {
                            dlvsym(handle, symbol.as_ptr().cast(), version.as_ptr().cast())
                        };
                        if address.is_null() {
                            return Err(LibraryError::TooOld { symbol: $symbol, version: $version });
                        }
                        // SAFETY: the symbol with this version has this type in every release
                        // (`verbs.h`), and a function pointer has the size of an address.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $result)?>(
                                address,
                            )
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    fork_init @ "ibv_fork_init" "IBVERBS_1.1": fn() -> c_int;
    get_device_list @ "ibv_get_device_list" "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
    free_device_list @ "ibv_free_device_list" "IBVERBS_1.1": fn(*mut *mut ibv_device);
    open_device @ "ibv_open_device" "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
    close_device @ "ibv_close_device" "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
    query_device @ "ibv_query_device" "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port @ "ibv_query_port" "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    query_gid_table @ "_ibv_query_gid_table" "IBVERBS_1.11":
        fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    alloc_pd @ "ibv_alloc_pd" "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
    dealloc_pd @ "ibv_dealloc_pd" "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
    reg_mr_iova2 @ "ibv_reg_mr_iova2" "IBVERBS_1.8":
        fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    dereg_mr @ "ibv_dereg_mr" "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
    create_comp_channel @ "ibv_create_comp_channel" "IBVERBS_1.0":
        fn(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel @ "ibv_destroy_comp_channel" "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
    create_cq @ "ibv_create_cq" "IBVERBS_1.1":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    resize_cq @ "ibv_resize_cq" "IBVERBS_1.1": fn(*mut ibv_cq, c_int) -> c_int;
    destroy_cq @ "ibv_destroy_cq" "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
    get_cq_event @ "ibv_get_cq_event" "IBVERBS_1.1":
        fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ack_cq_events @ "ibv_ack_cq_events" "IBVERBS_1.1": fn(*mut ibv_cq, c_uint);
    create_srq @ "ibv_create_srq" "IBVERBS_1.1":
        fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    modify_srq @ "ibv_modify_srq" "IBVERBS_1.1": fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    destroy_srq @ "ibv_destroy_srq" "IBVERBS_1.1": fn(*mut ibv_srq) -> c_int;
    create_qp @ "ibv_create_qp" "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp @ "ibv_modify_qp" "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    query_qp @ "ibv_query_qp" "IBVERBS_1.1":
        fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    destroy_qp @ "ibv_destroy_qp" "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
    create_ah @ "ibv_create_ah" "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    destroy_ah @ "ibv_destroy_ah" "IBVERBS_1.1": fn(*mut ibv_ah) -> c_int;
    get_async_event @ "ibv_get_async_event" "IBVERBS_1.1":
        fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ack_async_event @ "ibv_ack_async_event" "IBVERBS_1.1": fn(*mut ibv_async_event);
}

/// `dlmopen(3)`.
type Dlmopen = unsafe extern "C" fn(libc::Lmid_t, *const c_char, c_int) -> *mut c_void;
/// `dlvsym(3)`.
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The functions of the C library that load a library into a namespace of its own.
#[derive(Clone, Copy)]
pub struct Linker {
    /// `dlmopen(3)`.
    pub dlmopen: Dlmopen,
    /// `dlvsym(3)`.
    pub dlvsym: Dlvsym,
}

impl fmt::Debug for Linker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Linker")
    }
}

static LINKER: OnceLock<Linker> = OnceLock::new();

/// Lets this process load the system's libibverbs into a namespace of its own, for a library that
/// defines the functions of libibverbs itself: in the program's namespace, libibverbs and its
/// drivers would call that library. Has an effect until a device is opened or listed.
///
/// # Safety
/// Both are the C library's functions, not those of a library that overrides them.
pub unsafe fn use_own_namespace(linker: Linker) {
    let _ = LINKER.set(linker); // a second call passes the same functions
}

static SUPPORTS_FORK: AtomicBool = AtomicBool::new(false);

/// Asks the library, or the one that is loaded later, to let children of this process use their
/// memory, although it is registered here. Returns the result of `ibv_fork_init(3)`.
pub fn support_fork() -> c_int {
    SUPPORTS_FORK.store(true, Ordering::Relaxed);
    let copy = LIBRARIES.get(fork_generation::current() as usize - 1);
    match copy.and_then(OnceLock::get) {
        // SAFETY: the call has no conditions.
        Some(Ok(library)) => unsafe { (library.fork_init)() },
        _ => 0,
    }
}

/// The largest number of copies of the library. The loader has 16 namespaces (`DL_NNS`), of which
/// the program's is one.
const MAX_COPIES: usize = 15;

/// A library, or why there is none, of this process and of each of its ancestors.
static LIBRARIES: [OnceLock<Result<Library, LibraryError>>; MAX_COPIES] =
    [const { OnceLock::new() }; MAX_COPIES];

impl Library {
    /// Returns the library, which the first call in this process loads. A forked child loads a
    /// copy: another thread of the parent may have held a lock of the parent's, and that copy's C
    /// library does not know of the fork.
    ///
    /// # Errors
    /// That of the first call.
    pub(crate) fn load() -> Result<&'static Library, LibraryError> {
        // In a program that registers no handler for forks, there is one generation.
        let forks = fork_generation::current() - 1;
        let copy = LIBRARIES.get(forks as usize).ok_or(LibraryError::TooManyForks(forks))?;
        copy.get_or_init(Library::load_copy).as_ref().map_err(Clone::clone)
    }

    fn load_copy() -> Result<Library, LibraryError> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY, for both: the name ends with a zero. Constructors of the library run here, as in
        // any program that is linked with it.
        let (handle, dlvsym) = match LINKER.get() {
            Some(Linker { dlmopen, dlvsym }) => {
                (unsafe { dlmopen(libc::LM_ID_NEWLM, NAME.as_ptr(), flags) }, *dlvsym)
            }
            None => (unsafe { libc::dlopen(NAME.as_ptr(), flags) }, libc::dlvsym as Dlvsym),
        };
        if handle.is_null() {
            let reason = last_loader_error();
            return Err(match reason.contains("static TLS") || reason.contains("namespaces") {
                true => LibraryError::NoRoom(reason),
                false => LibraryError::NotFound(reason),
            });
        }
        // SAFETY: the handle was just opened and is never closed.
        let library = unsafe { Library::resolve(handle, dlvsym)? };
        if SUPPORTS_FORK.load(Ordering::Relaxed) {
            // The program's call has succeeded already. A kernel that copies registered pages at a
            // fork needs no support.
            // SAFETY: the call has no conditions.
            unsafe { (library.fork_init)() };
        }
        Ok(library)
    }

    /// Returns the error number of the last call that failed in this thread. It is in the C library
    /// of libibverbs' namespace, not in that of this code.
    pub(crate) fn last_errno(&self) -> Errno {
        // SAFETY: the function returns the address of an integer of this thread.
        Errno::from_raw(unsafe { *(self.errno_location)() })
    }

    /// Returns the error number of a result that is not 0. Some functions return it, with either
    /// sign, and others return -1 and set `errno`.
    pub(crate) fn errno_of(&self, result: c_int) -> Errno {
        match result {
            -1 => self.last_errno(),
            result => Errno::from_raw(result.saturating_abs()),
        }
    }
}

/// Finds the function of the C library that libibverbs uses.
///
/// # Safety
/// `handle` is the handle of a loaded libibverbs.
unsafe fn errno_location(handle: *mut c_void) -> Result<unsafe extern "C" fn() -> *mut c_int, LibraryError> {
    // SAFETY: the handle is valid, and the name ends with a zero. The search includes the libraries
    // that libibverbs needs.
    let address = unsafe { libc::dlsym(handle, c"__errno_location".as_ptr()) };
    if address.is_null() {
        return Err(LibraryError::NotFound(last_loader_error()));
    }
    // SAFETY: the function has this type (`errno.h`).
    Ok(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_int>(address) })
}

fn last_loader_error() -> String {
    // SAFETY: the call has no conditions. Its result is a string or null, and valid until the next
    // call of the loader by this thread.
    let message: *const c_char = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: the string ends with a zero, and no call of the loader is made before it is copied.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
