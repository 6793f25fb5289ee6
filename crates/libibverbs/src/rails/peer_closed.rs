//! A connection whose peer has destroyed its queue pair.
//!
//! A queue pair of a real NIC does not notice that: its receives stay posted, and a send is retried until the retry count is
//! exhausted. Programs rely on the first, when one end destroys its queue pair while the other still has receives posted. A
//! virtual queue pair flushes everything at once, so this module withholds its completions as long as a real NIC would.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mitra_verbs::{Wc, WcStatus};

/// How long a send is retried: 4.096 µs · 2¹⁴ with 7 retries, the attributes that most programs set (IBTA volume 1, 9.7.6.1.3).
const RETRY_TIME: Duration = Duration::from_nanos(4_096 * (1 << 14) * 8);

/// The withheld completions.
#[derive(Default)]
pub(super) struct PeerClosed {
    sends: VecDeque<Wc>,
    recvs: VecDeque<Wc>,
    /// When the oldest send fails.
    deadline: Option<Instant>,
}

impl PeerClosed {
    /// Withholds the completion of a send, signalled or not: all sends of a failed queue pair complete.
    pub(super) fn withhold_send(&mut self, wc: Wc) {
        self.deadline.get_or_insert_with(|| Instant::now() + RETRY_TIME);
        self.sends.push_back(wc);
    }

    /// Withholds the completion of a receive.
    pub(super) fn withhold_recv(&mut self, wc: Wc) {
        self.recvs.push_back(wc);
    }

    /// Returns the number of sends.
    pub(super) fn sends(&self) -> usize {
        self.sends.len()
    }

    /// Returns the number of receives.
    pub(super) fn recvs(&self) -> usize {
        self.recvs.len()
    }

    /// Returns whether the oldest send has exhausted its retries.
    pub(super) fn is_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns all completions: the oldest send with `oldest`, everything else flushed.
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
        Wc {
            wr_id,
            status: WcStatus::Success,
            opcode,
            qpn: Qpn::new(5),
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qp: Qpn::new(0),
            solicited: false,
            vendor_err: 0,
        }
    }

    #[test]
    fn oldest_send_expires_and_receives_do_not() {
        let mut withheld = PeerClosed::default();
        withheld.withhold_recv(wc(1, WcOpcode::Recv));
        assert!(!withheld.is_expired() && withheld.deadline.is_none());
        withheld.withhold_send(wc(2, WcOpcode::Send));
        withheld.withhold_send(wc(3, WcOpcode::Write));
        assert!(!withheld.is_expired() && withheld.deadline.is_some());
        let failed: Vec<_> = withheld.fail(WcStatus::RetryExceeded).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(failed, [(2, WcStatus::RetryExceeded), (3, WcStatus::Flushed), (1, WcStatus::Flushed)]);
    }
}
