//! A small RPC on the filter: drivers of the state machines.

mod carrier;
mod client;
mod server;
mod slots;
mod ud;
mod vqp;

use std::time::{SystemTime, UNIX_EPOCH};

pub use carrier::{Carrier, Event, OrderedCarrier};
pub use client::{ClientConfig, RpcClient};
pub use server::{Reply, Request, RpcServer, ServerStats};
pub use ud::{UdAddress, UdCarrier, UdNode};
pub use vqp::{VqpCarrier, VqpConnection};

/// The error of a function of the RPC.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The body is too long.
    #[error("a body of {len} bytes exceeds the limit of {max} bytes; split it, or raise the carrier's limit")]
    TooLong {
        /// The length of the body.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Too many calls are outstanding.
    #[error("{0} calls are outstanding, as many as the configuration allows; poll until one has ended")]
    Full(usize),
    /// The connection has ended.
    #[error("the connection to the server has ended; connect again and make a new client")]
    Closed,
    /// All places of the carrier have a connection.
    #[error(
        "all {0} places for connections are taken; disconnect a node, or make a carrier with more places"
    )]
    NoPlace(usize),
    /// The NIC or the virtual queue pair failed.
    #[error(transparent)]
    Nic(#[from] mitra_verbs::Error),
}

/// Returns the time since 1970 in nanoseconds: an incarnation that grows with every start of a
/// program, unless the host's clock is set back.
pub fn incarnation_by_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
