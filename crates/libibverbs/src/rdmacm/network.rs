//! The rails, as the connection manager uses them, and the addresses of a peer on the rails.

use std::iter;
use std::sync::Arc;

use mitra_os_util::random::random_u64;
use mitra_verbs::Gid;
use nix::errno::Errno;

use super::protocol::connection::Outgoing;
use super::protocol::encoding::encode;
use super::protocol::message::Transaction;
use super::rdma_port::errno_of;
use crate::rails::cm_datagrams::{
    OwnerSearch, encode_cm_connections, encode_unknown_cm_connections, is_search_due,
};
use crate::rails::cm_receiver::{CmConnection, Endpoint, Endpoints, RailAddress};
use crate::rails::open::guid_of;
use crate::rails::rail_set::RailSet;

/// The upper half of the GUID of each of Mitra's devices (`guid_of`).
const MITRA_GUID: u64 = 0x024d_69ff;

pub fn is_mitra(guid: u64) -> bool {
    guid >> 32 == MITRA_GUID
}

/// The device's rails.
pub struct Network {
    rails: Arc<RailSet>,
    /// The path MTU of the port, as an `ibv_mtu`.
    pub path_mtu: u8,
}

impl Network {
    pub fn new(rails: Arc<RailSet>, path_mtu: u8) -> Self {
        Self { rails, path_mtu }
    }

    /// The present GID of the device.
    pub fn gid(&self) -> Gid {
        self.rails.gid_of_rail_0()
    }

    pub fn endpoints(&self) -> Endpoints {
        self.rails.device.endpoints()
    }

    pub fn guid(&self) -> u64 {
        u64::from_be(guid_of(self.rails.first_gid))
    }

    /// Whether at least one rail can send.
    pub fn is_up(&self) -> bool {
        self.rails.is_up()
    }

    pub fn is_rail_up(&self, rail: usize) -> bool {
        self.rails.is_rail_up(rail)
    }

    /// Returns a number that changes when the host at the address says that no process has the RoCE
    /// port open.
    pub fn refusals(&self, address: RailAddress) -> u64 {
        self.rails.port_refusals(address)
    }

    /// Sends a message to a peer. Repetitions also use other addresses of the peer than the one
    /// from which it was heard last.
    pub fn send(&self, Outgoing { transaction, repetition }: &Outgoing, path: &PeerPath) {
        let all = if *repetition > 0 { path.all_addresses() } else { vec![path.address()] };
        all.into_iter().for_each(|address| self.send_to(address, transaction));
        if is_search_due(*repetition, || self.is_rail_up(0)) {
            self.find_owner(path);
        }
    }

    pub fn send_to(&self, to: RailAddress, transaction: &Transaction) {
        let device = (to.rail > 0).then(|| self.gid());
        self.rails.device.send_cm(to, &encode(transaction, device));
    }

    /// Asks on all rails but the first for the device of a path.
    pub fn find_owner(&self, path: &PeerPath) {
        self.rails.device.find_owner(&path.search);
    }

    /// States connections of this device to the device at `to`, at most
    /// [`MAX_CM_CONNECTIONS`](crate::rails::cm_receiver::MAX_CM_CONNECTIONS).
    pub fn state_connections(&self, to: RailAddress, connections: Vec<CmConnection>) {
        self.rails.device.send_cm(to, &encode_cm_connections(connections));
    }

    /// Answers a statement with those of its connections that this device does not have.
    pub fn answer_connections(&self, to: RailAddress, unknown: Vec<CmConnection>) {
        self.rails.device.send_cm(to, &encode_unknown_cm_connections(unknown));
    }

    /// Returns the addresses that together speak for the peer: if all of them refuse, its process
    /// has ended. It is the one at which the peer was heard last. If that rail is down at this end,
    /// nothing arrives from there, so that the others count.
    pub fn decisive_addresses(&self, path: &PeerPath) -> Vec<RailAddress> {
        let address = path.address();
        if self.is_rail_up(address.rail) {
            return vec![address];
        }
        path.all_addresses().into_iter().filter(|address| self.is_rail_up(address.rail)).collect()
    }

    /// Whether the device at an address may say that it does not have a connection on this path.
    /// Another process may have an address that the peer has had before.
    pub fn speaks_for_peer(&self, from: RailAddress, path: &PeerPath) -> bool {
        self.decisive_addresses(path).contains(&from)
    }
}

/// The addresses at which the peer of a connection or lookup is reached.
#[derive(Debug)]
pub struct PeerPath {
    /// The GID of the peer's device, which is its address on rail 0.
    pub gid: Gid,
    /// How the peer's process is reached there.
    endpoint: Endpoint,
    /// The address at which the peer was heard last.
    heard: Option<RailAddress>,
    search: OwnerSearch,
}

impl PeerPath {
    /// # Errors
    /// The error of the system's random source.
    pub fn new(gid: Gid, endpoint: Endpoint) -> Result<Self, Errno> {
        let search = OwnerSearch::new(random_u64().map_err(errno_of)?, gid);
        Ok(Self { gid, endpoint, heard: None, search })
    }

    pub fn set_heard(&mut self, from: RailAddress) {
        self.heard = Some(from);
    }

    pub fn search_id(&self) -> u64 {
        self.search.id
    }

    /// Records an answer to the search for the peer's device.
    pub fn add_owner(&mut self, from: RailAddress, current: Gid) {
        self.search.add_owner(from, current);
    }

    /// Returns the address at which the peer was heard last, or else its GID on rail 0.
    pub fn address(&self) -> RailAddress {
        self.heard.unwrap_or(self.address_on_rail_0())
    }

    fn address_on_rail_0(&self) -> RailAddress {
        RailAddress { rail: 0, gid: self.gid, endpoint: self.endpoint }
    }

    /// Returns [`address`](Self::address), and then the other addresses that the peer may have.
    pub fn all_addresses(&self) -> Vec<RailAddress> {
        let address = self.address();
        // A process has the same port on all of its rails.
        let of_process = |owner: RailAddress| match owner.endpoint {
            Endpoint::Any => RailAddress { endpoint: self.endpoint, ..owner },
            Endpoint::QueuePair1 | Endpoint::Socket(_) => owner,
        };
        let others = self.search.owners().map(of_process).chain([self.address_on_rail_0()]);
        iter::once(address).chain(others.filter(|other| *other != address)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_use_all_known_addresses_once() {
        let first = RailAddress { rail: 0, gid: Gid([1; 16]), endpoint: Endpoint::QueuePair1 };
        let second = RailAddress { rail: 1, gid: Gid([2; 16]), endpoint: Endpoint::QueuePair1 };
        let mut path = PeerPath::new(first.gid, first.endpoint).expect("the system has a random source");
        assert_eq!((path.address(), path.all_addresses()), (first, vec![first]));
        path.add_owner(second, first.gid);
        assert_eq!((path.address(), path.all_addresses()), (first, vec![first, second]));
        path.set_heard(first);
        assert_eq!((path.address(), path.all_addresses()), (first, vec![first, second]));
        path.set_heard(second);
        assert_eq!((path.address(), path.all_addresses()), (second, vec![second, first]));
    }

    #[test]
    fn guid_tells_mitra_from_other_devices() {
        assert!(is_mitra(u64::from_be(guid_of(Gid([9; 16])))));
        assert!(!is_mitra(0x0255_00ff_fe12_3456));
    }
}
