//! The preference for the home rail of the domain's vQPs, if they share atomics.
//!
//! If a vQP proposed another rail than the home, the home would move, and all other vQPs with it. So a vQP that was fenced because the home has
//! moved waits until it can move there. It proposes other rails only if the home is down, if the peer has refused it, or if it stays unusable for
//! long: then a rail that all peers can use may be found.

use mitra_verbs::Time;

use super::{Phase, RailNegotiation};

/// The wait is the peer timeout divided by this number.
const WAITS_PER_TIMEOUT: u32 = 4;

impl RailNegotiation {
    /// Sets the home rail.
    pub fn set_home(&mut self, rail: u8) {
        self.home = Some(rail);
    }

    /// Returns whether the peer has accepted the move in progress. True if there is none.
    pub fn has_peer_accepted(&self) -> bool {
        !matches!(&self.phase, Phase::Moving(m) if m.proposed && m.peer_evidence.is_none())
    }

    /// Returns the home rail if only this rail is to be proposed.
    pub(super) fn awaited_home(&self, now: Time) -> Option<u8> {
        let home = self.home.filter(|&home| home != self.active)?;
        let wait = self.peer_timeout / WAITS_PER_TIMEOUT;
        let is_wait_over = self.stranded_since.is_some_and(|since| now.saturating_since(since) >= wait);
        (!is_wait_over && (self.down | self.refused) & (1 << home) == 0).then_some(home)
    }
}
