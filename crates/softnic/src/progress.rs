//! What the callers and the progress thread share, and the thread's life.
//!
//! A caller that polls drives the NIC itself, and while it holds the [lease](crate::lease) the thread sleeps on a
//! timer. It must not sleep on the socket then: each packet would wake it, to fight the poller for the processor.
//! Without a lease the thread drives the NIC and sleeps on the socket, so that one-sided operations on a passive
//! process complete and events reach who waits for them. While such a process is busy with its peers the thread
//! [spins](crate::attention) instead. A program that waits for its data in memory polls in between, and is not given the
//! lease.

use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle};

use mitra_verbs::{AsyncEvent, Error, Result, Time};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::attention::Runner;
use crate::channel::{Bells, EventQueue, clear, signal};
use crate::clock;
use crate::engine::{Driver, Engine};
use crate::lease::{ABSENT, LEASE};
use crate::socket::Socket;

/// While the NIC was active within [`ACTIVE`], the thread wakes at least this often, so that who posts a request
/// need not wake it to watch over the time-out.
const LINGER: Duration = Duration::from_millis(5);
/// See [`LINGER`].
const ACTIVE: Duration = Duration::from_millis(100);

/// Forks of which this process is the child.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// To be called in the child of a fork (`pthread_atfork`). The NICs that it inherited are its parent's: their threads are not here, and may
/// have held their locks. In the child they are dead.
pub fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A NIC's lock and what stands beside it.
pub(crate) struct Shared {
    /// [`FORKS`] when it was made.
    born: u32,
    engine: Mutex<Engine>,
    /// Callers that wait for the lock.
    waiting: AtomicU32,
    stop: AtomicBool,
    /// Wakes the thread.
    wake: EventFd,
    events: Arc<EventQueue<AsyncEvent>>,
}

/// A NIC that is locked. Who is to hear of something is woken when it no longer is.
pub(crate) struct Locked<'a> {
    engine: MutexGuard<'a, Engine>,
    /// Behind the guard: fields are dropped in this order.
    bells: Bells,
}

impl<'a> Locked<'a> {
    fn new(engine: MutexGuard<'a, Engine>) -> Locked<'a> {
        Locked { engine, bells: Bells::default() }
    }
}

impl Deref for Locked<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.bells = std::mem::take(&mut self.engine.completions.bells);
    }
}

/// Reports the NIC's death when the thread ends in a panic, its own or one that it finds.
struct Obituary<'a>(&'a Shared);

impl Drop for Obituary<'_> {
    fn drop(&mut self) {
        if self.0.engine.is_poisoned() {
            self.0.events.push_once(AsyncEvent::DeviceFatal);
        }
    }
}

/// What the thread sleeps on.
pub(crate) struct Sleep {
    /// None while somebody polls, or while the NIC is dead.
    socket: Option<Arc<Socket>>,
    /// Those of multicast groups, as long as that.
    groups: Vec<Arc<Socket>>,
    /// Something waits for room in the socket's buffer.
    blocked: bool,
    until: Option<Time>,
}

impl Shared {
    pub(crate) fn new(engine: Engine, events: Arc<EventQueue<AsyncEvent>>) -> io::Result<Shared> {
        Ok(Shared {
            born: FORKS.load(Ordering::Relaxed),
            events,
            engine: Mutex::new(engine),
            waiting: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            wake: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        })
    }

    /// Locks the NIC.
    ///
    /// # Errors
    /// `DeviceFatal` if a thread panicked while it held the lock: the NIC may be half way through anything. Or if this is the child of
    /// the process whose NIC it is.
    pub(crate) fn lock(&self) -> Result<Locked<'_>> {
        if self.is_inherited() {
            return Err(Error::DeviceFatal);
        }
        match self.engine.try_lock() {
            Ok(engine) => Ok(Locked::new(engine)),
            Err(TryLockError::Poisoned(_)) => Err(self.found_dead()),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let engine = self.engine.lock();
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                engine.map(Locked::new).map_err(|_| self.found_dead())
            }
        }
    }

    /// Whether this is the child of the process whose NIC it is.
    pub(crate) fn is_inherited(&self) -> bool {
        self.born != FORKS.load(Ordering::Relaxed)
    }

    /// A thread panicked while it held the lock. The progress thread may sleep, and is to report that.
    fn found_dead(&self) -> Error {
        self.wake();
        Error::DeviceFatal
    }

    /// Locks the NIC if nobody has it and nobody panicked with it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        if self.is_inherited() { None } else { self.engine.try_lock().ok().map(Locked::new) }
    }

    /// Locks the NIC to close it, and says whether it is as it should be: not if a thread panicked while it held the
    /// lock.
    pub(crate) fn lock_to_close(&self) -> (Locked<'_>, bool) {
        match self.engine.lock() {
            Ok(engine) => (Locked::new(engine), true),
            Err(poisoned) => (Locked::new(poisoned.into_inner()), false),
        }
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        signal(&self.wake);
    }

    /// Wakes the thread if something is due before it would wake of itself, and nobody who polls sees to that.
    pub(crate) fn wake_if_due(&self, engine: &mut Engine) {
        if engine.lease.taken() {
            return;
        }
        let Some(due) = engine.next_due() else { return };
        if engine.thread_wakes.is_none_or(|wakes| due < wakes) {
            engine.thread_wakes = Some(due);
            self.wake();
        }
    }

    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>, name: &str) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        // The kernel cuts thread names at 15 bytes: the end of an address says more than its beginning.
        let tail = name.char_indices().rev().nth(14).map_or(0, |(at, _)| at);
        mitra_os_util::thread::spawn(&name[tail..], move || shared.run())
    }

    /// Ends the thread; after that the caller joins it.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn run(&self) {
        let _obituary = Obituary(self);
        while !self.stop.load(Ordering::Acquire) {
            let Ok(mut engine) = self.lock() else { return };
            let sleep = self.round(&mut engine);
            engine.thread_wakes = match &sleep {
                Some(sleep) => sleep.until,
                // It looks once more before it sleeps.
                None => Some(Time::ZERO),
            };
            drop(engine);
            match sleep {
                Some(sleep) => self.sleep(&sleep),
                None if self.waiting.load(Ordering::Relaxed) > 0 => thread::yield_now(),
                None => {}
            }
        }
    }

    /// Does what there is to do; none if there may be more.
    pub(crate) fn round(&self, engine: &mut Engine) -> Option<Sleep> {
        let now = clock::now();
        if engine.lease.look() && engine.host_access().is_ok() {
            // A poller that always finds completions keeps the lease and drives nothing; and one that waits for its data in
            // memory is not there when it comes.
            if engine.driven.is_none_or(|(_, at)| now - at >= ABSENT) {
                let waited = engine.drive(now, Driver::Thread) > 0;
                let ran = engine.poller.filter(|_| waited).and_then(Runner::used);
                engine.lease.absent(now, ran);
            } else {
                engine.lease.present();
            }
            if !engine.lease.taken() {
                return None;
            }
            let until = Some(now + LEASE);
            return Some(Sleep { socket: None, groups: Vec::new(), blocked: false, until });
        }
        if engine.drive(now, Driver::Thread) > 0 {
            engine.spin.received(now);
            return None;
        }
        if engine.spin.goes_on(now, engine.called) && !engine.completions.awaited() {
            return None;
        }
        engine.flush_capture();
        let linger = (now - engine.active < ACTIVE).then_some(now + LINGER);
        let is_alive = engine.dma_ok();
        Some(Sleep {
            socket: engine.socket.clone().filter(|_| is_alive),
            groups: if is_alive { engine.group_sockets() } else { Vec::new() },
            blocked: engine.outbox.blocked(),
            until: [linger, engine.next_due()].into_iter().flatten().min(),
        })
    }

    fn sleep(&self, sleep: &Sleep) {
        let timeout = sleep.until.map(|until| TimeSpec::from(until.saturating_since(clock::now())));
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        let room = if sleep.blocked { PollFlags::POLLOUT } else { PollFlags::empty() };
        fds.extend(sleep.socket.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN | room)));
        fds.extend(sleep.groups.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        // An interrupted or refused wait is a short one.
        let _ = ppoll(&mut fds, timeout, None);
        if fds[0].any().unwrap_or(false) {
            clear(&self.wake);
        }
    }
}
