//! What is looked up on this machine.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::path::Path;

use mitra_softnic::interfaces;
use mitra_verbs::Mtu;
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;

/// An address that a software NIC might have.
#[derive(Serialize)]
pub(super) struct Address {
    pub(super) address: String,
    pub(super) interface: String,
    pub(super) loopback: bool,
    /// Of the interface.
    pub(super) mtu: usize,
    /// Payload bytes of a packet.
    pub(super) roce_mtu: Option<usize>,
    /// Why a NIC cannot have it, if it cannot.
    pub(super) refused: Option<String>,
}

pub(super) fn addresses() -> io::Result<Vec<Address>> {
    let of = |interface: mitra_softnic::Interface| {
        let down =
            (!interface.up).then(|| format!("the interface is down; ip link set {} up", interface.name));
        Address {
            // All of 127.0.0.0/8 is the loopback interface's.
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
    Ok(interfaces()?.into_iter().map(of).collect())
}

/// Runs of datagrams in one piece.
#[derive(Serialize)]
pub(super) struct Offload {
    /// On their way out (UDP_SEGMENT).
    pub(super) gso: bool,
    /// On their way in (UDP_GRO).
    pub(super) gro: bool,
}

impl Offload {
    pub(super) fn look() -> Offload {
        let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else { return Offload { gso: false, gro: false } };
        Offload {
            gso: setsockopt(&socket, sockopt::UdpGsoSegment, &1024).is_ok(),
            gro: setsockopt(&socket, sockopt::UdpGroSegment, &true).is_ok(),
        }
    }
}

/// Socket buffers, in bytes.
#[derive(Serialize)]
pub(super) struct Buffers {
    /// What a NIC asks for in each direction.
    pub(super) asked: u64,
    /// What the kernel grants at most.
    pub(super) rmem_max: Option<u64>,
    pub(super) wmem_max: Option<u64>,
    /// What a NIC got, as the kernel counts: twice what it grants, for its own overhead.
    pub(super) receive_buffer: usize,
}

impl Buffers {
    pub(super) fn look(receive_buffer: usize) -> Buffers {
        let max = |name: &str| {
            fs::read_to_string(Path::new("/proc/sys/net/core").join(name)).ok()?.trim().parse().ok()
        };
        // A quarter of twice this is the largest send window.
        Buffers { asked: 2 << 20, rmem_max: max("rmem_max"), wmem_max: max("wmem_max"), receive_buffer }
    }
}

/// Somebody has UDP port 4791 of an address.
#[derive(Serialize)]
pub(super) struct PortUse {
    pub(super) address: String,
    pub(super) holder: String,
}

pub(super) fn port_users() -> Vec<PortUse> {
    let of = |user: mitra_softnic::RocePortOwner| PortUse {
        address: if user.address.is_unspecified() {
            format!("{} (all)", user.address)
        } else {
            user.address.to_string()
        },
        holder: user.process(),
    };
    mitra_softnic::roce_port_owners().into_iter().map(of).collect()
}

/// An RDMA device that the kernel knows.
#[derive(Serialize)]
pub(super) struct Hardware {
    pub(super) name: String,
    /// Such as `CA`, with the link layer of port 1.
    pub(super) kind: String,
    /// Of port 1.
    pub(super) state: String,
}

pub(super) fn hardware() -> Vec<Hardware> {
    let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let of = |device: fs::DirEntry| {
        let read = |file: &str| {
            let text = fs::read_to_string(device.path().join(file)).unwrap_or_default();
            // "1: CA", "4: ACTIVE"
            text.trim().rsplit(": ").next().unwrap_or_default().to_owned()
        };
        Hardware {
            name: device.file_name().to_string_lossy().into_owned(),
            kind: format!("{} over {}", read("node_type"), read("ports/1/link_layer")),
            state: read("ports/1/state").to_lowercase(),
        }
    };
    devices.map(of).collect()
}
