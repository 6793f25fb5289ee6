//! The detection of the end of the peer's process.
//!
//! When the process of a software NIC ends, its sockets close, and the host then refuses packets to
//! their port. A NIC that died or lost its link refuses nothing. A process that resets one NIC
//! causes refusals on the rail of this NIC, so the detector requires refusals on every rail.
//!
//! Refusals are not authenticated, and a firewall may refuse packets for a moment. The detector
//! therefore requires refusals over some time in which no message of the peer arrives. Messages of
//! the peer carry its cookie. A forger who cannot suppress the peer's heartbeats achieves nothing.
//! A forger who can suppress them would end the vQP anyway, after `peer_timeout`.

use core::time::Duration;

use mitra_verbs::Time;

use crate::config::MAX_RAILS;

/// The refusals since the last message of the peer. In sets of rails (`u8`), bit i is rail i.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct PeerExitDetector {
    /// The times of the first and the last refusal, by rail.
    refusals: [Option<(Time, Time)>; MAX_RAILS],
}

impl PeerExitDetector {
    pub(crate) fn on_refusal(&mut self, now: Time, rail: usize) {
        let (_, last) = self.refusals[rail].get_or_insert((now, now));
        *last = now;
    }

    /// Records a message of the peer on any rail.
    pub(crate) fn on_peer_heard(&mut self) {
        *self = PeerExitDetector::default();
    }

    /// The rails with refusals since the last message of the peer.
    pub(crate) fn refusing(&self) -> u8 {
        self.rails_where(|_, _| true)
    }

    fn rails_where(&self, holds: impl Fn(Time, Time) -> bool) -> u8 {
        let is_in = |refused: &Option<_>| refused.is_some_and(|(first, last)| holds(first, last));
        self.refusals.iter().rev().fold(0, |set, refused| set << 1 | u8::from(is_in(refused)))
    }

    /// Returns whether each rail of the set `rails` has refused packets over at least
    /// `confirm_after`. `rails` must contain every rail on which the peer may answer again: every
    /// rail whose NIC is alive at this end. A link that is down may come up.
    pub(crate) fn has_exited(&self, rails: u8, confirm_after: Duration) -> bool {
        let confirmed = self.rails_where(|first, last| last.saturating_since(first) >= confirm_after);
        rails != 0 && rails & !confirmed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIRM: Duration = Duration::from_millis(10);

    fn ms(n: u64) -> Time {
        Time::ZERO + Duration::from_millis(n)
    }

    fn refused(refusals: &[(u64, usize)]) -> PeerExitDetector {
        let mut detector = PeerExitDetector::default();
        refusals.iter().for_each(|&(at, rail)| detector.on_refusal(ms(at), rail));
        detector
    }

    #[test]
    fn refusals_on_every_rail_for_some_time_show_the_exit() {
        let detector = refused(&[(0, 0), (0, 1), (9, 0), (10, 0), (10, 1)]);
        assert!(detector.has_exited(0b11, CONFIRM));
        assert_eq!(detector.refusing(), 0b11);
    }

    #[test]
    fn one_refusing_rail_of_two_shows_nothing() {
        let detector = refused(&[(0, 1), (10, 1), (90, 1)]);
        assert!(!detector.has_exited(0b11, CONFIRM));
        assert!(detector.has_exited(0b10, CONFIRM), "the NIC of the other rail is dead here");
        assert!(!detector.has_exited(0, CONFIRM), "no NIC is left here");
        assert_eq!(detector.refusing(), 0b10);
    }

    #[test]
    fn refusals_at_one_moment_are_not_confirmed() {
        assert!(!refused(&[(5, 0), (5, 1), (5, 0)]).has_exited(0b11, CONFIRM));
        assert!(!refused(&[(0, 0), (0, 1), (10, 0), (9, 1)]).has_exited(0b11, CONFIRM));
        assert!(!refused(&[(0, 0), (10, 0)]).has_exited(0b11, CONFIRM));
    }

    #[test]
    fn message_of_the_peer_refutes_earlier_refusals() {
        let mut detector = refused(&[(0, 0), (0, 1), (10, 0), (10, 1)]);
        detector.on_peer_heard();
        assert_eq!(detector.refusing(), 0);
        detector.on_refusal(ms(11), 0);
        detector.on_refusal(ms(11), 1);
        assert!(!detector.has_exited(0b11, CONFIRM), "the refusals before the message do not count");
        detector.on_refusal(ms(21), 0);
        detector.on_refusal(ms(21), 1);
        assert!(detector.has_exited(0b11, CONFIRM));
    }

    #[test]
    fn last_rail_counts_like_the_first() {
        let detector = refused(&[(0, MAX_RAILS - 1), (10, MAX_RAILS - 1)]);
        assert!(detector.has_exited(1 << (MAX_RAILS - 1), CONFIRM));
        assert!(!detector.has_exited(u8::MAX, CONFIRM));
    }
}
