//! The one connection manager of a process: its state under a lock, and the thread that waits on its sockets.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::device::Device;
use super::fork::{self, Held};
use super::state::State;
use mitra_os_util::thread;

/// The manager; null until it is needed.
static CURRENT: AtomicPtr<Manager> = AtomicPtr::new(ptr::null_mut());

/// What the waker's readiness is called; identifiers count from 1.
const WAKER: u64 = 0;

/// How long to leave ports alone when there are no descriptors left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(20);

/// A process' connection manager. It lives as long as the process.
pub struct Manager {
    state: Mutex<State>,
    acknowledged: Condvar,
    epoll: Arc<Epoll>,
    waker: EventFd,
    device: Mutex<Option<Device>>,
    _held: [Held; 2],
}

/// The manager, made by the first call in a process.
pub fn manager() -> Result<&'static Manager, Errno> {
    let current = CURRENT.load(Ordering::Acquire);
    if !current.is_null() {
        // SAFETY: a manager that was published is never freed nor borrowed mutably.
        return Ok(unsafe { &*current });
    }
    fork::prepare();
    let new = Box::into_raw(Box::new(Manager::new()?));
    match CURRENT.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => Ok(unsafe { &*new }),
        Err(first) => {
            // SAFETY: `new` was not published; `first` was.
            unsafe {
                drop(Box::from_raw(new));
                Ok(&*first)
            }
        }
    }
}

/// In a fork's child: the parent's manager is no longer ours. Nothing is freed, since a thread that does not exist here may
/// have been in the middle of a change.
pub fn forget() {
    CURRENT.store(ptr::null_mut(), Ordering::Release);
}

impl Manager {
    fn new() -> Result<Self, Errno> {
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        let held = [Held::new(waker.as_raw_fd())?, Held::new(epoll.0.as_raw_fd())?];
        let state = Mutex::new(State::new(epoll.clone()));
        Ok(Self { state, acknowledged: Condvar::new(), epoll, waker, device: Mutex::default(), _held: held })
    }

    /// The state, to look at and change.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device, opened when it is first needed.
    pub fn device(&self) -> Result<Device, Errno> {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        match *device {
            Some(device) => Ok(device),
            None => Ok(*device.insert(Device::open()?)),
        }
    }

    /// Gives the state back until an event was acknowledged.
    pub fn wait_for_acknowledgement<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.acknowledged.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// An event was acknowledged.
    pub fn acknowledged(&self) {
        self.acknowledged.notify_all();
    }

    /// Makes the thread attend to deadlines that are new, and starts it at first.
    pub fn attend(&'static self) -> Result<(), Errno> {
        let mut state = self.lock();
        if !state.has_thread {
            thread::spawn("mitra-rdmacm", || self.run()).map_err(super::socket::errno_of)?;
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
                // Rounded up: a timer that fires early fires again at once.
                let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
                EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
            });
            // Signals are blocked; if one interrupts it nevertheless, nothing was ready.
            let count = self.epoll.wait(&mut ready, timeout).unwrap_or(0);
            let (mut state, now) = (self.lock(), Instant::now());
            for event in &ready[..count] {
                match event.data() {
                    // Only that it was written matters.
                    WAKER => drop(self.waker.read()),
                    handle => state.serve(handle, now),
                }
            }
            deadline = state.tick(now);
            if std::mem::take(&mut state.is_exhausted) {
                drop(state);
                // The port stays readable: asked again at once, it would keep a processor busy.
                std::thread::sleep(EXHAUSTED_PAUSE);
            }
        }
    }
}
