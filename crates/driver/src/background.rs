//! The thread that drives vQPs while the program does something else.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mitra_failover::{BuildError, VirtualQpBuilder};
use mitra_os_util::{eventfd, thread};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::driven_qp::{DrivenQp, Slot};
use crate::pollable_qp::PollableQp;
use crate::system;

/// The key of the descriptor that wakes the thread. The vQPs have greater keys.
const WAKE: u64 = 0;
/// The maximum number of descriptors that one call of epoll_wait(2) returns.
const BATCH: usize = 64;

/// A thread that drives any number of vQPs. It sleeps until one of them has something to do.
///
/// The thread ends when the driver, its clones and all its [`DrivenQp`]s have been dropped.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Inner>);

/// The handle of the thread, which the driver and its vQPs share. The thread holds no reference to the handle, so the last drop ends the
/// thread.
pub(crate) struct Inner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread, the driver and its vQPs share.
struct Shared {
    epoll: Epoll,
    wake: EventFd,
    stop: AtomicBool,
    next_key: AtomicU64,
    slots: Mutex<HashMap<u64, Arc<Slot>>>,
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of the operating system if it has no thread or descriptor left.
    pub fn start() -> io::Result<Driver> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let (stop, next_key) = (AtomicBool::new(false), AtomicU64::new(WAKE + 1));
        let shared = Arc::new(Shared { epoll, wake, stop, next_key, slots: Mutex::default() });
        let thread = thread::spawn("mitra-driver", {
            let shared = Arc::clone(&shared);
            move || while shared.round() {}
        })?;
        Ok(Driver(Arc::new(Inner { shared, thread: Some(thread) })))
    }

    /// Builds an unconnected vQP and drives it from now on.
    ///
    /// # Errors
    /// The errors of [`PollableQp::build`].
    pub fn serve(&self, builder: VirtualQpBuilder) -> Result<DrivenQp, BuildError> {
        let qp = PollableQp::build(builder)?;
        let shared = &self.0.shared;
        let key = shared.next_key.fetch_add(1, Ordering::Relaxed);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, key);
        shared.epoll.add(qp.as_fd(), event).map_err(system("adding to an epoll instance"))?;
        let slot = Arc::new(Slot::new(qp));
        shared.slots().insert(key, Arc::clone(&slot));
        // The thread ignores events of a key without a slot. The descriptor stays readable, so none is lost.
        Ok(DrivenQp::new(Arc::clone(&self.0), key, slot))
    }
}

impl Inner {
    /// Stops driving a vQP. The thread may still be driving it when this returns.
    pub(crate) fn remove(&self, key: u64, slot: &Slot) {
        self.shared.slots().remove(&key);
        // The descriptor is in the epoll instance, so this does not fail.
        let _ = self.shared.epoll.delete(slot.lock().as_fd());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        eventfd::signal(&self.shared.wake);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a vQP has something to do, and drives it. Returns false when the thread must end.
    fn round(&self) -> bool {
        let mut events = [EpollEvent::empty(); BATCH];
        // A signal cannot interrupt this thread, and its arguments are valid.
        let count = self.epoll.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
        for event in &events[..count] {
            if event.data() == WAKE {
                eventfd::clear(&self.wake);
                continue;
            }
            let slot = self.slots().get(&event.data()).cloned();
            if let Some(slot) = slot {
                slot.drive();
            }
        }
        !self.stop.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({} virtual queue pairs)", self.shared.slots().len())
    }
}
