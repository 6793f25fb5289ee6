//! A connection whose peer has closed its end.
//!
//! A real queue pair does not notice: receives wait for ever, and a send is retried until it fails. Programs rely on the first:
//! who is done first destroys its queue pair while the other still has receives posted. So what the virtual queue pair
//! gives back at once is kept as long as a real one would have kept it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mitra_verbs::{RecvWr, SendWr, Wc, WcOpcode, WcStatus};

/// How long sends are retried: the time-out and the retries that most programs ask for (14 and 7).
const RETRIED: Duration = Duration::from_nanos(4_096 * (1 << 14) * 8);

/// What is kept.
#[derive(Default)]
pub(super) struct Parted {
    sends: VecDeque<Wc>,
    recvs: VecDeque<Wc>,
    /// When the oldest send fails.
    due: Option<Instant>,
}

impl Parted {
    pub(super) fn keep_send(&mut self, wc: Wc) {
        self.due.get_or_insert_with(|| Instant::now() + RETRIED);
        self.sends.push_back(wc);
    }

    pub(super) fn keep_recv(&mut self, wc: Wc) {
        self.recvs.push_back(wc);
    }

    /// Sends and receives that are kept.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.sends.len(), self.recvs.len())
    }

    /// A send that is posted now. On a queue pair that does not signal it, it fails all the same.
    pub(super) fn post_send(&mut self, wr: &SendWr, wc: impl FnOnce(u64, WcOpcode) -> Wc) {
        self.keep_send(wc(wr.wr_id, wr.op.wc_opcode()));
    }

    /// A receive that is posted now.
    pub(super) fn post_recv(&mut self, wr: &RecvWr, wc: impl FnOnce(u64, WcOpcode) -> Wc) {
        self.keep_recv(wc(wr.wr_id, WcOpcode::Recv));
    }

    /// Whether sends have been retried for long enough.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some_and(|due| due <= Instant::now())
    }

    /// All that was kept: sends, of which the oldest failed, and receives.
    pub(super) fn fail(self, oldest: WcStatus) -> impl Iterator<Item = Wc> {
        let statuses = std::iter::once(oldest).chain(std::iter::repeat(WcStatus::Flushed));
        let sends = self.sends.into_iter().zip(statuses).map(|(wc, status)| Wc { status, ..wc });
        sends.chain(self.recvs.into_iter().map(|wc| Wc { status: WcStatus::Flushed, ..wc }))
    }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::Qpn;

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
    fn receives_wait_for_ever_and_the_oldest_send_fails() {
        let mut parted = Parted::default();
        parted.keep_recv(wc(1, WcOpcode::Recv));
        assert!(!parted.is_due() && parted.due.is_none());
        parted.keep_send(wc(2, WcOpcode::Send));
        parted.keep_send(wc(3, WcOpcode::Write));
        assert!(!parted.is_due() && parted.due.is_some());
        let failed: Vec<_> = parted.fail(WcStatus::RetryExceeded).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(failed, [(2, WcStatus::RetryExceeded), (3, WcStatus::Flushed), (1, WcStatus::Flushed)]);
    }
}
