//! The configuration of a process of the store.

use std::net::SocketAddr;
use std::time::Duration;

use mitra_consensus::ProcessId;

use crate::StoreConfig;

/// The configuration of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The dimensions of the store, the same at all processes and memory nodes.
    pub store: StoreConfig,
    /// The id of this process.
    pub id: ProcessId,
    /// The token of each process, indexed by [`ProcessId`].
    pub tokens: Vec<mitra_consensus_rdma::Token>,
    /// The address at which each process accepts its peers, indexed by [`ProcessId`].
    pub processes: Vec<SocketAddr>,
    /// The address of each memory node.
    pub memories: Vec<SocketAddr>,
    /// The address at which each process serves clients, indexed by [`ProcessId`]. The server
    /// redirects clients to the leader's address.
    pub client_addresses: Vec<SocketAddr>,
    /// The interval between two heartbeats. A leader counts as crashed after thirteen intervals
    /// without a heartbeat. On a busy machine, where leaders that were suspected prove alive, it
    /// takes up to a second more, or up to twice as long if the thirteen intervals are longer.
    pub heartbeat_interval: Duration,
    /// The configuration of the RDMA connections. Both ends of a connection must use the same
    /// configuration.
    pub failover: mitra_failover::Config,
}
