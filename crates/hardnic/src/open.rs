//! Opening a NIC.

use std::env;
use std::ffi::CStr;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use mitra_qualify::{Hardware, StoreError};
use mitra_verbs::{AtomicScope, Capabilities, DeviceAttr, Error, Extras, Gid, Limits};
use mitra_verbs_abi::*;
use nix::sys::utsname::uname;

use crate::context::Context;
use crate::device_list::{DeviceList, Refusal};
use crate::gid_table::GidTable;
use crate::library::{Library, LibraryError};
use crate::objects::Pd;
use crate::sysfs::RXE;
use crate::{port, sysfs};

/// Why a NIC cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system's libibverbs cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The machine has no verbs device.
    #[error(
        "this machine has no verbs device; load the driver of the card, or make a soft-RoCE device: \
         modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"
    )]
    NoDevice,
    /// The machine has no device of this name.
    #[error("this machine has no verbs device {name}; it has {known}")]
    NoSuchDevice {
        /// The requested name.
        name: String,
        /// The names of the devices, separated by commas.
        known: String,
    },
    /// No device has this address.
    #[error("no verbs device of this machine has the address {0}; `mitra devices` lists them")]
    NoSuchAddress(IpAddr),
    /// The interface of the device has no address.
    #[error("the interface of {0} has no IP address, so RoCEv2 cannot use it; give it one (ip addr add)")]
    NoAddress(String),
    /// Mitra does not use this device.
    #[error("{name} is not used: {refusal}")]
    Refused {
        /// The name of the device.
        name: String,
        /// Why not.
        #[source]
        refusal: Refusal,
    },
    /// The file of qualifications cannot be used.
    #[error(transparent)]
    Qualifications(#[from] StoreError),
    /// The device was qualified, and its fences do not hold.
    #[error(
        "{name} is not used: after a fence it still changed memory when it was qualified; `mitra devices --qualify` tries \
         again with another firmware"
    )]
    NoFence {
        /// The name of the device.
        name: String,
    },
    /// A call of the library failed.
    #[error("{name} cannot be opened: {error}")]
    Nic {
        /// The name of the device.
        name: String,
        /// The error of the call.
        #[source]
        error: Error,
    },
}

/// The device on which a NIC is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice<'a> {
    Name(&'a str),
    Address(IpAddr),
}

/// A device that was opened and described.
pub(crate) struct Opened {
    pub(crate) context: Arc<Context>,
    pub(crate) attr: DeviceAttr,
    pub(crate) gid: Gid,
    pub(crate) hardware: Hardware,
    pub(crate) extras: Extras,
}

/// Finds and opens the device.
pub(crate) fn open(choice: &Choice<'_>) -> Result<Opened, OpenError> {
    let list = DeviceList::read(Library::load()?);
    let (mut known, mut inaccessible) = (Vec::new(), None);
    for raw in list.iter() {
        let name = list.name(raw);
        match *choice {
            Choice::Name(wanted) if wanted != name => {}
            Choice::Name(_) => {
                let context = match list.open(raw) {
                    Ok(context) => context,
                    Err(refusal) => return Err(OpenError::Refused { name, refusal }),
                };
                let gids = gids(&name, &context)?;
                let gid = gids.preferred().ok_or_else(|| OpenError::NoAddress(name.clone()))?;
                return describe(name, context, gid);
            }
            Choice::Address(address) => match list.open(raw) {
                Ok(context) if gids(&name, &context)?.contains(Gid::from(address)) => {
                    return describe(name, context, Gid::from(address));
                }
                // It may have the address.
                Err(refusal @ Refusal::Inaccessible(_)) => inaccessible = Some((name.clone(), refusal)),
                _ => {}
            },
        }
        known.push(name);
    }
    Err(match *choice {
        _ if known.is_empty() => OpenError::NoDevice,
        Choice::Name(name) => OpenError::NoSuchDevice { name: name.to_owned(), known: known.join(", ") },
        Choice::Address(address) => match inaccessible {
            Some((name, refusal)) => OpenError::Refused { name, refusal },
            None => OpenError::NoSuchAddress(address),
        },
    })
}

fn gids(name: &str, context: &Context) -> Result<GidTable, OpenError> {
    GidTable::read(context).map_err(|error| OpenError::Nic { name: name.to_owned(), error })
}

fn describe(name: String, context: Context, gid: Gid) -> Result<Opened, OpenError> {
    let context = Arc::new(context);
    let attributes = || -> Result<_, Error> {
        let mut device = ibv_device_attr::zeroed();
        // SAFETY: the context is open, and the attributes are valid for writing.
        let result = unsafe { (context.lib.query_device)(context.raw, &raw mut device) };
        context.check("querying the device", result)?;
        let port = port::query(&context)?;
        let limits = limits(&device, &port, largest_inline(&context)?);
        Ok((device, limits))
    };
    let (device, limits) = attributes().map_err(|error| OpenError::Nic { name: name.clone(), error })?;
    let hardware = hardware(&name, &device);
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let extras = Extras {
        srq_wrs: limits.wrs.min(count(device.max_srq_wr)),
        srq_sges: limits.sges.min(count(device.max_srq_sge)),
        srq_resize: device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE != 0,
        xrc: false,
        type_1_windows: false,
    };
    let capabilities = Capabilities {
        atomic_scope: match device.atomic_cap {
            IBV_ATOMIC_NONE => AtomicScope::None,
            IBV_ATOMIC_GLOB => AtomicScope::Global,
            _ => AtomicScope::Nic,
        },
        psn_query: false,
        saved_results: false,
        // soft-RoCE copies a packet's data before it acknowledges it. No other driver says so.
        ack_after_placement: is_rxe(&hardware),
        // No region is registered with relaxed ordering.
        write_order: true,
        reset: true,
        windows: device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0,
        // No region is registered with on-demand paging.
        on_demand: false,
    };
    Ok(Opened { context, attr: DeviceAttr { name, limits, capabilities }, gid, hardware, extras })
}

/// Returns what a qualification of the device belongs to.
fn hardware(name: &str, device: &ibv_device_attr) -> Hardware {
    // SAFETY: the firmware's version ends with a zero.
    let firmware = unsafe { CStr::from_ptr(device.fw_ver.as_ptr()) }.to_string_lossy().into_owned();
    let driver = match sysfs::driver(name, device.vendor_id) {
        // The driver in software is as new as the kernel.
        Some(driver) if driver == RXE => {
            let release = uname().map(|system| system.release().to_string_lossy().into_owned());
            format!("{RXE} {}", release.unwrap_or_default())
        }
        driver => driver.unwrap_or_else(|| "unknown".to_owned()),
    };
    Hardware { driver, vendor_id: device.vendor_id, part_id: device.vendor_part_id, firmware }
}

pub(crate) fn is_rxe(hardware: &Hardware) -> bool {
    hardware.driver.starts_with(RXE)
}

fn limits(device: &ibv_device_attr, port: &ibv_port_attr, inline: u32) -> Limits {
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    Limits {
        pds: count(device.max_pd),
        mrs: count(device.max_mr),
        mws: count(device.max_mw),
        cqs: count(device.max_cq),
        cqe: count(device.max_cqe),
        qps: count(device.max_qp),
        wrs: count(device.max_qp_wr),
        sges: count(device.max_sge),
        inline,
        srqs: count(device.max_srq),
        ahs: count(device.max_ah),
        mcast_groups: 0,
        mcast_qps: 0,
        mcast_attached: 0,
        rd_atomic: count(device.max_qp_rd_atom.min(device.max_qp_init_rd_atom)).min(255) as u8,
        message_bytes: port.max_msg_sz,
    }
}

/// Returns the largest length of inline data of a queue pair, which no attribute tells: creates
/// queue pairs with ever less of it.
fn largest_inline(context: &Arc<Context>) -> Result<u32, Error> {
    // SAFETY: the context is open.
    let raw = unsafe { (context.lib.alloc_pd)(context.raw) };
    let raw = context.check_ptr("allocating a protection domain", raw)?;
    let pd = Pd { raw, users: 0.into(), context: Arc::clone(context) };
    let null = std::ptr::null_mut();
    // SAFETY: the context is open, and the queue has no channel.
    let cq = unsafe { (context.lib.create_cq)(context.raw, 2, null, std::ptr::null_mut(), 0) };
    let cq = context.check_ptr("creating a completion queue", cq)?;
    let mut found = 0;
    for inline in [1024, 512, 400, 256, 220, 128, 64, 32] {
        let cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let qp_type = IBV_QPT_RC;
        let mut init =
            ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type, ..ibv_qp_init_attr::zeroed() };
        // SAFETY: the domain and the queue exist.
        let qp = unsafe { (context.lib.create_qp)(pd.raw, &raw mut init) };
        if !qp.is_null() {
            found = inline;
            // SAFETY: the queue pair was just created.
            unsafe { (context.lib.destroy_qp)(qp) };
            break;
        }
    }
    // SAFETY: no queue pair uses the queue.
    unsafe { (context.lib.destroy_cq)(cq) };
    Ok(found)
}

/// Returns the file in which this user's qualifications are kept: `$MITRA_QUALIFICATIONS`, or
/// `mitra/qualifications.json` in the user's directory for state.
pub fn qualifications_file() -> PathBuf {
    if let Some(path) = env::var_os("MITRA_QUALIFICATIONS") {
        return path.into();
    }
    let state = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.unwrap_or_else(|| {
        PathBuf::from(env::var_os("HOME").unwrap_or_else(|| "/".into())).join(".local/state")
    });
    state.join("mitra/qualifications.json")
}
