//! The completions of a queue pair whose peer has closed the connection.
//!
//! A hardware NIC is not informed when the peer destroys its queue pair. The receives stay posted,
//! and a send fails only when its retries are exhausted. Programs rely on this behaviour: one end
//! destroys its queue pair while the other end still has receives posted, and expects no
//! completions of these receives. A virtual queue pair is informed, and flushes all requests at
//! once. This module therefore withholds the completions for as long as a hardware NIC would not
//! report them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mitra_verbs::{Wc, WcStatus};

/// The time after which the retries of a send are exhausted: 4.096 µs · 2¹⁴ for the first
/// transmission and for each of 7 retries. Most programs set these attributes (timeout 14, retry
/// count 7; IBTA volume 1, 9.7.6.1.3).
const RETRY_TIME: Duration = Duration::from_nanos(4_096 * (1 << 14) * 8);

/// The completions that are withheld since the peer closed the connection.
#[derive(Default)]
pub(super) struct PeerClosed {
    pub(super) sends: VecDeque<Wc>,
    pub(super) recvs: VecDeque<Wc>,
    /// The time at which the oldest send fails. `None` while no send is withheld.
    deadline: Option<Instant>,
}

impl PeerClosed {
    /// Withholds the completion of a send. Unsignalled sends are included, because every send of a
    /// failed queue pair completes.
    pub(super) fn withhold_send(&mut self, wc: Wc) {
        self.deadline.get_or_insert_with(|| Instant::now() + RETRY_TIME);
        self.sends.push_back(wc);
    }

    /// Returns whether the oldest send has exhausted its retries.
    pub(super) fn is_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns the time until the oldest send has exhausted its retries. `None` while no send is
    /// withheld.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Returns all withheld completions: the oldest send with the status `oldest`, all other
    /// requests as flushed.
    pub(super) fn fail(self, oldest: WcStatus) -> impl Iterator<Item = Wc> {
        let statuses = std::iter::once(oldest).chain(std::iter::repeat(WcStatus::Flushed));
        let sends = self.sends.into_iter().zip(statuses).map(|(wc, status)| Wc { status, ..wc });
        sends.chain(self.recvs.into_iter().map(|wc| Wc { status: WcStatus::Flushed, ..wc }))
    }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::{Qpn, WcOpcode};

    use super::*;

    fn wc(wr_id: u64, opcode: WcOpcode) -> Wc {
        Wc::new(wr_id, WcStatus::Success, opcode, Qpn::new(5))
    }

    #[test]
    fn oldest_send_expires_and_receives_do_not() {
        let mut withheld = PeerClosed::default();
        withheld.recvs.push_back(wc(1, WcOpcode::Recv));
        assert!(!withheld.is_expired() && withheld.deadline.is_none());
        withheld.withhold_send(wc(2, WcOpcode::Send));
        withheld.withhold_send(wc(3, WcOpcode::Write));
        assert!(!withheld.is_expired() && withheld.deadline.is_some());
        let failed: Vec<_> = withheld.fail(WcStatus::RetryExceeded).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(failed, [(2, WcStatus::RetryExceeded), (3, WcStatus::Flushed), (1, WcStatus::Flushed)]);
    }
}
