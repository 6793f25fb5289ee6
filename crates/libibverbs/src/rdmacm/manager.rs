//! The connection manager of a process: the state under a lock, and the thread that waits for the
//! sockets.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use mitra_os_util::thread;
use mitra_verbs::Gid;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::caller_ptr::CallerPtr;
use super::device::Device;
use super::manager_state::ManagerState;
use super::network::Network;
use super::protocol::encoding::decode;
use super::rdma_port::errno_of;
use super::received::{Content, Received, ReceivedQueue};
use super::return_code::check_pointer;
use super::waker::Waker;
use crate::calls::context::Context;
use crate::calls::xrcd::open_xrcd;
use crate::common::close_on_fork::{CloseOnFork, close_on_fork};
use crate::common::lock::lock;
use crate::common::per_process::PerProcess;
use crate::rails::cm_receiver::{CmConnection, CmReceiver, RailAddress};
use mitra_verbs_abi::{IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_xrcd, ibv_xrcd_init_attr};

/// The manager of this process, from the first call of librdmacm on. The child of a `fork` does not
/// know its parent's identifiers.
static CURRENT: PerProcess<OnceLock<Manager>> = PerProcess::new();

/// The epoll data of the waker. The epoll data of a socket is its listener's handle or the number
/// of a question, never 0.
const WAKER: u64 = 0;

/// The maximum time for which an exiting process waits until the thread has ended its connections.
const EXIT_WAIT: Duration = Duration::from_millis(100);

/// How long the thread sleeps if it cannot wait for its sockets.
const FAILED_WAIT: Duration = Duration::from_millis(5);

pub struct Manager {
    /// Dropped before the descriptors, because the number of a closed descriptor can be reused at
    /// once.
    _close_on_fork: [CloseOnFork; 2],
    state: Mutex<ManagerState>,
    epoll: Arc<Epoll>,
    waker: Waker,
    device: Mutex<Option<Device>>,
    /// The XRC domain of queue pairs and queues for which the program provides none.
    xrc_domain: Mutex<Option<CallerPtr<ibv_xrcd>>>,
    /// What the device has received for the manager's thread.
    pub(super) received: ReceivedQueue,
    has_thread: AtomicBool,
    /// Whether the process exits. If it does, the thread ends all connections.
    exiting: AtomicBool,
    /// Whether the thread has ended the connections of the exiting process.
    closed: AtomicBool,
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
        let waker = Waker::new()?;
        let epoll = Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN, WAKER))?;
        let close_on_fork = [close_on_fork(waker.as_raw_fd())?, close_on_fork(epoll.0.as_raw_fd())?];
        let state = Mutex::new(ManagerState::new(epoll.clone(), waker.clone()));
        Ok(Self {
            state,
            epoll,
            waker,
            device: Mutex::default(),
            xrc_domain: Mutex::default(),
            received: ReceivedQueue::default(),
            has_thread: AtomicBool::new(false),
            exiting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
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
            Some(device) => {
                let gid = self.lock().network.as_ref().map_or(device.gid, |network| network.gid().0);
                Ok(Device { gid, ..device })
            }
            None => {
                let opened = Device::open()?;
                // SAFETY: the context of `Device::open` stays open.
                let context = unsafe { Context::find_raw(opened.context) }.map_err(|_| Errno::ENODEV)?;
                context.rails.set_on_death(on_device_removed);
                context.rails.set_cm_receiver(&ManagerReceiver);
                let network = Network::new(context.rails.clone(), opened.path_mtu);
                self.lock().network = Some(network);
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
    /// The error of creating the thread.
    pub fn wake_thread(&'static self) -> Result<(), Errno> {
        let state = self.lock();
        if !self.has_thread() {
            thread::spawn("mitra-rdmacm", || self.run()).map_err(errno_of)?;
            self.has_thread.store(true, Ordering::Release);
        }
        drop(state);
        self.waker.wake();
        Ok(())
    }

    pub fn has_thread(&self) -> bool {
        self.has_thread.load(Ordering::Acquire)
    }

    /// Lets the thread end all connections, because the process exits, and waits for that, but at
    /// most for [`EXIT_WAIT`]. The exiting thread cannot do it itself, because it may hold a lock
    /// of the state or of a NIC, for instance if a signal handler called `exit`.
    pub fn close_at_exit(&self) {
        if !self.has_thread() {
            return;
        }
        self.exiting.store(true, Ordering::Release);
        self.waker.wake();
        let started = Instant::now();
        while !self.closed.load(Ordering::Acquire) && started.elapsed() < EXIT_WAIT {
            std::thread::sleep(EXIT_WAIT / 100);
        }
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
            // The thread blocks all signals, so the wait does not fail with EINTR. It fails if the
            // program has closed the descriptor. Timers then go on, and no socket is ready.
            let count = self.epoll.wait(&mut ready, timeout).unwrap_or_else(|_| {
                std::thread::sleep(FAILED_WAIT);
                0
            });
            let (mut state, now) = (self.lock(), Instant::now());
            for event in &ready[..count] {
                match event.data() {
                    WAKER => self.waker.reset(),
                    data => state.on_ready(data, now),
                }
            }
            for received in self.received.take() {
                state.on_received(received, now);
            }
            if self.exiting.load(Ordering::Acquire) && !self.closed.load(Ordering::Relaxed) {
                state.close_all();
                self.closed.store(true, Ordering::Release);
            }
            deadline = state.on_timer(now);
        }
    }
}

/// The manager as the device's threads know it. Passes what arrives to the manager's thread.
struct ManagerReceiver;

impl ManagerReceiver {
    fn receive(&self, from: RailAddress, content: Content) {
        // Without the thread, nothing listens and nothing is connected.
        if let Ok(manager) = manager()
            && manager.has_thread()
            && manager.received.push(Received { from, content })
        {
            manager.waker.wake();
        }
    }
}

impl CmReceiver for ManagerReceiver {
    fn on_datagram(&self, from: RailAddress, bytes: &[u8]) {
        // A datagram of another kind is dropped, as by a NIC.
        if let Ok((transaction, device)) = decode(bytes) {
            let device = device.unwrap_or(from.gid);
            self.receive(from, Content::Message { transaction, device });
        }
    }

    fn on_owner(&self, search: u64, from: RailAddress, current: Gid) {
        self.receive(from, Content::Owner(search, current));
    }

    fn has_connections(&self) -> bool {
        manager().is_ok_and(Manager::has_thread)
    }

    fn on_connections(&self, from: RailAddress, connections: Vec<CmConnection>) {
        self.receive(from, Content::Connections(connections));
    }

    fn on_unknown_connections(&self, from: RailAddress, connections: Vec<CmConnection>) {
        self.receive(from, Content::UnknownConnections(connections));
    }

    fn on_exit(&self) {
        if let Ok(manager) = manager() {
            manager.close_at_exit();
        }
    }
}
