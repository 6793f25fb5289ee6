//! The NIC's lock, which callers and the progress thread share, and the progress thread.
//! [`Progress`](crate::progress::Progress) decides which of them drives the NIC.

use core::ops::{Deref, DerefMut};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, JoinHandle};

use mitra_os_util::event_queue::EventQueue;
use mitra_os_util::fork_generation;
use mitra_os_util::interfaces::live_interface;
use mitra_os_util::wake_signal::{Step, WakeSignal};
use mitra_verbs::{AsyncEvent, Error, Result, Time};
use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::clock;
use crate::completion_channel::PendingWakeups;
use crate::engine::Engine;
use crate::link_watch::LinkWatch;
use crate::progress::{Driver, ThreadRole};
use crate::thread_wakeup;
use crate::udp_socket::RoceSocket;

/// A NIC's engine with its lock, and the control of the progress thread.
pub(crate) struct SharedNic {
    /// The number of the process that opened the NIC, as [`fork_generation`] has it. The NIC's
    /// thread does not exist in a child of a fork, and the lock may have been copied in the locked
    /// state.
    fork_generation: u32,
    engine: Mutex<Engine>,
    lock_waiters: AtomicU32,
    /// Wakes and ends the progress thread.
    signal: WakeSignal,
    /// Wakes the progress thread when an interface changes. `None` if the system has no netlink:
    /// the link then stays as it was when the NIC was opened.
    link_watch: Option<LinkWatch>,
    async_events: Arc<EventQueue<AsyncEvent>>,
}

/// The guard of a locked NIC. Consumers of completion events wake after the lock is released.
pub(crate) struct EngineGuard<'a> {
    engine: MutexGuard<'a, Engine>,
    /// This field must follow `engine`, because fields are dropped in declaration order.
    wakeups: PendingWakeups,
}

impl<'a> EngineGuard<'a> {
    fn new(engine: MutexGuard<'a, Engine>) -> EngineGuard<'a> {
        EngineGuard { engine, wakeups: PendingWakeups::default() }
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for EngineGuard<'_> {
    fn drop(&mut self) {
        self.wakeups = std::mem::take(&mut self.engine.completion_queues.wakeups);
    }
}

/// Reports [`AsyncEvent::DeviceFatal`] if the lock is poisoned when the progress thread ends,
/// because the thread or a caller has panicked.
struct PanicReporter<'a>(&'a SharedNic);

impl Drop for PanicReporter<'_> {
    fn drop(&mut self) {
        if self.0.engine.is_poisoned() {
            self.0.async_events.push_once(AsyncEvent::DeviceFatal);
        }
    }
}

/// What wakes the progress thread from a sleep, in addition to [`SharedNic::signal`].
pub(crate) struct WakeConditions {
    /// The NIC's socket, which is readable when a datagram has arrived. `None` while a poller holds
    /// the lease, or if the NIC is dead.
    socket: Option<Arc<RoceSocket>>,
    /// The sockets of multicast groups; empty if `socket` is `None`.
    multicast_sockets: Vec<Arc<RoceSocket>>,
    /// The descriptors of the links through shared memory. While no poller holds the lease, the
    /// other NICs also signal new datagrams by them.
    link_descriptors: Arc<[Arc<OwnedFd>]>,
    /// Whether the thread also wakes when `socket` becomes writable, because packets wait for space
    /// in its send buffer.
    tx_blocked: bool,
    until: Option<Time>,
}

impl WakeConditions {
    /// The conditions while a poller holds the lease.
    fn under_lease(engine: &mut Engine, now: Time, until: Time) -> WakeConditions {
        WakeConditions {
            socket: None,
            multicast_sockets: Vec::new(),
            link_descriptors: engine.links.descriptors(now),
            tx_blocked: false,
            until: Some(until),
        }
    }
}

/// The causes that have ended a sleep of the progress thread.
struct Woken {
    /// [`SharedNic::signal`].
    is_signalled: bool,
    /// The error queue of the NIC's socket has an entry.
    has_socket_error: bool,
    /// The links through shared memory that have an event.
    links: Vec<Arc<OwnedFd>>,
    /// An interface has changed.
    has_link_change: bool,
}

impl SharedNic {
    pub(crate) fn new(engine: Engine, async_events: Arc<EventQueue<AsyncEvent>>) -> io::Result<SharedNic> {
        Ok(SharedNic {
            fork_generation: fork_generation::current(),
            async_events,
            engine: Mutex::new(engine),
            lock_waiters: AtomicU32::new(0),
            signal: WakeSignal::new()?,
            link_watch: LinkWatch::open().ok(),
        })
    }

    /// Locks the NIC.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] if a thread has panicked while it held the lock, because the NIC's
    /// state may be inconsistent, or if a fork has created this process after the NIC was opened.
    pub(crate) fn lock(&self) -> Result<EngineGuard<'_>> {
        if self.is_forked_child() {
            return Err(Error::DeviceFatal);
        }
        match self.engine.try_lock() {
            Ok(engine) => Ok(EngineGuard::new(engine)),
            Err(TryLockError::Poisoned(_)) => Err(self.report_poisoned()),
            Err(TryLockError::WouldBlock) => {
                self.lock_waiters.fetch_add(1, Ordering::Relaxed);
                let engine = self.engine.lock();
                self.lock_waiters.fetch_sub(1, Ordering::Relaxed);
                engine.map(EngineGuard::new).map_err(|_| self.report_poisoned())
            }
        }
    }

    /// Returns whether a fork has created this process after the NIC was opened.
    pub(crate) fn is_forked_child(&self) -> bool {
        self.fork_generation != fork_generation::current()
    }

    /// Wakes the progress thread, which reports the poisoned lock as an event ([`PanicReporter`]).
    /// Returns the error for the caller.
    fn report_poisoned(&self) -> Error {
        self.wake();
        Error::DeviceFatal
    }

    /// Locks the NIC if the lock is free and not poisoned, and this process opened the NIC.
    pub(crate) fn try_lock(&self) -> Option<EngineGuard<'_>> {
        if self.is_forked_child() { None } else { self.engine.try_lock().ok().map(EngineGuard::new) }
    }

    /// Locks the NIC to close it, even if the lock is poisoned. Also returns whether the state is
    /// consistent, which means that the lock is not poisoned.
    pub(crate) fn lock_to_close(&self) -> (EngineGuard<'_>, bool) {
        match self.engine.lock() {
            Ok(engine) => (EngineGuard::new(engine), true),
            Err(poisoned) => (EngineGuard::new(poisoned.into_inner()), false),
        }
    }

    pub(crate) fn wake(&self) {
        self.signal.wake();
    }

    /// Wakes the progress thread if the links have changed. Also wakes it if no poller holds the
    /// lease, and the NIC has work before the thread would wake.
    pub(crate) fn wake_if_due(&self, engine: &mut Engine) {
        // Only the thread connects and accepts links, even while a poller holds the lease.
        if engine.links.take_change() {
            return self.wake();
        }
        if engine.progress.is_lease_held() {
            return;
        }
        let Some(due) = engine.next_due() else { return };
        if engine.progress.must_wake(due) {
            self.wake();
        }
    }

    /// Starts the progress thread. The thread's name is the end of `name`.
    pub(crate) fn start(self: &Arc<Self>, name: &str) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        // Linux limits thread names to 15 bytes, and the end of a NIC's name identifies it better
        // than the beginning.
        let tail = name.char_indices().rev().nth(14).map_or(0, |(index, _)| index);
        mitra_os_util::thread::spawn(&name[tail..], move || shared.run())
    }

    /// Tells the progress thread to end. The caller then joins it.
    pub(crate) fn stop(&self) {
        self.signal.stop();
    }

    fn run(&self) {
        let _panic_reporter = PanicReporter(self);
        self.signal.run(|| self.step());
    }

    /// Runs one round, and sleeps after it if nothing is left to do.
    fn step(&self) -> Step {
        let Ok(mut engine) = self.lock() else { return Step::Ended };
        if let Some(chore) = engine.links.take_chore() {
            drop(engine);
            let done = chore.run();
            let Ok(locked) = self.lock() else { return Step::Ended };
            engine = locked;
            engine.links.finish(done, clock::now());
        }
        let round = |engine: &mut Engine| {
            let sleep = self.run_round(engine).filter(|_| !engine.links.has_chore());
            if sleep.is_none() {
                engine.look_at_links(clock::now());
            }
            sleep
        };
        let sleep = thread_wakeup::run_round(engine, round, |sleep| sleep.until);
        let Some(conditions) = sleep else {
            if self.lock_waiters.load(Ordering::Relaxed) > 0 {
                thread::yield_now();
            }
            return Step::Worked;
        };
        let Woken { is_signalled, has_socket_error, links, has_link_change } = self.sleep(&conditions);
        if !links.is_empty()
            && let Ok(mut engine) = self.lock()
        {
            engine.links.handle_events(&links, clock::now());
        }
        if has_link_change {
            self.read_interface(true);
        }
        // The errors of send calls stay in the queue, and would end every further sleep.
        if has_socket_error && let Ok(mut engine) = self.lock() {
            engine.read_socket_errors();
        }
        Step::Slept { is_signalled }
    }

    /// Runs one round. Returns what the thread sleeps on, or `None` if it runs another round first.
    pub(crate) fn run_round(&self, engine: &mut Engine) -> Option<WakeConditions> {
        let now = clock::now();
        engine.links.end_sleep();
        engine.links.release_idle(now);
        let has_host_access = engine.host_access().is_ok();
        match engine.progress.begin_thread_round(now, has_host_access) {
            ThreadRole::Sleeps(until) => return Some(WakeConditions::under_lease(engine, now, until)),
            ThreadRole::DrivesForHolder => {
                let had_datagrams = engine.drive(now, Driver::Thread) > 0;
                let until = engine.progress.end_absence(now, had_datagrams)?;
                return Some(WakeConditions::under_lease(engine, now, until));
            }
            ThreadRole::Drives => {}
        }
        if engine.drive(now, Driver::Thread) > 0 {
            engine.progress.record_thread_receive(now);
            return None;
        }
        if engine.progress.must_spin(now) {
            return None;
        }
        let is_alive = engine.dma_ok();
        if is_alive && !engine.links.begin_sleep() {
            return None;
        }
        engine.flush_capture();
        Some(WakeConditions {
            socket: engine.socket.clone().filter(|_| is_alive),
            multicast_sockets: if is_alive { engine.multicast_sockets() } else { Vec::new() },
            link_descriptors: if is_alive { engine.links.descriptors(now) } else { Arc::default() },
            tx_blocked: engine.tx_queue.is_blocked(),
            until: [engine.progress.max_sleep(now), engine.next_due()].into_iter().flatten().min(),
        })
    }

    /// Reads the state of the interface that has the NIC's address, and reports a change. After an
    /// event (`is_event`), does so only if the event may concern the interface, because the
    /// interfaces of containers come and go. A state that cannot be read counts as unchanged.
    /// Without `link_watch`, the state stays as it is, because no event would report a later
    /// change.
    pub(crate) fn read_interface(&self, is_event: bool) {
        let Some(watch) = &self.link_watch else { return };
        let mut interface = watch.lock();
        if !watch.take_changes(*interface) && is_event {
            return;
        }
        let Some(address) = self.lock().ok().and_then(|engine| engine.address()) else { return };
        let live = live_interface(address);
        let name = live.as_ref().ok().and_then(Option::as_deref);
        *interface = name.and_then(|name| if_nametoindex(name).ok());
        if let Ok(live) = live
            && let Ok(mut engine) = self.lock()
        {
            engine.set_interface_up(address, live.is_some());
            engine.flush(clock::now());
        }
    }

    fn sleep(&self, conditions: &WakeConditions) -> Woken {
        let timeout = conditions.until.map(|until| TimeSpec::from(until.saturating_since(clock::now())));
        let mut fds = vec![PollFd::new(self.signal.as_fd(), PollFlags::POLLIN)];
        let writable = if conditions.tx_blocked { PollFlags::POLLOUT } else { PollFlags::empty() };
        let sockets = conditions.socket.iter();
        fds.extend(sockets.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN | writable)));
        let multicast = conditions.multicast_sockets.iter();
        fds.extend(multicast.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        let links_at = fds.len();
        fds.extend(
            conditions.link_descriptors.iter().map(|link| PollFd::new(link.as_fd(), PollFlags::POLLIN)),
        );
        let links_end = fds.len();
        fds.extend(self.link_watch.as_ref().map(|watch| PollFd::new(watch.as_fd(), PollFlags::POLLIN)));
        // An error only ends the sleep early.
        let _ = ppoll(&mut fds, timeout, None);
        let socket = conditions.socket.is_some().then(|| &fds[1]);
        let has_error = |events: PollFlags| events.contains(PollFlags::POLLERR);
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let links = fds[links_at..links_end].iter().zip(conditions.link_descriptors.iter());
        Woken {
            is_signalled: is_ready(&fds[0]),
            has_socket_error: socket.and_then(PollFd::revents).is_some_and(has_error),
            links: links.filter(|(fd, _)| is_ready(fd)).map(|(_, link)| Arc::clone(link)).collect(),
            has_link_change: self.link_watch.is_some() && fds.last().is_some_and(is_ready),
        }
    }
}
