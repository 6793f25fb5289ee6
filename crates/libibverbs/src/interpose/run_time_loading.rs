//! `dlopen`, `dlmopen` and `dlvsym`: a program that loads libibverbs or librdmacm while it runs
//! gets this library.
//!
//! In a program that is linked with libibverbs, a preloaded library comes first in the search
//! order. In a program that calls `dlopen`, `dlsym` searches only the library that `dlopen`
//! returned. `dlopen` and `dlmopen` therefore replace the file name by the name of this library.
//! This library's symbols have no versions, so `dlvsym` answers requests for the versions that
//! libibverbs and librdmacm define.
//!
//! The C library's functions depend on their caller: `dlopen` searches the caller's RUNPATH, and
//! for `RTLD_NEXT`, `dlvsym` continues behind the caller's library. The overrides therefore jump to
//! the C library's functions, which preserves the return address.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{transmute, zeroed};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::NextFunction;
use crate::symbols::symbols;

/// The libraries whose functions this library defines: their file names without the version.
static SERVED: [&[u8]; 2] = [b"libibverbs.so", b"librdmacm.so"];
/// The beginning of the names of librdmacm's version nodes.
const RDMACM_NODE: &[u8] = b"RDMACM_";

/// The first three argument registers of a call. A call with fewer arguments leaves some registers
/// undefined. The jump restores these unchanged.
#[repr(C)]
struct Arguments([usize; 3]);

/// A function of any type, at which a call continues.
type Target = unsafe extern "C" fn();

// SAFETY, for all three: only the jumps below call the functions, with the arguments of their
// callers. `Target` stands for their types.
static DLOPEN: NextFunction<Target> = unsafe { NextFunction::new(c"dlopen") };
static DLMOPEN: NextFunction<Target> = unsafe { NextFunction::new(c"dlmopen") };
static DLVSYM: NextFunction<Target> = unsafe { NextFunction::new(c"dlvsym") };

/// Defines a function that passes its arguments to `$prepare`, which may change them, and then
/// jumps to the function that `$prepare` returns.
macro_rules! jump_after {
    ($(#[$doc:meta])* $name:ident($($argument:ty),*), $prepare:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The rules of the C library's function.
        // SAFETY: the function has the arguments of the C library's function, and continues there.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($(_: $argument),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                // 24 bytes align the stack to 16 bytes again after the return address.
                ".cfi_startproc",
                "sub rsp, 24",
                ".cfi_adjust_cfa_offset 24",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov rdi, rsp",
                "call {prepare}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rdx, [rsp + 16]",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "jmp rax",
                ".cfi_endproc",
                prepare = sym $prepare,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "add x0, sp, #16",
                "bl {prepare}",
                // Branch target identification permits a jump to a function through x16.
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_def_cfa_offset 0",
                "br x16",
                ".cfi_endproc",
                prepare = sym $prepare,
            );
        }
    };
}

jump_after! {
    dlopen(*const c_char, c_int), prepare_dlopen
}
jump_after! {
    /// Another namespace gets a copy of this library, with NICs of its own.
    dlmopen(libc::c_long, *const c_char, c_int), prepare_dlmopen
}
jump_after! {
    dlvsym(*mut c_void, *const c_char, *const c_char), prepare_dlvsym
}

/// # Safety
/// The first argument is the file name for `dlopen`: null or the address of a C string.
unsafe extern "C" fn prepare_dlopen(Arguments([file, ..]): &mut Arguments) -> Target {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { redirect(file) };
    DLOPEN.get().unwrap_or(returns_first_argument)
}

/// # Safety
/// The second argument is the file name for `dlmopen`: null or the address of a C string.
unsafe extern "C" fn prepare_dlmopen(Arguments([_, file, _]): &mut Arguments) -> Target {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { redirect(file) };
    DLMOPEN.get().unwrap_or(returns_first_argument)
}

/// # Safety
/// The arguments are a handle for `dlsym`, and two C strings or null.
unsafe extern "C" fn prepare_dlvsym(arguments: &mut Arguments) -> Target {
    let Arguments([result, name, version]) = arguments;
    let [name, version] = [*name, *version].map(ptr::with_exposed_provenance::<c_char>);
    if !name.is_null() && !version.is_null() {
        // SAFETY: the caller passes C strings (`# Safety` above).
        let (name, version) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(version)) };
        let handle = ptr::with_exposed_provenance_mut::<c_void>(*result);
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        if let Some(found) = unsafe { served_symbol(handle, name, version) } {
            *result = found.expose_provenance();
            return returns_first_argument;
        }
    }
    DLVSYM.get().unwrap_or(returns_first_argument)
}

/// Lets NICs of the kernel use the system's libibverbs, which is loaded by the C library's own
/// functions into a namespace without this library.
pub(crate) fn serve_nics_of_the_kernel() {
    if let (Some(dlmopen), Some(dlvsym)) = (DLMOPEN.get(), DLVSYM.get()) {
        // SAFETY: the functions are the C library's, and have these types (`dlopen(3)`,
        // `dlsym(3)`). They do not search by the file of their caller: `dlmopen` gets a name
        // without a directory, and `dlvsym` a handle.
        unsafe {
            mitra_nics::use_own_namespace(mitra_nics::Linker {
                dlmopen: transmute::<Target, Dlmopen>(dlmopen),
                dlvsym: transmute::<Target, Dlvsym>(dlvsym),
            });
        }
    }
}

type Dlmopen = unsafe extern "C" fn(libc::Lmid_t, *const c_char, c_int) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

#[unsafe(naked)]
unsafe extern "C" fn returns_first_argument() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov rax, rdi", "ret");
    // The first argument and the result share a register.
    #[cfg(target_arch = "aarch64")]
    naked_asm!("ret");
}

/// Replaces the name of a served library by the name of this library.
///
/// # Safety
/// `file` is null or the address of a C string.
unsafe fn redirect(file: &mut usize) {
    let name = ptr::with_exposed_provenance::<c_char>(*file);
    // SAFETY: the caller passes a C string (`# Safety` above).
    if !name.is_null() && is_served(unsafe { CStr::from_ptr(name) }.to_bytes()) {
        let own = own_file();
        if !own.is_null() {
            *file = own.expose_provenance();
        }
    }
}

/// `file` may have a directory and a version.
fn is_served(file: &[u8]) -> bool {
    let name = file.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    SERVED.iter().any(|served| {
        name.strip_prefix(*served).is_some_and(|version| version.is_empty() || version.starts_with(b"."))
    })
}

/// Returns this library's definition of a symbol if `version` is the default version in a served
/// library.
///
/// # Safety
/// `handle` is valid for `dlsym`.
unsafe fn served_symbol(handle: *mut c_void, name: &CStr, version: &CStr) -> Option<*mut c_void> {
    let is_default = || {
        symbols().any(|symbol| {
            symbol.is_default
                && symbol.name.as_bytes() == name.to_bytes()
                && symbol.node.as_bytes() == version.to_bytes()
        })
    };
    if !version.to_bytes().starts_with(RDMACM_NODE) && !is_default() {
        return None;
    }
    // The handle may refer to the copy of this library in another namespace, which has the same
    // file. A definition in another file is not used.
    if handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: a name that is not null is a C string of a loaded library, which `handle` keeps
        // loaded.
        unsafe {
            let (file, own) = (file_of(found), own_file());
            if !file.is_null() && !own.is_null() && CStr::from_ptr(file) == CStr::from_ptr(own) {
                return Some(found);
            }
        }
    }
    // SAFETY: `own_handle` returns a valid handle, and `name` is a C string.
    let found = unsafe { libc::dlsym(own_handle()?, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns the handle of this library. It stays valid, because it is never closed.
fn own_handle() -> Option<*mut c_void> {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        let file = own_file();
        let open = DLOPEN.get()?;
        // SAFETY: `dlopen` has this type. `file` is a C string, or null for the program.
        handle = unsafe {
            let open = transmute::<Target, unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void>(open);
            open(file, libc::RTLD_LAZY | libc::RTLD_NOLOAD)
        };
        HANDLE.store(handle, Ordering::Release);
    }
    (!handle.is_null()).then_some(handle)
}

/// Returns the name under which the dynamic linker has loaded this library, or null. The name
/// serves even after the file was removed, because the dynamic linker compares names before it
/// looks for a file.
fn own_file() -> *const c_char {
    // The address of a static, because the address of an exported function might be in the
    // program's procedure linkage table.
    file_of((&raw const SERVED).cast())
}

/// Returns the name of the loaded library that contains an address, or null.
fn file_of(address: *const c_void) -> *const c_char {
    // SAFETY: null pointers are a valid `Dl_info`, and `dladdr` only compares the address.
    unsafe {
        let mut info: libc::Dl_info = zeroed();
        libc::dladdr(address, &raw mut info);
        info.dli_fname
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_names_are_recognised_with_directory_and_version() {
        for served in
            ["libibverbs.so", "libibverbs.so.1", "/usr/lib/libibverbs.so.1.14.44.0", "./librdmacm.so.1"]
        {
            assert!(is_served(served.as_bytes()), "{served}");
        }
        for other in [
            "",
            "libibverbs",
            "libibverbs.sox",
            "xlibibverbs.so.1",
            "libibverbs.so.1/other.so",
            "libmlx5.so.1",
        ] {
            assert!(!is_served(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn other_libraries_are_the_c_librarys() {
        // SAFETY: the arguments are C strings, and the function has the type of `getpid`.
        unsafe {
            let library = dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
            assert!(!library.is_null());
            let version = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };
            let found = dlvsym(library, c"getpid".as_ptr(), version.as_ptr());
            let getpid = transmute::<*mut c_void, extern "C" fn() -> libc::pid_t>(found);
            assert_eq!(u32::try_from(getpid()).expect("a process ID is positive"), std::process::id());
            assert!(dlvsym(library, c"getpid".as_ptr(), c"IBVERBS_1.1".as_ptr()).is_null());
            assert_eq!(libc::dlclose(library), 0);
            assert!(dlopen(c"/no/such/library.so".as_ptr(), libc::RTLD_LAZY).is_null());
        }
    }
}
