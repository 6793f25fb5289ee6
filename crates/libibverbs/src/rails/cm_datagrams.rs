//! The datagrams of the connection manager (`rdma_cm`), which travel between the queue pairs 1 of
//! the rails, as those of the kernel's connection manager do.

use mitra_verbs::PortState;

use super::cm_receiver::{CmConnection, CmReceiver, RailAddress};
use super::rail_set::RailSet;
pub(crate) use super::rendezvous::{OwnerSearch, is_search_due};
use super::rendezvous::{encode_cm_connections, encode_unknown_cm_connections};

impl RailSet {
    /// Only the first call of this method has an effect.
    pub(crate) fn set_cm_receiver(&self, receiver: &'static dyn CmReceiver) {
        let _ = self.cm_receiver.set(receiver);
        match (&self.multi_rail, self.one_rail.get()) {
            (Some(multi_rail), _) => multi_rail.domain().rendezvous.set_cm_receiver(receiver),
            (None, Some(one_rail)) => one_rail.set_cm_receiver(receiver),
            // Queue pair 1 could not be opened, and nothing arrives.
            (None, None) => {}
        }
    }

    /// Sends a datagram of the connection manager to queue pair 1 at `to`. A datagram that the rail
    /// cannot send is lost.
    pub(crate) fn send_cm(&self, to: RailAddress, bytes: &[u8]) {
        match (&self.multi_rail, self.one_rail.get()) {
            (Some(multi_rail), _) => multi_rail.domain().rendezvous.send(to.rail, to.gid, bytes),
            (None, Some(one_rail)) => one_rail.send(to.gid, bytes),
            (None, None) => {}
        }
    }

    /// States connections of this device to the device at `to`, at most
    /// [`MAX_CM_CONNECTIONS`](super::cm_receiver::MAX_CM_CONNECTIONS).
    pub(crate) fn state_cm_connections(&self, to: RailAddress, connections: Vec<CmConnection>) {
        self.send_cm(to, &encode_cm_connections(connections));
    }

    /// Answers a statement with those of its connections that this device does not have.
    pub(crate) fn answer_cm_connections(&self, to: RailAddress, unknown: Vec<CmConnection>) {
        self.send_cm(to, &encode_unknown_cm_connections(unknown));
    }

    /// Asks on all rails but the first which device has the GID of the search. Does nothing on a
    /// device with one rail.
    pub(crate) fn find_owner(&self, search: &OwnerSearch) {
        if let Some(multi_rail) = &self.multi_rail {
            multi_rail.domain().rendezvous.ask_group(search);
        }
    }

    pub(crate) fn is_rail_up(&self, rail: usize) -> bool {
        let nic = self.nics().get(rail);
        nic.is_some_and(|nic| nic.query_port().is_ok_and(|port| port.state == PortState::Active))
    }

    /// Returns [`Provider::port_refusals`] of the rail.
    pub(crate) fn port_refusals(&self, RailAddress { rail, gid }: RailAddress) -> u64 {
        self.nics().get(rail).map_or(0, |nic| nic.port_refusals(gid))
    }
}
