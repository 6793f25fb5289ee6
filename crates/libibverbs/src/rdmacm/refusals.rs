//! Messages in succession that the host of a peer has refused, because no process there has the
//! RoCE port open.

use mitra_verbs::Gid;

use super::network::Network;

/// The count for one peer. Refusals have no authentication, so any message of the peer resets it.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The numbers of port refusals before the last message, by address.
    before: Vec<((usize, Gid), u64)>,
    refused: u32,
}

impl Refusals {
    /// Call it before each message. `addresses` are those to which the message goes. Returns how
    /// many messages in succession were refused at each of their addresses.
    pub fn count(&mut self, network: &Network, addresses: Vec<(usize, Gid)>) -> u32 {
        let is_refused = !self.before.is_empty()
            && self.before.iter().all(|(address, before)| network.refusals(*address) > *before);
        self.refused = if is_refused { self.refused + 1 } else { 0 };
        self.before = addresses.into_iter().map(|address| (address, network.refusals(address))).collect();
        self.refused
    }

    /// The peer was heard.
    pub fn reset(&mut self) {
        self.before.clear();
        self.refused = 0;
    }

    /// Whether the last message went to the address.
    pub fn names(&self, address: (usize, Gid)) -> bool {
        self.before.iter().any(|(known, _)| *known == address)
    }
}
