//! Queries of this machine: addresses, socket offloads and buffers, users of the RoCE port, RDMA
//! devices.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;

use mitra_os_util::interfaces::{Interface, interfaces};
use mitra_verbs::Mtu;
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;

/// An address that a software NIC could use.
#[derive(Serialize)]
pub(super) struct Address {
    pub(super) address: String,
    pub(super) interface: String,
    pub(super) loopback: bool,
    /// The MTU of the interface in bytes.
    pub(super) mtu: usize,
    /// The largest RoCEv2 MTU that fits the interface, in bytes. `None` if none fits.
    pub(super) roce_mtu: Option<usize>,
    /// The reason why a NIC cannot use the address. `None` if a NIC can use it.
    pub(super) refused: Option<String>,
}

pub(super) fn addresses() -> io::Result<Vec<Address>> {
    let to_address = |interface: Interface| {
        let down =
            (!interface.up).then(|| format!("the interface is down; ip link set {} up", interface.name));
        Address {
            // Every address in 127.0.0.0/8 belongs to the loopback interface.
            address: match interface.address {
                std::net::IpAddr::V4(v4) if v4.is_loopback() => "127.0.0.0/8".to_owned(),
                other => other.to_string(),
            },
            roce_mtu: Mtu::for_interface(interface.mtu, interface.address.is_ipv6()).map(Mtu::bytes),
            interface: interface.name,
            loopback: interface.loopback,
            mtu: interface.mtu,
            refused: interface.usable.err().map(str::to_owned).or(down),
        }
    };
    Ok(interfaces()?.into_iter().map(to_address).collect())
}

/// The offloads with which one system call sends or receives several UDP datagrams.
#[derive(Serialize)]
pub(super) struct Offload {
    /// Whether the kernel supports UDP_SEGMENT for sending.
    pub(super) gso: bool,
    /// Whether the kernel supports UDP_GRO for receiving.
    pub(super) gro: bool,
}

impl Offload {
    pub(super) fn query() -> Offload {
        let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return Offload { gso: false, gro: false } };
        Offload {
            gso: setsockopt(&socket, sockopt::UdpGsoSegment, &1024).is_ok(),
            gro: setsockopt(&socket, sockopt::UdpGroSegment, &true).is_ok(),
        }
    }
}

/// Socket buffer sizes in bytes.
#[derive(Serialize)]
pub(super) struct Buffers {
    /// The size that a NIC requests in each direction.
    pub(super) asked: u64,
    /// The largest receive buffer that the kernel grants (`net.core.rmem_max`). `None` if it cannot
    /// be read.
    pub(super) rmem_max: Option<u64>,
    /// The largest send buffer that the kernel grants (`net.core.wmem_max`). `None` if it cannot be
    /// read.
    pub(super) wmem_max: Option<u64>,
    /// The size of a NIC's receive buffer, as the kernel reports it: twice the granted size,
    /// because the kernel adds space for its own overhead (`SO_RCVBUF` in `socket(7)`).
    pub(super) receive_buffer: usize,
}

impl Buffers {
    pub(super) fn query(receive_buffer: usize) -> Buffers {
        let max = |name: &str| {
            fs::read_to_string(Path::new("/proc/sys/net/core").join(name)).ok()?.trim().parse().ok()
        };
        // The kernel reports twice this size, 4 MiB. A quarter of the reported size is 1 MiB, the
        // largest send window of a NIC.
        Buffers { asked: 2 << 20, rmem_max: max("rmem_max"), wmem_max: max("wmem_max"), receive_buffer }
    }
}

/// A process that uses UDP port 4791 of an address.
#[derive(Serialize)]
pub(super) struct PortUse {
    pub(super) address: String,
    pub(super) holder: String,
}

pub(super) fn port_users() -> Vec<PortUse> {
    let to_port_use = |user: mitra_softnic::RocePortUser| PortUse {
        address: if user.address.is_unspecified() {
            format!("{} (all)", user.address)
        } else {
            user.address.to_string()
        },
        holder: user.process(),
    };
    mitra_softnic::roce_port_users().into_iter().map(to_port_use).collect()
}

/// An RDMA device of the kernel.
#[derive(Serialize)]
pub(super) struct RdmaDevice {
    pub(super) name: String,
    /// The address that a NIC on the device has. `None` if it has none or is not used.
    pub(super) address: Option<String>,
    /// The reason why Mitra does not use the device. `None` if it does.
    pub(super) refused: Option<String>,
    /// The node type and the link layer of port 1, such as "CA over Ethernet".
    pub(super) kind: String,
    /// The state of port 1.
    pub(super) state: String,
}

pub(super) fn hardware() -> Vec<RdmaDevice> {
    let known = mitra_hardnic::devices();
    let usable = |name: &str| match &known {
        Ok(devices) => match devices.iter().find(|device| device.name == name) {
            Some(device) => match (&device.refusal, device.address) {
                (Some(refusal), _) => (None, Some(refusal.to_string())),
                (None, Some(address)) => (Some(address.to_string()), None),
                (None, None) => (None, Some("its interface has no IP address (ip addr add)".to_owned())),
            },
            None => (None, Some("libibverbs does not list it; install ibverbs-providers".to_owned())),
        },
        Err(error) => (None, Some(error.to_string())),
    };
    let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let to_device = |device: fs::DirEntry| {
        let read = |file: &str| {
            let text = fs::read_to_string(device.path().join(file)).unwrap_or_default();
            // The files contain a number and a name: "1: CA", "4: ACTIVE".
            text.trim().rsplit(": ").next().unwrap_or_default().to_owned()
        };
        let name = device.file_name().to_string_lossy().into_owned();
        let (address, refused) = usable(&name);
        RdmaDevice {
            name,
            address,
            refused,
            kind: format!("{} over {}", read("node_type"), read("ports/1/link_layer")),
            state: read("ports/1/state").to_lowercase(),
        }
    };
    devices.map(to_device).collect()
}
