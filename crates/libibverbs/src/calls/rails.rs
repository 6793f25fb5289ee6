//! The NICs under the device: opened when the program first needs them, shared by all its contexts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{CqId, Error, Gid, Provider, Qpn, Result, SrqId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};

use super::events;

/// An open device: its NIC, and who is to hear of what happens to it.
pub(crate) struct Rails {
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) objects: Mutex<Objects>,
}

/// The program's objects by the NIC's names for them, for events. The addresses are integers because only the thread
/// that delivers an event follows them, under this lock, which the calls that destroy take first.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) contexts: Vec<usize>,
    pub(crate) qps: HashMap<Qpn, usize>,
    pub(crate) cqs: HashMap<CqId, usize>,
    pub(crate) srqs: HashMap<SrqId, usize>,
}

/// The open device, and the process that opened it.
static OPEN: Mutex<Option<(u32, Arc<Rails>)>> = Mutex::new(None);

/// Counts the opened NICs of this process, for their GUID.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// A lock's contents. A panic under one of this crate's locks ends the process (it would have to cross into C).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rails {
    /// The device of this process, opened if it is not. A child that was forked opens its own: the NIC of its parent
    /// lives there, with its thread.
    pub(crate) fn open() -> Result<Arc<Rails>> {
        let mut open = lock(&OPEN);
        let pid = std::process::id();
        if let Some((owner, rails)) = &*open
            && *owner == pid
        {
            return Ok(Arc::clone(rails));
        }
        let nic = SoftNic::open(Config::loopback())
            .map_err(|e| Error::System { what: "opening the software NIC", message: e.to_string() })?;
        let rails = Arc::new(Rails { nic, objects: Mutex::default() });
        rails
            .deliver_events()
            .map_err(|e| Error::System { what: "starting a thread", message: e.to_string() })?;
        if OPENED.fetch_add(1, Ordering::Relaxed) == 0 {
            // SAFETY: a function that may run at exit. If there is no room for it, what the NIC owes stays unsaid.
            unsafe { libc::atexit(farewell) };
        }
        if let Some(parents) = open.replace((pid, Arc::clone(&rails))) {
            // Dropping the parent's NIC would join a thread that is not there.
            std::mem::forget(parents);
        }
        Ok(rails)
    }

    /// The objects of the program.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        lock(&self.objects)
    }

    /// Its address.
    pub(crate) fn gid(&self) -> Result<Gid> {
        self.nic.query_port().map(|port| port.gid)
    }

    /// Starts the thread that hands on asynchronous events, as long as the process lives.
    fn deliver_events(self: &Arc<Self>) -> std::io::Result<()> {
        let rails = Arc::clone(self);
        thread::Builder::new().name("mitra-events".to_owned()).spawn(move || {
            block_signals();
            loop {
                let mut ready = [PollFd::new(rails.nic.async_event_fd(), PollFlags::POLLIN)];
                // A refused wait is a short one.
                let _ = poll(&mut ready, PollTimeout::NONE);
                while let Some(event) = rails.nic.poll_async_event() {
                    events::deliver(&rails, event);
                }
            }
        })?;
        Ok(())
    }
}

/// Signals are for the program's own threads, but those that a fault raises must reach who faulted.
pub(crate) fn block_signals() {
    let mut signals = SigSet::all();
    for fault in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL] {
        signals.remove(fault);
    }
    // It can only fail on a wrong argument.
    let _ = signals.thread_block();
}

/// The program exits: its NIC says what it owes, as a real one would have done long before.
extern "C" fn farewell() {
    // The thread that exits may have been interrupted under this lock.
    if let Ok(open) = OPEN.try_lock()
        && let Some((owner, rails)) = &*open
        && *owner == std::process::id()
    {
        rails.nic.farewell();
    }
}

/// The device's GUID, in network order: locally administered (EUI-64), then its address. Zero if it cannot be opened.
pub(crate) fn guid() -> u64 {
    let gid = Rails::open().and_then(|rails| rails.gid());
    gid.map_or(0, |gid| {
        let mut guid = [0x02, 0x4d, 0x69, 0xff, 0, 0, 0, 0];
        guid[4..].copy_from_slice(&gid.0[12..]);
        u64::from_ne_bytes(guid)
    })
}
