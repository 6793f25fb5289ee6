//! What a device stands on: one NIC, or several that queue pairs survive the loss of.
//!
//! With one rail the program's objects are those of its NIC. With more ([`Spanning`]) its reliable connections are virtual
//! queue pairs ([`pair`]), which find their peers through queue pair 1 of the first rail ([`meeting`]), complete in queues of
//! this process ([`completions`]), and are attended to by a thread ([`attendant`]) when the program is busy elsewhere.
//! Datagrams and unreliable connections stay on rail 0.

mod attendant;
mod bounce;
pub(crate) mod completions;
mod control;
pub(crate) mod meeting;
pub(crate) mod pair;
mod parted;
pub(crate) mod shared_receives;
mod spanning;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::common::errno::system_error;
use crate::common::lock::lock;
use mitra_control::ControlServer;
use mitra_control::{RailsConfig, Settings};
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::{CqId, Gid, Limits, PortState, Provider, Qpn, Result, SrqId};

use crate::calls::events;
pub(crate) use spanning::Spanning;

/// An open device: its NICs, and who is to hear of what happens to it.
pub(crate) struct Rails {
    nics: Vec<Arc<SoftNic>>,
    /// With more than one NIC.
    pub(crate) spanning: Option<Arc<Spanning>>,
    objects: Mutex<Objects>,
    /// Faults on demand, as long as the device is open.
    control: OnceLock<ControlServer>,
}

/// The program's objects by the NIC's names for them, for events. The addresses are integers because only who delivers an
/// event follows them, under this lock, which the calls that destroy take first.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) contexts: Vec<usize>,
    pub(crate) qps: HashMap<Qpn, usize>,
    pub(crate) cqs: HashMap<CqId, usize>,
    pub(crate) srqs: HashMap<SrqId, usize>,
}

/// The open device, and the process that opened it.
static OPEN: Mutex<Option<(u32, Arc<Rails>)>> = Mutex::new(None);

/// Devices opened in this process and those it was forked from.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// Runs in the child of a fork.
unsafe extern "C" fn forked() {
    mitra_softnic::after_fork_in_child();
}

impl Rails {
    /// The device of this process, opened if it is not. A child that was forked opens its own: the NICs of its parent live there,
    /// with their threads.
    pub(crate) fn open() -> Result<Arc<Rails>> {
        crate::common::logging::install();
        let mut open = lock(&OPEN);
        let pid = std::process::id();
        if let Some((owner, rails)) = &*open
            && *owner == pid
        {
            return Ok(Arc::clone(rails));
        }
        let rails =
            Rails::make().inspect_err(|error| tracing::warn!("the device cannot be opened: {error}"))?;
        if OPENED.fetch_add(1, Ordering::Relaxed) == 0 {
            // SAFETY: a function that may run at exit. If there is no room for it, what the NIC owes stays unsaid.
            unsafe { libc::atexit(farewell) };
            // SAFETY: `forked` adds to a number. If there is no room for it, a child that uses what it inherited may wait for ever.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        }
        if let Some(parents) = open.replace((pid, Arc::clone(&rails))) {
            // Dropping the parent's NICs would join threads that are not there.
            std::mem::forget(parents);
        }
        Ok(rails)
    }

    fn make() -> Result<Arc<Rails>> {
        let settings =
            Settings::from_env().map_err(|e| system_error("reading the options of `mitra run`")(&e))?;
        let configs = match &settings.rails {
            RailsConfig::Count(n) => vec![Config::loopback(); *n],
            RailsConfig::Addresses(list) => list.iter().map(|address| Config::at(*address)).collect(),
        };
        let nics = configs
            .into_iter()
            .map(|config| SoftNic::open(config).map_err(|e| system_error("opening a software NIC")(&e)))
            .collect::<Result<Vec<_>>>()?;
        let spanning = if nics.len() > 1 { Some(Spanning::new(&nics, &settings)?) } else { None };
        let rails = Arc::new(Rails { nics, spanning, objects: Mutex::default(), control: OnceLock::new() });
        let started = match &rails.spanning {
            Some(spanning) => attendant::start(&rails, spanning),
            None => events::start(&rails),
        };
        started.map_err(|e| system_error("starting a thread")(&e))?;
        let served =
            mitra_control::ControlServer::start(&settings, control::Controlled(Arc::downgrade(&rails)))
                .map_err(|e| system_error("listening for `mitra fault`")(&e))?;
        // It was empty: the device is made here, once.
        let _ = rails.control.set(served);
        Ok(rails)
    }

    /// The NIC of rail 0, whose names everything has.
    pub(crate) fn nic(&self) -> &Arc<SoftNic> {
        &self.nics[0]
    }

    /// All NICs, rail 0 first.
    pub(crate) fn nics(&self) -> &[Arc<SoftNic>] {
        &self.nics
    }

    /// Whether its port is up: as long as one rail is.
    pub(crate) fn is_up(&self) -> bool {
        self.nics.iter().any(|nic| nic.query_port().is_ok_and(|port| port.state == PortState::Active))
    }

    /// What its queue pairs may be asked for.
    pub(crate) fn limits(&self) -> Limits {
        match &self.spanning {
            None => self.nic().attr().limits,
            Some(spanning) => spanning.limits(),
        }
    }

    /// The objects of the program.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        lock(&self.objects)
    }

    /// Its address: that of rail 0.
    pub(crate) fn gid(&self) -> Result<Gid> {
        self.nic().query_port().map(|port| port.gid)
    }
}

/// The program exits: its NICs say what they owe, as real ones would have done long before, and virtual queue pairs tell
/// their peers.
extern "C" fn farewell() {
    // The thread that exits may have been interrupted under this lock.
    if let Ok(open) = OPEN.try_lock()
        && let Some((owner, rails)) = &*open
        && *owner == std::process::id()
    {
        if let Some(spanning) = &rails.spanning {
            spanning.farewell();
        }
        rails.nics.iter().for_each(|nic| nic.flush_acks());
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
