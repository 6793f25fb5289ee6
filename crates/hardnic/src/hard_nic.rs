//! [`HardNic`]: a NIC of the kernel.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use ahash::AHashMap;
use mitra_qualify::{Hardware, ProbeReport, QualificationStore, probe};
use mitra_verbs::fault::FaultSwitch;
use mitra_verbs::{DeviceAttr, Error, Extras, Gid, Nic, PortState, Qpn, Result};

use crate::address_handle::AddressHandle;
use crate::async_events::{Watch, Watched};
use crate::channel::HardChannel;
use crate::context::Context;
use crate::objects::{Cq, Pd, Region, Srq, Window};
use crate::open::{Choice, OpenError, Opened, is_rxe, open, qualifications_file};
use crate::port;
use crate::qp::Qp;
use crate::reaper::Reaper;
use crate::table::Table;

/// Queue pairs by their numbers.
pub(crate) type QpTable = AHashMap<u32, Arc<Qp>>;

/// The objects that the program has created and not destroyed.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) pds: Table<Arc<Pd>>,
    pub(crate) mrs: Table<Arc<Region>>,
    pub(crate) mws: Table<Arc<Window>>,
    pub(crate) ahs: Table<Arc<AddressHandle>>,
    pub(crate) cqs: Table<Arc<Cq>>,
    pub(crate) srqs: Table<Arc<Srq>>,
    pub(crate) qps: RwLock<QpTable>,
    pub(crate) channels: Mutex<Vec<Weak<HardChannel>>>,
}

/// A NIC of the kernel, through the system's libibverbs. [`HardNic::open`] opens it.
#[derive(Debug)]
pub struct HardNic {
    pub(crate) attr: DeviceAttr,
    pub(crate) gid: Gid,
    hardware: Hardware,
    probe: ProbeReport,
    pub(crate) extras: Extras,
    pub(crate) objects: Objects,
    pub(crate) watched: Arc<Watched>,
    pub(crate) reaper: Reaper,
    /// The number of queue pairs that were created.
    pub(crate) created_qps: AtomicU32,
    pub(crate) context: Arc<Context>,
    /// Held while a fault is being injected.
    pub(crate) faults: Mutex<()>,
    _watch: Watch,
}

impl HardNic {
    /// Opens a device by its name, such as `mlx5_0`. The NIC has the device's first IPv4 address
    /// or, without one, its first IPv6 address.
    ///
    /// The NIC reports [`psn_query`](mitra_verbs::Capabilities::psn_query) if a probe finds the
    /// number right, and the file of [`qualifications_file`] says that it is exact.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(name: &str) -> Result<Arc<HardNic>, OpenError> {
        HardNic::open_qualified(name, &QualificationStore::load(&qualifications_file())?)
    }

    /// Opens the device that has an address, as [`HardNic::open`] does.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open_at(address: IpAddr) -> Result<Arc<HardNic>, OpenError> {
        let store = QualificationStore::load(&qualifications_file())?;
        HardNic::start(open(&Choice::Address(address))?, &store)
    }

    /// Opens a device by its name. `store` says how the NIC was qualified; an empty one, that it
    /// was not.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open_qualified(name: &str, store: &QualificationStore) -> Result<Arc<HardNic>, OpenError> {
        HardNic::start(open(&Choice::Name(name))?, store)
    }

    fn start(opened: Opened, store: &QualificationStore) -> Result<Arc<HardNic>, OpenError> {
        let Opened { context, attr, gid, hardware, extras } = opened;
        let name = attr.name.clone();
        if store.lacks_fence(&hardware) {
            return Err(OpenError::NoFence { name });
        }
        let failed = |error: Error| OpenError::Nic { name: name.clone(), error };
        let system = |error: std::io::Error| failed(Error::system("starting the NIC's threads", &error));
        let port = port::read(&context, gid).map_err(failed)?;
        let watched = Arc::new(Watched::new(Arc::clone(&context), port).map_err(system)?);
        let watch = Watch::start(&watched).map_err(system)?;
        let mut nic = HardNic {
            attr,
            gid,
            hardware,
            probe: ProbeReport { findings: Vec::new() },
            extras,
            objects: Objects {
                pds: Table::new("protection domain"),
                mrs: Table::new("memory region"),
                mws: Table::new("memory window"),
                ahs: Table::new("address handle"),
                cqs: Table::new("completion queue"),
                srqs: Table::new("shared receive queue"),
                qps: RwLock::default(),
                channels: Mutex::default(),
            },
            watched,
            reaper: Reaper::start().map_err(system)?,
            created_qps: AtomicU32::new(getrandom::u32().unwrap_or(0)),
            context,
            faults: Mutex::default(),
            _watch: watch,
        };
        let permits_psn = store.permits_psn(&nic.hardware);
        nic.attr.capabilities.psn_query = match probe(&nic) {
            Ok(report) => {
                nic.probe = report;
                nic.probe.passed() && permits_psn
            }
            // A rail may be down when a program starts. Without a link, the device does not reach
            // itself either. The qualification has found all that the probe would.
            Err(_) if nic.watched.port().state != PortState::Active => permits_psn,
            Err(error) => return Err(failed(error)),
        };
        Ok(Arc::new(nic))
    }

    /// Returns what a qualification of this NIC belongs to.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Returns what the probe of the responder's PSN found when the NIC was opened. Empty if the
    /// port was down.
    pub fn probe(&self) -> &ProbeReport {
        &self.probe
    }

    pub(crate) fn is_rxe(&self) -> bool {
        is_rxe(&self.hardware)
    }

    pub(crate) fn qp(&self, qpn: Qpn) -> Result<Arc<Qp>> {
        let qps = self.objects.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.get(&qpn.value()).cloned().ok_or_else(|| no_such_qp(qpn))
    }

    /// Returns a number that differs from those of the last queue pairs.
    pub(crate) fn next_epoch(&self) -> u32 {
        self.created_qps.fetch_add(1, Ordering::Relaxed)
    }
}

pub(crate) fn no_such_qp(qpn: Qpn) -> Error {
    Error::NoSuchObject { kind: "queue pair", id: qpn.value() }
}

impl Nic for HardNic {
    fn address(&self) -> IpAddr {
        IpAddr::from(self.gid)
    }

    fn fault_switch(&self) -> Option<&dyn FaultSwitch> {
        Some(self)
    }

    fn extras(&self) -> Extras {
        self.extras
    }

    fn device_name(&self) -> Option<&str> {
        Some(&self.attr.name)
    }
}

impl Drop for HardNic {
    fn drop(&mut self) {
        // The device's own order: what uses an object goes before it. The queue pairs go first, so
        // that no region is deregistered under their traffic.
        let objects = &self.objects;
        drop(std::mem::take(&mut *objects.qps.write().unwrap_or_else(PoisonError::into_inner)));
        drop((objects.mws.drain(), objects.mrs.drain(), objects.ahs.drain()));
        drop((objects.srqs.drain(), objects.cqs.drain(), objects.pds.drain()));
    }
}
