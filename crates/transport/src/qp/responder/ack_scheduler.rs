//! Decides when the responder acknowledges: the coalescing and deferral of acknowledgements.

use mitra_verbs::Time;

use super::idle_ack_policy::IdleAckPolicy;
use crate::Tuning;

/// The acknowledgement that the responder has not sent yet.
///
/// An acknowledgement is *pending* from the first packet that asks for it. An acknowledgement is
/// *due* when the responder must send it at once. A pending acknowledgement becomes due after
/// [`Tuning::ack_every`] such packets or after [`Tuning::ack_delay`]. It also becomes due when the
/// requester may be waiting for room in its send window. An idle poll makes the acknowledgement due
/// or *holds* it *back*, see [`IdleAckPolicy`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct AckScheduler {
    /// The number of packets with an acknowledge request that were executed since the last
    /// acknowledgement.
    pending: u32,
    /// The number of executed payload bytes since the last acknowledgement.
    pending_bytes: u32,
    deadline: Option<Time>,
    due: bool,
    hold: IdleAckPolicy,
}

impl AckScheduler {
    pub(super) fn new() -> AckScheduler {
        AckScheduler { pending: 0, pending_bytes: 0, deadline: None, due: false, hold: IdleAckPolicy::new() }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Returns whether an acknowledgement is pending, but neither due nor held back.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0 && !self.due && !self.hold.is_holding()
    }

    pub(super) fn on_packet(&mut self, tuning: &Tuning, now: Time, last: bool, bytes: usize, ack_req: bool) {
        self.pending_bytes = self.pending_bytes.saturating_add(bytes as u32);
        if !ack_req {
            return;
        }
        self.hold.on_request();
        self.pending += 1;
        // A requester that asks in the middle of a message may be waiting for room in its send
        // window.
        if self.pending >= tuning.ack_every || !last || self.pending_bytes >= tuning.send_window / 4 {
            self.make_due();
        } else if self.deadline.is_none() && !self.due {
            self.deadline = Some(now + tuning.ack_delay);
        }
    }

    /// Handles an idle poll: a pending acknowledgement becomes due, or is held back if `may_hold`
    /// is set. Returns whether an acknowledgement is held back.
    pub(super) fn handle_idle(&mut self, tuning: &Tuning, now: Time, may_hold: bool) -> bool {
        if !self.is_pending() {
            return self.hold.is_holding();
        }
        let holds = may_hold && self.hold.on_idle();
        if holds {
            self.deadline = Some(now + tuning.ack_delay);
        } else {
            self.make_due();
        }
        holds
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.deadline.is_some_and(|t| t <= now) {
            self.hold.on_timeout();
            self.make_due();
        }
    }

    /// Makes a pending acknowledgement due, even if it is held back.
    pub(super) fn flush(&mut self) {
        self.hold.cancel();
        self.make_due();
    }

    /// Makes an acknowledgement due that may have been sent before, and ends a hold.
    pub(super) fn repeat(&mut self) {
        self.hold.cancel();
        self.request_now();
    }

    /// Makes an acknowledgement due, even if no packet asked for an acknowledgement.
    pub(super) fn request_now(&mut self) {
        self.pending = self.pending.max(1);
        self.make_due();
    }

    /// Forgets the pending acknowledgement, because a packet has acknowledged everything or nothing
    /// may be sent.
    pub(super) fn clear(&mut self) {
        self.pending = 0;
        self.pending_bytes = 0;
        self.due = false;
        self.deadline = None;
    }

    fn make_due(&mut self) {
        if self.pending > 0 {
            self.due = true;
            self.deadline = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// Records a packet that asks for an acknowledgement and ends a message.
    fn on_packet(acks: &mut AckScheduler, tuning: &Tuning, micros: u64, bytes: usize) {
        acks.on_packet(tuning, Time::ZERO + Duration::from_micros(micros), true, bytes, true);
    }

    #[test]
    fn nothing_is_acknowledged_without_a_packet() {
        let mut acks = AckScheduler::new();
        acks.flush();
        assert!(!acks.is_due());
    }

    #[test]
    fn later_packets_do_not_delay_the_acknowledgement() {
        let (tuning, mut acks) = (Tuning::default(), AckScheduler::new());
        on_packet(&mut acks, &tuning, 0, 8);
        let deadline = acks.deadline();
        assert_eq!(deadline, Some(Time::ZERO + tuning.ack_delay));
        on_packet(&mut acks, &tuning, 10, 8);
        assert_eq!((acks.deadline(), acks.is_due()), (deadline, false));
    }

    /// The requester may be waiting for room in its send window.
    #[test]
    fn quarter_of_the_window_is_acknowledged_at_once() {
        let (tuning, mut acks) = (Tuning::default(), AckScheduler::new());
        let quarter = tuning.send_window as usize / 4;
        on_packet(&mut acks, &tuning, 0, quarter - 1);
        assert!(!acks.is_due());
        on_packet(&mut acks, &tuning, 0, 1);
        assert!(acks.is_due());
    }
}
