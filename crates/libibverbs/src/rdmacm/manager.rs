//! The connection manager of a process: the state under its lock, and the thread that waits for the
//! sockets.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mitra_os_util::thread;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::caller_ptr::CallerPtr;
use super::device::Device;
use super::manager_state::ManagerState;
use super::rdma_port::errno_of;
use super::return_code::check_pointer;
use crate::abi::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_xrcd, ibv_xrcd_init_attr};
use crate::calls::context::Context;
use crate::calls::xrcd::open_xrcd;
use crate::common::close_on_fork::CloseOnFork;
use crate::common::lock::lock;

/// The manager of this process. Null before the first call of librdmacm, also in the child of a
/// `fork`.
static CURRENT: AtomicPtr<Manager> = AtomicPtr::new(ptr::null_mut());

/// The epoll data of the waker. The epoll data of a socket is the handle of its identifier, which
/// is never 0.
const WAKER: u64 = 0;

/// A process' connection manager. It is never freed.
pub struct Manager {
    /// Dropped before the descriptors that it names, because a closed number can be reused at once.
    _close_on_fork: [CloseOnFork; 2],
    state: Mutex<ManagerState>,
    acknowledged: Condvar,
    epoll: Arc<Epoll>,
    /// Wakes the thread from `epoll_wait`.
    waker: EventFd,
    device: Mutex<Option<Device>>,
    /// The XRC domain of queue pairs and queues for which the program provides none.
    xrc_domain: Mutex<Option<CallerPtr<ibv_xrcd>>>,
}

/// Returns the manager, and creates it in the first call of a process.
///
/// # Errors
/// The error of creating the manager's descriptors.
pub fn manager() -> Result<&'static Manager, Errno> {
    let current = CURRENT.load(Ordering::Acquire);
    if !current.is_null() {
        // SAFETY: CURRENT holds a pointer from `Box::into_raw` that is never freed or borrowed
        // mutably after it was stored.
        return Ok(unsafe { &*current });
    }
    register_fork_handler();
    let new = Box::into_raw(Box::new(Manager::new()?));
    match CURRENT.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `new` is now in CURRENT and therefore never freed.
        Ok(_) => Ok(unsafe { &*new }),
        Err(first) => {
            // SAFETY: another thread stored `first`, so no other thread has seen `new`, and `first`
            // is never freed.
            unsafe {
                drop(Box::from_raw(new));
                Ok(&*first)
            }
        }
    }
}

/// Registers [`reset_after_fork`] once in a process.
fn register_fork_handler() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Two threads may register the handler twice, which has no effect. None waits for another one,
    // which would not exist in the child of a fork.
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handler has the required signature and does only what is allowed in the child
        // of a `fork` of a process with threads. A failure, which only a lack of memory causes, is
        // ignored: children then use the parent's identifiers.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(reset_after_fork)) };
        REGISTERED.store(true, Ordering::Release);
    }
}

/// Removes the manager in the child of a `fork`, so the child does not know the parent's
/// identifiers. [`CloseOnFork`] closes its descriptors. The memory of the manager is not freed,
/// because another thread of the parent may have been changing it at the `fork`.
extern "C" fn reset_after_fork() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

/// Reports the end of the device to the identifiers of this process.
fn on_device_removed() {
    if let Ok(manager) = manager() {
        manager.lock().on_device_removed();
    }
}

impl Manager {
    fn new() -> Result<Self, Errno> {
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        let close_on_fork = [CloseOnFork::new(waker.as_raw_fd())?, CloseOnFork::new(epoll.0.as_raw_fd())?];
        let state = Mutex::new(ManagerState::new(epoll.clone()));
        Ok(Self {
            state,
            acknowledged: Condvar::new(),
            epoll,
            waker,
            device: Mutex::default(),
            xrc_domain: Mutex::default(),
            _close_on_fork: close_on_fork,
        })
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, ManagerState> {
        lock(&self.state)
    }

    /// Returns the device, and opens it in the first call.
    ///
    /// # Errors
    /// The error of [`Device::open`].
    pub fn device(&self) -> Result<Device, Errno> {
        let mut device = lock(&self.device);
        match *device {
            Some(device) => Ok(device),
            None => {
                let opened = Device::open()?;
                // SAFETY: `Device::open` has opened the context, which stays open.
                if let Ok(context) = unsafe { Context::find_raw(opened.context) } {
                    context.rails.set_on_death(on_device_removed);
                }
                Ok(*device.insert(opened))
            }
        }
    }

    /// Returns the XRC domain, and opens it in the first call. It stays open.
    ///
    /// # Errors
    /// The error of [`device`](Self::device) or of `ibv_open_xrcd`.
    pub fn xrc_domain(&self) -> Result<*mut ibv_xrcd, Errno> {
        let device = self.device()?;
        let mut domain = lock(&self.xrc_domain);
        if let Some(CallerPtr(domain)) = *domain {
            return Ok(domain);
        }
        let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: `Device::open` has opened the context, which stays open, and `init` is a local
        // variable.
        let opened = check_pointer(unsafe { open_xrcd(device.context, &raw mut init) })?;
        *domain = Some(CallerPtr(opened));
        Ok(opened)
    }

    /// Unlocks the state, waits for [`notify_acknowledged`](Self::notify_acknowledged), and locks
    /// the state again. The wait may also end without a cause, so callers check their condition in
    /// a loop.
    pub fn wait_for_acknowledgement<'a>(
        &self,
        state: MutexGuard<'a, ManagerState>,
    ) -> MutexGuard<'a, ManagerState> {
        self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the calls that wait for an acknowledgement.
    pub fn notify_acknowledged(&self) {
        self.acknowledged.notify_all();
    }

    /// Wakes the manager's thread, so that it takes new deadlines into account. Starts the thread
    /// in the first call.
    ///
    /// # Errors
    /// The error of creating the thread or of writing to the waker.
    pub fn wake_thread(&'static self) -> Result<(), Errno> {
        let mut state = self.lock();
        if !state.has_thread {
            thread::spawn("mitra-rdmacm", || self.run()).map_err(errno_of)?;
            state.has_thread = true;
        }
        drop(state);
        self.waker.write(1).map(drop)
    }

    /// The body of the manager's thread.
    fn run(&self) {
        let mut ready = [EpollEvent::empty(); 64];
        let mut deadline: Option<Instant> = None;
        loop {
            let timeout = deadline.map_or(EpollTimeout::NONE, |deadline| {
                // Rounded up to whole milliseconds, so that the deadline has passed when the wait
                // ends.
                let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
                EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
            });
            // The wait should not fail, because the thread blocks all signals. A failure is treated
            // as a wait without ready sockets.
            let count = self.epoll.wait(&mut ready, timeout).unwrap_or(0);
            let (mut state, now) = (self.lock(), Instant::now());
            for event in &ready[..count] {
                match event.data() {
                    // Makes the eventfd unreadable. Its value is not used.
                    WAKER => drop(self.waker.read()),
                    handle => state.on_ready(handle, now),
                }
            }
            deadline = state.on_timer(now);
        }
    }
}
