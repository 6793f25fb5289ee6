use smallvec::SmallVec;

use crate::ballot::Role;
use crate::config::Config;
use crate::control_message::{MAX_LEN, Message};
use crate::negotiation::RailNegotiation;

/// The control connection to the peer: the identities of both ends, and the negotiation between them.
#[derive(Debug)]
pub(super) struct ControlProtocol {
    role: Role,
    local_cookie: u64,
    peer_cookie: u64,
    negotiation: RailNegotiation,
    /// Datagrams that were malformed or not of this vQP's peer.
    rejected: u64,
}

impl ControlProtocol {
    pub(super) fn new(local_cookie: u64, peer_cookie: u64, rails: usize, config: &Config) -> ControlProtocol {
        let role = if local_cookie < peer_cookie { Role::Zero } else { Role::One };
        let negotiation =
            RailNegotiation::new(role, rails, config.control_retry_interval, config.peer_timeout);
        ControlProtocol { role, local_cookie, peer_cookie, negotiation, rejected: 0 }
    }

    #[inline]
    pub(super) fn negotiation(&self) -> &RailNegotiation {
        &self.negotiation
    }

    pub(super) fn negotiation_mut(&mut self) -> &mut RailNegotiation {
        &mut self.negotiation
    }

    /// Encodes a message for the peer.
    pub(super) fn encode(&self, message: &Message) -> SmallVec<[u8; MAX_LEN]> {
        message.encode(self.role, self.peer_cookie)
    }

    /// Decodes a datagram from the peer; counts it and returns `None` if it is not one.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Option<Message> {
        let message = Message::decode(bytes, self.role.peer(), self.local_cookie);
        self.rejected += u64::from(message.is_err());
        message.ok()
    }

    pub(super) fn rejected(&self) -> u64 {
        self.rejected
    }
}
