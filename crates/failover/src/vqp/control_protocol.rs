use smallvec::SmallVec;

use crate::ballot::Role;
use crate::config::Config;
use crate::control_message::{MAX_LEN, Message};
use crate::negotiation::RailNegotiation;
use crate::secret::SecretWord;

/// This end of the control protocol: the identities of both ends, and the rail negotiation.
#[derive(Debug)]
pub(super) struct ControlProtocol {
    pub(super) role: Role,
    /// In messages to this end.
    local_cookie: SecretWord,
    /// In messages to the peer.
    peer_cookie: SecretWord,
    pub(super) negotiation: RailNegotiation,
    /// Counts datagrams that were malformed or did not come from the peer.
    pub(super) rejected: u64,
}

impl ControlProtocol {
    pub(super) fn new(
        local_cookie: SecretWord,
        peer_cookie: SecretWord,
        rails: usize,
        config: &Config,
    ) -> ControlProtocol {
        let role = if local_cookie.expose() < peer_cookie.expose() { Role::Zero } else { Role::One };
        let mut negotiation =
            RailNegotiation::new(role, rails, config.control_retry_interval, config.peer_timeout);
        if config.requires_fence() {
            negotiation.allow_replacing_active_qps();
            if let Some(failback) = config.failback {
                negotiation.prefer(failback.rail.into(), failback.delay);
            }
        }
        if !config.decides_by_evidence() {
            negotiation.close_without_evidence();
        }
        ControlProtocol { role, local_cookie, peer_cookie, negotiation, rejected: 0 }
    }

    pub(super) fn encode(&self, message: &Message) -> SmallVec<[u8; MAX_LEN]> {
        message.encode(self.role, self.peer_cookie)
    }

    /// Decodes a datagram. Counts a datagram as rejected and returns `None` if it is malformed or
    /// not from the peer.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Option<Message> {
        let message = Message::decode(bytes, self.role.peer(), self.local_cookie);
        self.rejected += u64::from(message.is_err());
        message.ok()
    }
}
