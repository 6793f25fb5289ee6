//! The connection manager of a process: the state under a lock, and the thread that waits for the
//! sockets.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
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
use crate::common::close_on_fork::{CloseOnFork, close_on_fork};
use crate::common::lock::lock;
use crate::common::per_process::PerProcess;

/// The manager of this process, from the first call of librdmacm on. The child of a `fork` does not
/// know its parent's identifiers.
static CURRENT: PerProcess<OnceLock<Manager>> = PerProcess::new();

/// The epoll data of the waker. The epoll data of a socket is its identifier's handle, never 0.
const WAKER: u64 = 0;

pub struct Manager {
    /// Dropped before the descriptors, because the number of a closed descriptor can be reused at
    /// once.
    _close_on_fork: [CloseOnFork; 2],
    state: Mutex<ManagerState>,
    epoll: Arc<Epoll>,
    /// Wakes the thread from `epoll_wait`.
    waker: EventFd,
    device: Mutex<Option<Device>>,
    /// The XRC domain of queue pairs and queues for which the program provides none.
    xrc_domain: Mutex<Option<CallerPtr<ibv_xrcd>>>,
}

/// Returns the manager, and creates the manager in the first call of a process.
///
/// # Errors
/// The error of creating the manager's descriptors.
pub fn manager() -> Result<&'static Manager, Errno> {
    let current = CURRENT.get();
    if let Some(manager) = current.get() {
        return Ok(manager);
    }
    let new = Manager::new()?;
    Ok(current.get_or_init(|| new))
}

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
        let close_on_fork = [close_on_fork(waker.as_raw_fd())?, close_on_fork(epoll.0.as_raw_fd())?];
        let state = Mutex::new(ManagerState::new(epoll.clone()));
        Ok(Self {
            state,
            epoll,
            waker,
            device: Mutex::default(),
            xrc_domain: Mutex::default(),
            _close_on_fork: close_on_fork,
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, ManagerState> {
        lock(&self.state)
    }

    /// Returns the device, which the first call opens.
    ///
    /// # Errors
    /// The error of [`Device::open`].
    pub fn device(&self) -> Result<Device, Errno> {
        let mut device = lock(&self.device);
        match *device {
            Some(device) => Ok(device),
            None => {
                let opened = Device::open()?;
                // SAFETY: the context of `Device::open` stays open.
                if let Ok(context) = unsafe { Context::find_raw(opened.context) } {
                    context.rails.set_on_death(on_device_removed);
                }
                Ok(*device.insert(opened))
            }
        }
    }

    /// Returns the XRC domain, which the first call opens.
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
        // SAFETY: the context of `Device::open` stays open, and `init` is a local variable.
        let opened = check_pointer(unsafe { open_xrcd(device.context, &raw mut init) })?;
        *domain = Some(CallerPtr(opened));
        Ok(opened)
    }

    /// Wakes the manager's thread, which then takes new deadlines into account. The first call
    /// starts the thread.
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

    fn run(&self) {
        let mut ready = [EpollEvent::empty(); 64];
        let mut deadline: Option<Instant> = None;
        loop {
            let timeout = deadline.map_or(EpollTimeout::NONE, |deadline| {
                // Rounded up to whole milliseconds, so that the wait ends after the deadline.
                let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
                EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
            });
            // The thread blocks all signals, so the wait does not fail with EINTR. After any other
            // failure, no socket counts as ready.
            let count = self.epoll.wait(&mut ready, timeout).unwrap_or(0);
            let (mut state, now) = (self.lock(), Instant::now());
            for event in &ready[..count] {
                match event.data() {
                    // The read resets the eventfd.
                    WAKER => drop(self.waker.read()),
                    handle => state.on_ready(handle, now),
                }
            }
            deadline = state.on_timer(now);
        }
    }
}
