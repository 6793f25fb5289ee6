//! Opening the device, once in each process, and closing its connections when the process exits.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use mitra_control::{ControlServer, ControlledDevice, MetricsAddress, RailsConfig, Settings};
use mitra_metrics::MetricsServer;
use mitra_nics::{NicKind, NicName};
use mitra_os_util::fork_generation;
use mitra_verbs::{Error, Gid, Nic, NicAddress, NicOpenError, NicRequest, OpenedNic, Result};

use super::fault_control::FaultControl;
use super::rail_set::RailSet;
use super::rendezvous::{limits_of_further_rail, limits_of_nic};
use super::{one_nic, several_rails};
use crate::common::lock::lock;
use crate::common::logging;
use crate::common::per_process::PerProcess;
use crate::common::{cancellation, close_on_fork};
use crate::interpose::run_time_loading;

/// The open device, with the id of the process that opened it. The id identifies a child process
/// that was created without the fork handlers (`_Fork(3)`).
static OPEN: PerProcess<Mutex<OpenDevice>> = PerProcess::new();

type OpenDevice = Option<(u32, Arc<RailSet>)>;

/// The address that rail 0 of `--rails N` or `--device` will have. Set when the program first reads
/// a device file that shows the address.
static EXPECTED_ADDRESS: PerProcess<OnceLock<IpAddr>> = PerProcess::new();

/// A forked child inherits this flag and the handler.
static EXIT_HANDLER_INSTALLED: AtomicBool = AtomicBool::new(false);
/// A forked child inherits this flag and the handler.
static FORK_HANDLER_INSTALLED: AtomicBool = AtomicBool::new(false);
/// Whether this process, or its parent, has logged why the device cannot be opened.
static FAILURE_EXPLAINED: AtomicBool = AtomicBool::new(false);

/// Returns the device of this process, and opens it on the first call.
///
/// A forked child opens a device of its own, because the threads of the parent's NICs do not exist
/// in the child.
///
/// # Errors
/// `System` if the environment variables that `mitra run` sets are malformed, or if a NIC, a thread
/// or the socket for `mitra fault` cannot be created. With several rails, also the errors of
/// [`several_rails::open`]. The error is also logged, because most programs report only that there
/// is no device. Later errors are logged at the level debug, because some programs try to open the
/// device repeatedly.
pub(crate) fn open() -> Result<Arc<RailSet>> {
    logging::install();
    install_fork_handler();
    let mut open = lock(OPEN.get());
    let pid = std::process::id();
    if let Some((owner, rails)) = &*open
        && *owner == pid
    {
        return Ok(Arc::clone(rails));
    }
    let rails = cancellation::held_off(open_rails).inspect_err(|error| {
        if FAILURE_EXPLAINED.swap(true, Ordering::Relaxed) {
            tracing::debug!("the device cannot be opened: {error}");
        } else {
            tracing::error!("the device cannot be opened: {error}");
        }
    })?;
    if !EXIT_HANDLER_INSTALLED.swap(true, Ordering::Relaxed) {
        // SAFETY: `at_exit` is a function without arguments that does not unwind. If the C library
        // cannot register the handler, the handler is not called, and the peers detect the exit by
        // their timeouts.
        unsafe { libc::atexit(at_exit) };
    }
    if let Some(inherited) = open.replace((pid, Arc::clone(&rails))) {
        // Dropping the NICs of the parent process would join threads that do not exist in this
        // process.
        std::mem::forget(inherited);
    }
    Ok(rails)
}

/// Returns the address that rail 0 of this process will have with `--rails N`, unless another
/// process takes it first, or with `--device`. Returns `None` if the NICs of the settings have
/// none.
pub(crate) fn expected_address() -> Option<IpAddr> {
    install_fork_handler();
    let expected = EXPECTED_ADDRESS.get();
    if expected.get().is_none() {
        let settings = Settings::from_env().ok()?;
        let address = match &settings.rails {
            RailsConfig::Devices(names) => names.first()?.parse::<NicName>().ok()?.address(),
            _ => settings.nic_kind::<NicKind>().ok()?.source().propose_address(),
        };
        // If two threads set the address, the first address stays.
        let _ = expected.set(address?);
    }
    expected.get().copied()
}

/// Returns `None` if this process has not opened the device. Waits while another thread opens it.
pub(crate) fn opened() -> Option<Arc<RailSet>> {
    let open = lock(OPEN.existing()?);
    open.as_ref().filter(|(owner, _)| *owner == std::process::id()).map(|(_, rails)| Arc::clone(rails))
}

fn open_rails() -> Result<Arc<RailSet>> {
    let settings = Settings::from_env()
        .and_then(Settings::checked)
        .map_err(|e| Error::system("reading the options of `mitra run`", &e))?;
    let nics = open_nics(&settings)?;
    let rails = match <[_; 1]>::try_from(nics) {
        Ok([nic]) => one_nic::open(nic)?,
        Err(nics) => several_rails::open(nics, &settings)?,
    };
    let server = ControlServer::start(&settings, FaultControl(Arc::downgrade(&rails)))
        .map_err(|e| Error::system("listening for `mitra fault`", &e))?;
    // The cell is empty, because this function created the `RailSet`.
    let _ = rails.fault_control.set(server);
    if let Some(MetricsAddress(address)) = settings.metrics {
        start_metrics(address, &rails);
    }
    Ok(rails)
}

/// Opens the NICs of the settings. Each has what the program may create on it, and what this
/// library creates.
fn open_nics(settings: &Settings) -> Result<Vec<Arc<dyn Nic>>> {
    let kind: NicKind =
        settings.nic_kind().map_err(|e| Error::system("reading the options of `mitra run`", &e))?;
    let source = kind.source();
    let system = |e: NicOpenError| Error::system("opening a NIC", &*e);
    let opened = |OpenedNic { nic, warning }| {
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        nic
    };
    let addresses: Vec<NicAddress> = match &settings.rails {
        RailsConfig::Devices(names) => {
            let open = |name: &String| {
                let name: NicName = name
                    .parse()
                    .map_err(|e: String| Error::system("reading --device", &io::Error::other(e)))?;
                name.open(kind, settings.links).map(opened).map_err(system)
            };
            let nics: Vec<_> = names.iter().map(open).collect::<Result<_>>()?;
            warn_without_evidence(&nics, settings);
            return Ok(nics);
        }
        RailsConfig::Count(n) => {
            let expected = EXPECTED_ADDRESS.existing().and_then(OnceLock::get).copied();
            let first = expected.map_or(NicAddress::Free, NicAddress::Preferred);
            std::iter::once(first).chain(std::iter::repeat_n(NicAddress::Free, n - 1)).collect()
        }
        RailsConfig::Addresses(list) => list.iter().copied().map(NicAddress::At).collect(),
    };
    let limits = |rail| match (rail, addresses.len()) {
        (0, 1) => limits_of_nic(source.limits()),
        (0, _) => source.limits(),
        _ => limits_of_further_rail(source.limits()),
    };
    let open = |(rail, &address)| {
        let request = NicRequest { address, links: settings.links, limits: limits(rail) };
        source.open(&request).map(opened).map_err(system)
    };
    addresses.iter().enumerate().map(open).collect()
}

/// Says which of several rails give no evidence of what they have executed when they fail.
fn warn_without_evidence(nics: &[Arc<dyn Nic>], settings: &Settings) {
    let has_none = |nic: &&Arc<dyn Nic>| !nic.attr().capabilities.psn_query;
    let names: Vec<_> = nics.iter().filter(has_none).map(|nic| nic.attr().name.as_str()).collect();
    if nics.len() > 1 && !settings.completion_log && !names.is_empty() {
        let names = names.join(",");
        tracing::warn!(
            "{names}: what is in flight when a rail fails may end in an error, because nothing tells whether it was executed: \
             qualify each kind of device once (mitra devices --qualify --device {names}), or use --log at both ends"
        );
    }
}

/// Starts the metrics endpoint. The program runs without it if the address is not free, for example
/// because the program consists of several processes.
fn start_metrics(address: SocketAddr, rails: &Arc<RailSet>) {
    let mut device = FaultControl(Arc::downgrade(rails));
    match MetricsServer::start(address, move || device.snapshot()) {
        Ok(server) => {
            tracing::warn!("the metrics are at http://{}/metrics", server.address());
            let _ = rails.metrics.set(server); // the cell is empty, because `open_rails` created the `RailSet`
        }
        Err(error) => {
            tracing::warn!("there are no metrics: {error}");
        }
    }
}

/// Installs the handler for fork before this process uses state that a child must not share.
fn install_fork_handler() {
    run_time_loading::serve_nics_of_the_kernel();
    if !FORK_HANDLER_INSTALLED.load(Ordering::Acquire) {
        // Two threads may register the handler twice, which has no effect.
        // SAFETY: the handler has the required signature, does not unwind and only changes atomic
        // counters, which is allowed after a fork. If the C library cannot register the handler, a
        // child that uses an inherited object may hang.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        // Without the null device, a child keeps its parent's sockets.
        let _ = close_on_fork::install_handler();
        FORK_HANDLER_INSTALLED.store(true, Ordering::Release);
    }
}

/// Gives the process state of its own. The NICs of the parent, whose threads do not exist in this
/// process, are dead in it.
extern "C" fn after_fork_in_child() {
    fork_generation::after_fork_in_child();
}

/// Closes the virtual queue pairs, and sends the acknowledgements that the NICs hold. A hardware
/// NIC sends its acknowledgements even after the process has ended.
extern "C" fn at_exit() {
    // The lock may be held by a thread that never releases it, for instance if a signal handler
    // called `exit`.
    if let Some(Ok(open)) = OPEN.existing().map(Mutex::try_lock)
        && let Some((owner, rails)) = &*open
        && *owner == std::process::id()
    {
        if let Some(receiver) = rails.device.cm_receiver().and_then(OnceLock::get) {
            receiver.on_exit();
        }
        rails.device.shut_down_at_exit();
        rails.nics.iter().for_each(|nic| nic.settle());
    }
}

/// Returns the device's GUID in network byte order: a locally administered EUI-64 that ends with
/// the last 32 bits of rail 0's first address. Returns 0 if the device cannot be opened, or if its
/// only NIC is dead.
pub(crate) fn guid() -> u64 {
    open().and_then(|rails| rails.device.gid().map(|_| guid_of(rails.first_gid))).unwrap_or(0)
}

/// Returns, in network byte order, the GUID of the device whose first GID on rail 0 is `gid`.
pub(crate) fn guid_of(gid: Gid) -> u64 {
    let mut guid = [0x02, 0x4d, 0x69, 0xff, 0, 0, 0, 0];
    guid[4..].copy_from_slice(&gid.0[12..]);
    u64::from_ne_bytes(guid)
}
