use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use mitra_wire::ROCE_PORT;

/// Why a [`SoftNic`](crate::SoftNic) could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No interface of this machine has the address.
    #[error("{address} is not an address of this machine; use one in 127.0.0.0/8, or one of: {local}")]
    AddressNotLocal {
        /// What was asked for.
        address: IpAddr,
        /// What there is, comma-separated.
        local: String,
    },
    /// Somebody else has the address's RoCE port.
    #[error(
        "UDP port {ROCE_PORT} of {address} is taken by {holder}; use another address (each NIC needs its own), \
         or stop the other"
    )]
    PortTaken {
        /// What was asked for.
        address: IpAddr,
        /// Who has it, as far as can be seen.
        holder: String,
    },
    /// No loopback address has its RoCE port free.
    #[error(
        "UDP port {ROCE_PORT} is taken on every loopback address that was tried; {holder} has it on all \
         addresses: stop it, or have it bind to one"
    )]
    NoFreeLoopback {
        /// Who has it, as far as can be seen.
        holder: String,
    },
    /// The interface carries not even the smallest path MTU.
    #[error(
        "interface {interface} has an MTU of {mtu}, RoCEv2 needs at least 328 (348 over IPv6); raise it \
         (`ip link set {interface} mtu 1500`)"
    )]
    MtuTooSmall {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
    },
    /// A kind of address that a NIC cannot have.
    #[error("{address} cannot be a NIC's address: {why}")]
    UnusableAddress {
        /// What was asked for.
        address: IpAddr,
        /// Why not, and what to use instead.
        why: &'static str,
    },
    /// The capture file could not be made.
    #[error("cannot write the capture {}: {source}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's word.
        source: io::Error,
    },
}

/// Says what was tried when the system refuses.
pub(crate) trait Tried<T> {
    fn tried(self, what: &'static str) -> Result<T, OpenError>;
}

impl<T, E: Into<io::Error>> Tried<T> for Result<T, E> {
    fn tried(self, what: &'static str) -> Result<T, OpenError> {
        self.map_err(|e| OpenError::System { what, source: e.into() })
    }
}
