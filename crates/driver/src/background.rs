//! The thread that drives vQPs while the program does something else.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mitra_failover::{BuildError, VirtualQpBuilder};
use mitra_os_util::thread;
use mitra_os_util::wake_signal::{Step, WakeSignal};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::driven_qp::DrivenQp;
use crate::pollable_qp::PollableQp;
use crate::slot::Slot;
use crate::system;

/// The key of the descriptor that wakes the thread.
const WAKE: u64 = 0;
/// The key of the asynchronous events of all NICs. The thread watches them once for all vQPs,
/// because Linux lets no more than 500 instances inside another one watch a descriptor
/// (`path_limits` in `fs/eventpoll.c`).
const NICS: u64 = 1;
/// The key of the first vQP.
const FIRST: u64 = 2;
/// The maximum number of descriptors that one call of epoll_wait(2) returns.
const BATCH: usize = 64;

/// A thread that drives any number of vQPs. The thread sleeps until a vQP has something to do.
///
/// The thread ends when the driver, its clones and all its [`DrivenQp`]s have been dropped.
#[derive(Clone, Debug)]
pub struct Driver(Arc<Inner>);

/// The handle of the thread, which the driver and its vQPs share. The thread holds no reference to
/// the handle, so the last drop ends the thread.
pub(crate) struct Inner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    epoll: Epoll,
    signal: WakeSignal,
    next_key: AtomicU64,
    slots: Mutex<HashMap<u64, Arc<Slot<PollableQp>>>>,
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// The error of the operating system if it has no thread or descriptor left.
    pub fn start() -> io::Result<Driver> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let signal = WakeSignal::new()?;
        epoll.add(&signal, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        let next_key = AtomicU64::new(FIRST);
        let shared = Arc::new(Shared { epoll, signal, next_key, slots: Mutex::default() });
        let thread = thread::spawn("mitra-driver", {
            let shared = Arc::clone(&shared);
            move || shared.signal.run(|| shared.round())
        })?;
        Ok(Driver(Arc::new(Inner { shared, thread: Some(thread) })))
    }

    /// Builds an unconnected vQP and drives it from now on.
    ///
    /// # Errors
    /// The errors of [`PollableQp::build`].
    pub fn serve(&self, builder: VirtualQpBuilder) -> Result<DrivenQp, BuildError> {
        let qp = PollableQp::build_beside_nics(builder)?;
        let shared = &self.0.shared;
        for fd in qp.vqp().domain().nics().iter().filter_map(|nic| nic.provider.async_event_fd()) {
            // The events of NICs stay in the NICs until a vQP takes them.
            let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, NICS);
            match shared.epoll.add(fd, event) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(system("adding to an epoll instance")(error).into()),
            }
        }
        let key = shared.next_key.fetch_add(1, Ordering::Relaxed);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, key);
        shared.epoll.add(qp.as_fd(), event).map_err(system("adding to an epoll instance"))?;
        let slot = Arc::new(Slot::new(qp));
        shared.slots().insert(key, Arc::clone(&slot));
        // The thread ignores events of a key without a slot. The descriptor stays readable, but the
        // thread is told only once of an event of a NIC.
        slot.drive();
        Ok(DrivenQp::new(Arc::clone(&self.0), key, slot))
    }
}

impl Inner {
    /// Stops driving a vQP. The thread may still be driving the vQP when the call returns.
    pub(crate) fn remove(&self, key: u64, slot: &Slot<PollableQp>) {
        self.shared.slots().remove(&key);
        // The descriptor is in the epoll instance, so this does not fail.
        let _ = self.shared.epoll.delete(slot.lock().as_fd());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.signal.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, HashMap<u64, Arc<Slot<PollableQp>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a vQP has something to do, and drives it.
    fn round(&self) -> Step {
        let mut events = [EpollEvent::empty(); BATCH];
        // A signal cannot interrupt this thread, and the arguments of the call are valid.
        let count = self.epoll.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
        let mut is_signalled = false;
        for event in &events[..count] {
            is_signalled |= event.data() == WAKE;
            if event.data() == NICS {
                let slots: Vec<_> = self.slots().values().cloned().collect();
                slots.iter().for_each(|slot| slot.drive());
            }
            let slot = self.slots().get(&event.data()).cloned();
            if let Some(slot) = slot {
                slot.drive();
            }
        }
        Step::Slept { is_signalled }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({} virtual queue pairs)", self.shared.slots().len())
    }
}
