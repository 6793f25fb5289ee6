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

    /// Returns [`mitra_verbs::Provider::port_refusals`] of the rail.
    pub(crate) fn port_refusals(&self, RailAddress { rail, gid, .. }: RailAddress) -> u64 {
        self.nics.get(rail).map_or(0, |nic| nic.port_refusals(gid))
    }
}
