//! The rails, as the connection manager uses them, and the addresses of a peer on the rails.

use std::sync::Arc;

use mitra_os_util::random::random_u64;
use mitra_verbs::Gid;
use nix::errno::Errno;

use super::protocol::connection::Outgoing;
use super::protocol::encoding::encode;
use super::protocol::message::Transaction;
use super::rdma_port::errno_of;
use crate::rails::cm_datagrams::{OwnerSearch, is_search_due};
use crate::rails::cm_receiver::CmConnection;
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

    pub fn guid(&self) -> u64 {
        u64::from_be(guid_of(self.rails.first_gid()))
    }

    /// Whether at least one rail can send.
    pub fn is_up(&self) -> bool {
        self.rails.is_up()
    }

    /// Returns a number that changes when the host at the address says that no process has the RoCE
    /// port open.
    pub fn refusals(&self, (rail, address): (usize, Gid)) -> u64 {
        self.rails.port_refusals(rail, address)
    }

    /// Sends a message to a peer. Repetitions also use other addresses of the peer than the one
    /// from which it was heard last.
    pub fn send(&self, Outgoing { transaction, repetition }: &Outgoing, path: &PeerPath) {
        for (rail, address) in path.addresses(*repetition > 0) {
            self.send_to(rail, address, transaction);
        }
        if is_search_due(*repetition, || self.rails.is_rail_up(0)) {
            self.rails.find_owner(&path.search);
        }
    }

    pub fn send_to(&self, rail: usize, address: Gid, transaction: &Transaction) {
        let device = (rail > 0).then(|| self.gid());
        self.rails.send_cm(rail, address, &encode(transaction, device));
    }

    pub fn state_connections(&self, (rail, address): (usize, Gid), connections: Vec<CmConnection>) {
        self.rails.state_cm_connections(rail, address, connections);
    }

    pub fn answer_connections(&self, (rail, address): (usize, Gid), unknown: Vec<CmConnection>) {
        self.rails.answer_cm_connections(rail, address, unknown);
    }
}

/// The addresses at which the peer of a connection or lookup is reached.
#[derive(Debug)]
pub struct PeerPath {
    /// The GID of the peer's device, which is its address on rail 0.
    pub gid: Gid,
    /// The rail on which the peer was heard last, and the address from which.
    heard: Option<(usize, Gid)>,
    search: OwnerSearch,
}

impl PeerPath {
    /// # Errors
    /// The error of the system's random source.
    pub fn new(gid: Gid) -> Result<Self, Errno> {
        let search = OwnerSearch::new(random_u64().map_err(errno_of)?, gid);
        Ok(Self { gid, heard: None, search })
    }

    pub fn set_heard(&mut self, rail: usize, from: Gid) {
        self.heard = Some((rail, from));
    }

    pub fn search_id(&self) -> u64 {
        self.search.id
    }

    /// Records an answer to the search for the peer's device.
    pub fn add_owner(&mut self, rail: usize, from: Gid, current: Gid) {
        self.search.add_owner(rail, from, current);
    }

    /// Returns the address for the first transmission of a message, or all known addresses. Each is
    /// a rail and the peer's address on it.
    pub fn addresses(&self, all: bool) -> Vec<(usize, Gid)> {
        let mut addresses = vec![self.heard.unwrap_or((0, self.gid))];
        if all {
            let others = self.search.owners().chain([(0, self.gid)]);
            addresses.extend(others.filter(|other| Some(*other) != self.heard));
            addresses.dedup();
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_use_all_known_addresses_once() {
        let [gid, other] = [Gid([1; 16]), Gid([2; 16])];
        let mut path = PeerPath::new(gid).expect("the system has a random source");
        assert_eq!((path.addresses(false), path.addresses(true)), (vec![(0, gid)], vec![(0, gid)]));
        path.set_heard(0, gid);
        assert_eq!(path.addresses(true), [(0, gid)]);
        path.add_owner(1, other, gid);
        assert_eq!(
            (path.addresses(false), path.addresses(true)),
            (vec![(0, gid)], vec![(0, gid), (1, other)])
        );
        path.set_heard(1, other);
        assert_eq!(
            (path.addresses(false), path.addresses(true)),
            (vec![(1, other)], vec![(1, other), (0, gid)])
        );
    }

    #[test]
    fn guid_tells_mitra_from_other_devices() {
        assert!(is_mitra(u64::from_be(guid_of(Gid([9; 16])))));
        assert!(!is_mitra(0x0255_00ff_fe12_3456));
    }
}
