//! The contents of the device's files: the values that the verbs return.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use mitra_control::{RailsConfig, Settings};
use mitra_nics::NicName;
use mitra_os_util::interfaces::{interface_of, live_interface};
use mitra_verbs::{Counter, Gid};

use crate::calls::device::{CHAR_DEVICE_NAME, DEVICE_NAME};
use crate::calls::gid_table::{GID_COUNT, PKEY};
use crate::calls::query_port::port_attr_when;
use crate::rails::open;
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

/// The values that may change, or differ between two processes of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::interpose) struct Attributes {
    gid: Gid,
    /// The GID from which the GUID is derived.
    first_gid: Gid,
    up: bool,
    /// The name of the interface that has the address of rail 0.
    interface: Option<String>,
    /// The NICs: `Mitra over mlx5_0,mlx5_1`.
    hca_type: String,
    /// The process whose counters the files contain, if it has opened the device.
    pub(super) owner: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Entry {
    File(String),
    /// A symbolic link, with its target.
    Link(String),
}

/// The counters of soft-RoCE (drivers/infiniband/sw/rxe/rxe_hw_counters.c), and the names of the
/// NIC's counters.
const COUNTERS: [(&str, &str); 10] = [
    ("duplicate_request", "duplicate_requests"),
    ("out_of_seq_request", "drop_out_of_sequence"),
    ("rcvd_pkts", "packets_received"),
    ("rcvd_rnr_err", "rnr_naks_received"),
    ("rcvd_seq_err", "sequence_naks_received"),
    ("retry_exceeded_err", "failed_requests"),
    ("send_err", "tx_errors"),
    ("send_rnr_err", "rnr_naks_sent"),
    ("sent_pkts", "packets_sent"),
    ("completer_retry_err", "timeouts"),
];

/// The type of a device of software NICs.
const SOFTWARE_NIC: &str = "Mitra software NIC";

/// Returns the type of a device over these NICs. `None` is a software NIC.
fn hca_type<'a>(devices: impl Iterator<Item = Option<&'a str>> + Clone) -> String {
    if devices.clone().all(|device| device.is_none()) {
        return SOFTWARE_NIC.to_owned();
    }
    let names: Vec<_> = devices.map(|device| device.unwrap_or("soft")).collect();
    format!("Mitra over {}", names.join(","))
}

impl Attributes {
    /// Returns the present values. Before the process opens its device, the values follow from the
    /// settings. Returns `None` if the settings are malformed, so that there is no device. `before`
    /// contains the values of an earlier call.
    pub(in crate::interpose) fn now(before: Option<&Attributes>) -> Option<Attributes> {
        let name_of = |address: IpAddr| Some(interface_of(address).ok()??.name);
        if let Some(rails) = open::opened() {
            let first_gid = rails.first_gid;
            let gid = rails.device.gid().unwrap_or(first_gid);
            let known = before.filter(|before| before.gid == gid);
            let interface = known.map_or_else(|| name_of(gid.into()), |known| known.interface.clone());
            let (up, owner) = (rails.is_up(), Some(std::process::id()));
            let hca_type = hca_type(rails.nics.iter().map(|nic| nic.device_name()));
            return Some(Attributes { gid, first_gid, up, interface, hca_type, owner });
        }
        let rails = Settings::from_env().ok()?.rails;
        let hca_type = match &rails {
            RailsConfig::Devices(names) => hca_type(names.iter().map(|name| {
                // Which NIC has an address is known once the device is open.
                name.parse().is_ok_and(|name: NicName| name.is_device()).then_some(&**name)
            })),
            RailsConfig::Count(_) | RailsConfig::Addresses(_) => SOFTWARE_NIC.to_owned(),
        };
        let addresses = match rails {
            // With `--rails N`, each process that uses verbs has loopback addresses of its own.
            // Another process, such as `cat`, has none.
            RailsConfig::Count(_) if !is_linked_with_verbs() => vec![IpAddr::from(Ipv4Addr::LOCALHOST)],
            RailsConfig::Count(_) => vec![open::expected_address()?],
            RailsConfig::Addresses(addresses) => addresses,
            RailsConfig::Devices(_) => vec![open::expected_address()?],
        };
        let first = *addresses.first()?;
        let up = addresses.iter().any(|&address| !matches!(live_interface(address), Ok(None)));
        let gid = Gid::from(first);
        Some(Attributes { gid, first_gid: gid, up, interface: name_of(first), hca_type, owner: None })
    }

    /// Returns all files, with their paths without the first slash.
    pub(super) fn files(&self) -> Vec<(String, Entry)> {
        let mut files = Vec::new();
        let mut link = |path: String, target: String| files.push((path, Entry::Link(target)));
        link(
            format!("sys/class/infiniband/{DEVICE_NAME}"),
            format!("../../devices/virtual/infiniband/{DEVICE_NAME}"),
        );
        link(
            format!("sys/class/infiniband_verbs/{CHAR_DEVICE_NAME}"),
            format!("../../devices/virtual/infiniband_verbs/{CHAR_DEVICE_NAME}"),
        );
        let device = format!("sys/devices/virtual/infiniband/{DEVICE_NAME}");
        let verbs = format!("sys/devices/virtual/infiniband_verbs/{CHAR_DEVICE_NAME}");
        link(format!("{device}/subsystem"), "../../../../class/infiniband".to_owned());
        link(format!("{verbs}/subsystem"), "../../../../class/infiniband_verbs".to_owned());
        if let Some(name) = &self.interface {
            link(format!("{device}/device/net/{name}"), format!("/sys/class/net/{name}"));
        }
        let mut file = |path: String, text: &str| files.push((path, Entry::File(format!("{text}\n"))));
        // Only the names of these files matter: `place::at_file` opens the null device instead.
        file("dev/infiniband/rdma_cm".to_owned(), "");
        file(format!("dev/infiniband/{CHAR_DEVICE_NAME}"), "");
        // `IB_USER_VERBS_ABI_VERSION` in include/uapi/rdma/ib_user_verbs.h.
        file("sys/class/infiniband_verbs/abi_version".to_owned(), "6");
        file(format!("{verbs}/abi_version"), "1");
        file(format!("{verbs}/dev"), "231:192");
        file(format!("{verbs}/ibdev"), DEVICE_NAME);
        file(
            format!("{verbs}/uevent"),
            &format!("MAJOR=231\nMINOR=192\nDEVNAME=infiniband/{CHAR_DEVICE_NAME}"),
        );
        // The formats come from drivers/infiniband/core/sysfs.c and device.c.
        let guid = groups(&self.guid());
        for (name, text) in [
            ("fw_ver", env!("CARGO_PKG_VERSION")),
            ("hca_type", &self.hca_type),
            ("node_desc", DEVICE_NAME),
            ("node_guid", &guid),
            ("node_type", "1: CA"),
            ("sys_image_guid", &guid),
            ("uevent", &format!("NAME={DEVICE_NAME}")),
        ] {
            file(format!("{device}/{name}"), text);
        }
        let (ndev, gid) = (self.interface.as_deref().unwrap_or_default(), groups(&self.gid.0));
        for index in 0..GID_COUNT {
            file(format!("{device}/ports/1/gids/{index}"), &gid);
            file(format!("{device}/ports/1/gid_attrs/ndevs/{index}"), ndev);
            file(format!("{device}/ports/1/gid_attrs/types/{index}"), "RoCE v2");
        }
        file(format!("{device}/ports/1/pkeys/0"), &format!("{PKEY:#06x}"));
        for (name, text) in self.port_files() {
            file(format!("{device}/ports/1/{name}"), &text);
        }
        for (name, _) in COUNTERS {
            file(format!("{COUNTERS_DIR}/{name}"), "0");
        }
        files
    }

    pub(in crate::interpose) fn guid(&self) -> [u8; 8] {
        open::guid_of(self.first_gid).to_ne_bytes()
    }

    /// Contains the port's state, and the attributes that do not depend on the rails.
    pub(in crate::interpose) fn port(&self) -> ibv_port_attr {
        port_attr_when(self.up)
    }

    pub(in crate::interpose) fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    fn port_files(&self) -> [(&'static str, String); 9] {
        let port = self.port();
        let state = match port.state {
            IBV_PORT_ACTIVE => "ACTIVE",
            _ => "DOWN",
        };
        [
            ("cap_mask", format!("{:#010x}", port.port_cap_flags)),
            ("lid", format!("{:#x}", port.lid)),
            ("lid_mask_count", port.lmc.to_string()),
            ("link_layer", "Ethernet".to_owned()),
            ("phys_state", format!("{}: {}", port.phys_state, if self.up { "LinkUp" } else { "Polling" })),
            ("rate", "25 Gb/sec (1X EDR)".to_owned()),
            ("sm_lid", format!("{:#x}", port.sm_lid)),
            ("sm_sl", port.sm_sl.to_string()),
            ("state", format!("{}: {state}", port.state)),
        ]
    }
}

pub(super) const COUNTERS_DIR: &str = "sys/devices/virtual/infiniband/mitra0/ports/1/hw_counters";

/// Returns the names of the counter files, and the sums over the NICs of this process, if it has
/// opened its device.
pub(super) fn counters() -> Option<Vec<(&'static str, u64)>> {
    let rails: Arc<RailSet> = open::opened()?;
    let all: Vec<Counter> = rails.nics.iter().flat_map(|nic| nic.counters()).collect();
    let sum = |own| all.iter().filter(|counter| counter.name == own).map(|counter| counter.value).sum();
    Some(COUNTERS.iter().map(|(name, own)| (*name, sum(*own))).collect())
}

/// Returns whether the process has loaded libibverbs or librdmacm, so that it may open the device.
fn is_linked_with_verbs() -> bool {
    unsafe extern "C" fn is_verbs(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
        // SAFETY: the C library passes a description whose name is a C string.
        let name = unsafe { CStr::from_ptr((*info).dlpi_name) }.to_bytes();
        let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        (file.starts_with(b"libibverbs.so") || file.starts_with(b"librdmacm.so")).into()
    }
    // SAFETY: the function has the type for dl_iterate_phdr(3), and does not read the null data.
    unsafe { libc::dl_iterate_phdr(Some(is_verbs), ptr::null_mut()) != 0 }
}

/// Writes bytes as groups of four hexadecimal digits, as the kernel writes GIDs and GUIDs.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(up: bool, path: &str) -> Option<String> {
        let gid = Gid::from(IpAddr::from([127, 0, 0, 1]));
        let (interface, hca_type) = (Some("lo".to_owned()), SOFTWARE_NIC.to_owned());
        let attributes = Attributes { gid, first_gid: gid, up, interface, hca_type, owner: None };
        let path = format!("sys/devices/virtual/infiniband/mitra0/{path}");
        attributes.files().into_iter().find(|(at, _)| *at == path).map(|(_, entry)| match entry {
            Entry::File(text) | Entry::Link(text) => text,
        })
    }

    #[test]
    fn type_names_the_devices_of_the_kernel() {
        let of = |devices: &[Option<&str>]| hca_type(devices.iter().copied());
        assert_eq!(of(&[None, None]), "Mitra software NIC");
        assert_eq!(of(&[Some("mlx5_0"), Some("mlx5_1")]), "Mitra over mlx5_0,mlx5_1");
        assert_eq!(of(&[None, Some("mlx5_1")]), "Mitra over soft,mlx5_1");
    }

    #[test]
    fn files_have_the_form_of_the_kernel() {
        for (path, expected) in [
            ("hca_type", "Mitra software NIC\n"),
            ("node_guid", "024d:69ff:7f00:0001\n"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:7f00:0001\n"),
            ("ports/1/gid_attrs/types/0", "RoCE v2\n"),
            ("ports/1/gid_attrs/ndevs/1", "lo\n"),
            ("ports/1/pkeys/0", "0xffff\n"),
            ("ports/1/cap_mask", "0x04010000\n"),
            ("ports/1/lid", "0x0\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("device/net/lo", "/sys/class/net/lo"),
        ] {
            assert_eq!(text(true, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(text(false, "ports/1/state").as_deref(), Some("1: DOWN\n"));
        assert_eq!(text(false, "ports/1/phys_state").as_deref(), Some("2: Polling\n"));
        assert_eq!(text(true, "ports/1/gids/2"), None);
    }
}
