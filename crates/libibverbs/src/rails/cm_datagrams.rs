//! The datagrams of the connection manager (`rdma_cm`), which travel between the queue pairs 1 of
//! the rails, as those of the kernel's connection manager do.

use mitra_verbs::PortState;

use super::cm_receiver::{CmReceiver, RailAddress};
use super::rail_set::RailSet;
pub(crate) use super::rendezvous::{
    OwnerSearch, encode_cm_connections, encode_unknown_cm_connections, is_search_due,
};

impl RailSet {
    /// Only the first call of this method has an effect.
    pub(crate) fn set_cm_receiver(&self, receiver: &'static dyn CmReceiver) {
        let _ = self.device.cm_receiver().map(|cell| cell.set(receiver));
    }

    pub(crate) fn is_rail_up(&self, rail: usize) -> bool {
        let nic = self.nics.get(rail);
        nic.is_some_and(|nic| nic.query_port().is_ok_and(|port| port.state == PortState::Active))
    }

    /// Returns a number that changes when the host at an address says that the process there has
    /// ended: that nobody has its socket, or [`mitra_verbs::Provider::port_refusals`] of the rail.
    pub(crate) fn port_refusals(&self, at: RailAddress) -> u64 {
        let of_nic = || self.nics.get(at.rail).map_or(0, |nic| nic.port_refusals(at.gid));
        self.device.socket_refusals(at).unwrap_or_else(of_nic)
    }
}
