//! The connection manager (`rdma_cm`), as the threads of the device know it.

use std::sync::OnceLock;

use mitra_verbs::Gid;

pub(crate) use super::rail_address::{Endpoint, Endpoints, RailAddress};

/// The communication ids of a connection: that of the sender of a message, and that of the
/// receiver.
pub(crate) type CmConnection = (u32, u32);

/// The maximum number of connections that one statement names.
pub(crate) const MAX_CM_CONNECTIONS: usize = 48;

/// The connection manager. The calls come from the threads of the device, and must not wait.
pub(crate) trait CmReceiver: Sync {
    /// A datagram arrived at queue pair 1 that is not a message of the rails.
    fn on_datagram(&self, from: RailAddress, bytes: &[u8]);

    /// The device at `from` has the GID `current`, and answers a search.
    fn on_owner(&self, search: u64, from: RailAddress, current: Gid);

    /// Whether this device may have connections. If not, the statements of its peers are answered
    /// without the connection manager.
    fn has_connections(&self) -> bool;

    /// The device at `from` states its connections with this device.
    fn on_connections(&self, from: RailAddress, connections: Vec<CmConnection>);

    /// The device at `from` answers a statement of this device with the connections that it does
    /// not have.
    fn on_unknown_connections(&self, from: RailAddress, connections: Vec<CmConnection>);

    /// The process exits.
    fn on_exit(&self);
}

/// Set by the first call of the connection manager.
pub(super) type SharedReceiver = OnceLock<&'static dyn CmReceiver>;
