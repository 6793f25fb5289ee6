//! The detection of a lost peer at an end without heartbeats.

use mitra_verbs::Time;

use super::{Posted, State};
use crate::close_reason::CloseReason;

impl State {
    /// Without heartbeats, sends an empty message from time to time while a member waits for its
    /// peer. If the peer's NIC is gone, the message exhausts its retries. If the peer's process is
    /// gone or has lost its NIC, the messages use up the peer's receives, and the backup closes.
    pub(super) fn probe(&mut self) {
        if self.backup.datapath.has_heartbeats() {
            return;
        }
        let now = self.backup.datapath.now();
        if !self.posted.is_empty() {
            return self.close_without_receives(now);
        }
        if now < self.next_probe {
            return;
        }
        self.next_probe = now + self.backup.datapath.detector().heartbeat_interval;
        if self.entries().any(|entry| entry.core.awaits_peer() || entry.awaits_program) {
            self.send_empty_message();
        }
    }

    /// Closes the backup if its oldest request is a message that has waited for the whole peer
    /// timeout. Does nothing during a failover. The peer's NIC still answers such a message.
    /// Otherwise the message would have exhausted its retries earlier.
    fn close_without_receives(&mut self, now: Time) {
        let completed = self.posted_count - self.posted.len() as u64;
        let is_message = matches!(self.posted.front(), Some(Posted::Message { .. }));
        if !is_message || self.backup.failover.recovery.replay.is_failover_in_progress() {
            self.oldest_since = None;
            return;
        }
        let since = match self.oldest_since {
            Some((count, since)) if count == completed => since,
            _ => now,
        };
        self.oldest_since = Some((completed, since));
        if now.saturating_since(since) >= self.backup.config().peer_timeout {
            self.backup.failover.recovery.close(&mut self.backup.datapath, CloseReason::PeerUnreachable);
        }
    }
}
