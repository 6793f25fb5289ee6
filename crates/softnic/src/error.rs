//! The errors of opening a NIC.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use mitra_os_util::interfaces::interfaces;
use mitra_wire::ROCE_PORT;

/// Why a [`SoftNic`](crate::SoftNic) could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No interface of this machine has the address.
    #[error("{address} is not an address of this machine; {way_out}")]
    AddressNotLocal {
        /// The configured address.
        address: IpAddr,
        /// The usable addresses of this machine, or how the loopback interface gets its addresses.
        way_out: String,
    },
    /// Another socket is bound to the RoCE port of the address.
    #[error(
        "UDP port {ROCE_PORT} of {address} is in use by {owner}; use another address (each NIC needs its own), \
         or stop the other NIC"
    )]
    PortTaken {
        /// The configured address.
        address: IpAddr,
        /// A description of the process that holds the port, as far as this user can see it.
        owner: String,
    },
    /// Every loopback address that the NIC tried has its RoCE port in use.
    #[error(
        "UDP port {ROCE_PORT} is in use on every loopback address that was tried, by {owner}; stop it, or bind it \
         to a single address"
    )]
    NoFreeLoopback {
        /// Describes the process that uses the port of the last address that the NIC tried, as far
        /// as this user can see that process.
        owner: String,
    },
    /// The interface cannot carry the smallest path MTU.
    #[error(
        "interface {interface} has an MTU of {mtu} bytes, and RoCEv2 needs at least 328 (348 over IPv6); raise it \
         (`ip link set {interface} mtu 1500`)"
    )]
    MtuTooSmall {
        /// The name of the interface.
        interface: String,
        /// The MTU of the interface, in bytes.
        mtu: usize,
    },
    /// A NIC cannot use this kind of address.
    #[error("{address} cannot be the address of a NIC: {reason}")]
    UnusableAddress {
        /// The configured address.
        address: IpAddr,
        /// Why the address is unusable, and what to use instead.
        reason: &'static str,
    },
    /// The capture file cannot be created.
    #[error("cannot create the capture file {}: {source}", path.display())]
    Capture {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another operation of the operating system failed.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Adds the name of an operation to an error of the operating system.
pub(crate) trait WithOperation<T> {
    fn with_operation(self, operation: &'static str) -> Result<T, OpenError>;
}

impl<T, E: Into<io::Error>> WithOperation<T> for Result<T, E> {
    fn with_operation(self, operation: &'static str) -> Result<T, OpenError> {
        self.map_err(|e| OpenError::System { operation, source: e.into() })
    }
}

/// Returns the error for an address that no interface has. It names the addresses that a NIC can
/// use. A loopback address is missing because the loopback interface is down, as in a new network
/// namespace, or has no IPv6.
pub(crate) fn not_local(address: IpAddr) -> OpenError {
    let way_out = match address {
        IpAddr::V4(v4) if v4.is_loopback() => {
            "bring the loopback interface up (`ip link set lo up`)".to_owned()
        }
        IpAddr::V6(v6) if v6.is_loopback() => {
            "bring the loopback interface up with IPv6 (`sysctl net.ipv6.conf.lo.disable_ipv6=0`, `ip link set lo up`), or use \
             an address in 127.0.0.0/8"
                .to_owned()
        }
        _ => {
            let usable: Vec<String> = interfaces()
                .into_iter()
                .flatten()
                .filter(|interface| !interface.address.is_loopback() && interface.usable.is_ok())
                .map(|interface| interface.address.to_string())
                .collect();
            let others =
                if usable.is_empty() { String::new() } else { format!(", or one of: {}", usable.join(", ")) };
            format!("use one in 127.0.0.0/8{others}")
        }
    };
    OpenError::AddressNotLocal { address, way_out }
}
