//! The messages that the host of a peer has refused, because no process there has the RoCE port
//! open.

use super::network::Network;
use crate::rails::cm_receiver::RailAddress;

/// The count for one peer. Refusals have no authentication, so any message of the peer resets it.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The numbers of port refusals before the last message, by address.
    before: Vec<(RailAddress, u64)>,
    refused: u32,
}

impl Refusals {
    /// Call it before each message. `addresses` are those of [`Network::decisive_addresses`].
    /// Returns 0 if the last message was not refused at each of its addresses, and else how many
    /// were since the peer was heard. They need not succeed each other: a host sends only about one
    /// refusal a second (`icmp_ratelimit`), whatever it refuses.
    pub fn count(&mut self, network: &Network, addresses: impl IntoIterator<Item = RailAddress>) -> u32 {
        let is_refused = !self.before.is_empty()
            && self.before.iter().all(|(address, before)| network.refusals(*address) > *before);
        self.before = addresses.into_iter().map(|address| (address, network.refusals(address))).collect();
        if !is_refused {
            return 0;
        }
        self.refused += 1;
        self.refused
    }

    /// Whether a message was refused since the peer was heard.
    pub fn is_any(&self) -> bool {
        self.refused > 0
    }

    /// The peer was heard.
    pub fn reset(&mut self) {
        self.before.clear();
        self.refused = 0;
    }

    /// Whether the last message went to the address.
    pub fn names(&self, address: RailAddress) -> bool {
        self.before.iter().any(|(known, _)| *known == address)
    }
}
