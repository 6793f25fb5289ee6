//! An open device, and what its calls return.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use mitra_os_util::close_on_fork::CloseOnFork;
use mitra_os_util::fork_generation;
use mitra_verbs::{Error, Result};
use mitra_verbs_abi::*;
use nix::errno::Errno;

use crate::library::Library;
use crate::link::Link;

/// The port of each device that is used.
pub(crate) const PORT: u8 = 1;

/// Implements `Send` and `Sync` for a type with pointers to objects of libibverbs.
macro_rules! shared_by_threads {
    ($($name:ident),*) => {$(
        // SAFETY: the functions of libibverbs may be called by any thread with any object
        // (`ibv_*(3)`), and the other fields may be shared.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for $name {}
    )*};
}
pub(crate) use shared_by_threads;

const NO_INDEX: u16 = u16::MAX;

/// How the kernel says that it cannot resolve the address of a peer (`rdma_resolve_ip` and the
/// route look-up).
const UNREACHED: [Errno; 4] = [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::ETIMEDOUT, Errno::ENETDOWN];

/// An open device. The drop closes it; all objects of the device hold an `Arc` of it, because the
/// close is no fence: the kernel keeps the device open for queues that are mapped, and traffic goes
/// on.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) raw: *mut ibv_context,
    pub(crate) lib: &'static Library,
    pub(crate) link: Link,
    is_dead: AtomicBool,
    /// The index of the NIC's address in the device's table, as it was read last, or
    /// [`NO_INDEX`].
    gid_index: AtomicU16,
    /// See [`Provider::connect_unreached_peers`](mitra_verbs::Provider::connect_unreached_peers).
    connects_unreached: AtomicBool,
    /// The number of the process that has opened it ([`fork_generation`]).
    owner: u32,
    /// `None` for a descriptor that children keep.
    closed_on_fork: [Option<CloseOnFork>; 2],
}

shared_by_threads!(Context);

impl Context {
    /// # Safety
    /// `raw` is an open context of `lib`, and nobody else closes it.
    pub(crate) unsafe fn new(raw: *mut ibv_context, lib: &'static Library) -> Context {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        let descriptors = unsafe { [(*raw).cmd_fd, (*raw).async_fd] };
        Context {
            raw,
            lib,
            link: Link::default(),
            is_dead: AtomicBool::new(false),
            gid_index: AtomicU16::new(NO_INDEX),
            connects_unreached: AtomicBool::new(false),
            owner: fork_generation::current(),
            closed_on_fork: descriptors.map(CloseOnFork::new),
        }
    }

    /// Whether the device is gone, was reset, or is that of the parent of this process, whose
    /// queues are not mapped here.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire) || self.owner != fork_generation::current()
    }

    /// Returns the index of the NIC's address, as it was read last. `None` if the device has lost
    /// the address.
    pub(crate) fn gid_index(&self) -> Option<u8> {
        u8::try_from(self.gid_index.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn set_gid_index(&self, index: Option<u8>) {
        self.gid_index.store(index.map_or(NO_INDEX, u16::from), Ordering::Relaxed);
    }

    pub(crate) fn connect_unreached_peers(&self) {
        self.connects_unreached.store(true, Ordering::Relaxed);
    }

    /// Whether an error says that the peer is not reached at present, and is tolerated.
    pub(crate) fn tolerates(&self, error: &Error) -> bool {
        let is_unreached = match error {
            Error::System { errno: Some(errno), .. } => UNREACHED.contains(&Errno::from_raw(*errno)),
            _ => false,
        };
        self.connects_unreached.load(Ordering::Relaxed) && (is_unreached || self.gid_index().is_none())
    }

    /// Makes every later call fail. Returns whether the device was alive.
    pub(crate) fn set_dead(&self) -> bool {
        !self.is_dead.swap(true, Ordering::AcqRel)
    }

    /// # Errors
    /// `DeviceFatal` if the device is dead.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_dead() { Err(Error::DeviceFatal) } else { Ok(()) }
    }

    /// Translates the result of a function that returns 0 on success.
    pub(crate) fn check(&self, operation: &'static str, result: c_int) -> Result<()> {
        match result {
            0 => Ok(()),
            result => Err(self.error(operation, self.lib.errno_of(result))),
        }
    }

    /// Translates the result of a function that returns a null pointer on failure.
    pub(crate) fn check_ptr<T>(&self, operation: &'static str, result: *mut T) -> Result<*mut T> {
        if result.is_null() { Err(self.error(operation, self.lib.last_errno())) } else { Ok(result) }
    }

    /// Translates an error number. ENODEV and EIO mean that the device was removed.
    pub(crate) fn error(&self, operation: &'static str, errno: Errno) -> Error {
        match errno {
            Errno::ENODEV | Errno::EIO => {
                self.set_dead();
                Error::DeviceFatal
            }
            Errno::EOPNOTSUPP | Errno::ENOSYS => Error::Unsupported(operation),
            _ => Error::system(operation, &io::Error::from(errno)),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Before the descriptors are closed, whose numbers are then those of other files.
        self.closed_on_fork = [None, None];
        // SAFETY: the context is open, and no object of it is left, since each holds an `Arc`.
        unsafe { (self.lib.close_device)(self.raw) };
    }
}
