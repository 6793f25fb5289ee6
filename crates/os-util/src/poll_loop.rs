//! Whether a program polls in a loop, or only a few times before it sleeps.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A program polls in a loop if it has polled for this long. A program that waits for one round
/// trip polls for a shorter time.
const MIN_LENGTH: u64 = Duration::from_millis(1).as_nanos() as u64;
/// A longer time between two polls ends the loop.
const MAX_GAP: u64 = Duration::from_micros(100).as_nanos() as u64;
/// The same between two timed polls with untimed polls between them.
const MAX_UNTIMED: u64 = MIN_LENGTH;

/// The recent polls of a program. All times are in nanoseconds of one clock.
///
/// Threads that record polls at the same time may lengthen or shorten the loop by the time between
/// two polls.
#[derive(Debug, Default)]
pub struct PollLoop {
    began_at: AtomicU64,
    /// The time of the last timed poll.
    last_poll: AtomicU64,
    /// Whether there were untimed polls since.
    has_untimed: AtomicBool,
}

impl PollLoop {
    /// Records a poll.
    #[inline]
    pub fn record_poll(&self, now: u64) {
        if !self.goes_on(now) {
            self.began_at.store(now, Ordering::Relaxed);
        }
        self.last_poll.store(now, Ordering::Relaxed);
        self.has_untimed.store(false, Ordering::Relaxed);
    }

    /// Records a poll that needs no clock, because it returns what an earlier poll has found.
    #[inline]
    pub fn record_untimed_poll(&self) {
        self.has_untimed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the time since the last timed poll is short.
    fn goes_on(&self, now: u64) -> bool {
        let max = if self.has_untimed.load(Ordering::Relaxed) { MAX_UNTIMED } else { MAX_GAP };
        now.saturating_sub(self.last_poll.load(Ordering::Relaxed)) <= max
    }

    /// Ends the loop, because the program is about to sleep. A later poll begins the next one.
    pub fn end(&self, now: u64) {
        self.began_at.store(now, Ordering::Relaxed);
        self.last_poll.store(now, Ordering::Relaxed);
        self.has_untimed.store(false, Ordering::Relaxed);
    }

    /// Returns whether the program polls in a loop.
    #[inline]
    pub fn is_running(&self, now: u64) -> bool {
        let (last, began) = (&self.last_poll, &self.began_at);
        let length = last.load(Ordering::Relaxed).saturating_sub(began.load(Ordering::Relaxed));
        length >= MIN_LENGTH && self.goes_on(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls every `gap` nanoseconds. Returns the time of the last poll.
    fn poll(polls: &PollLoop, from: u64, gap: u64, count: u64) -> u64 {
        (0..count).for_each(|i| polls.record_poll(from + i * gap));
        from + (count - 1) * gap
    }

    #[test]
    fn loop_runs_from_its_first_millisecond_until_a_gap() {
        let polls = PollLoop::default();
        assert!(!polls.is_running(MIN_LENGTH));
        let now = poll(&polls, 10 * MIN_LENGTH, MAX_GAP, 10);
        assert!(!polls.is_running(now));
        let now = poll(&polls, now + MAX_GAP, MAX_GAP, 1);
        assert!(polls.is_running(now) && polls.is_running(now + MAX_GAP));
        assert!(!polls.is_running(now + MAX_GAP + 1));
        let now = poll(&polls, now + MAX_GAP + 1, MAX_GAP, 10);
        assert!(!polls.is_running(now));
    }

    #[test]
    fn many_polls_in_a_short_time_are_no_loop() {
        let polls = PollLoop::default();
        let now = poll(&polls, 10 * MIN_LENGTH, MIN_LENGTH / 1000, 1000);
        assert!(!polls.is_running(now));
    }

    #[test]
    fn untimed_polls_bridge_a_longer_gap() {
        let polls = PollLoop::default();
        let mut now = poll(&polls, 10 * MIN_LENGTH, MAX_GAP, 11);
        for _ in 0..2 {
            assert!(polls.is_running(now) && !polls.is_running(now + MAX_GAP + 1));
            polls.record_untimed_poll();
            assert!(polls.is_running(now + MAX_UNTIMED) && !polls.is_running(now + MAX_UNTIMED + 1));
            now = poll(&polls, now + MAX_UNTIMED, MAX_GAP, 1);
        }
        polls.record_untimed_poll();
        assert!(!polls.is_running(poll(&polls, now + MAX_UNTIMED + 1, MAX_GAP, 1)));
    }

    #[test]
    fn loop_begins_anew_after_its_end() {
        let polls = PollLoop::default();
        let now = poll(&polls, 10 * MIN_LENGTH, MAX_GAP, 100);
        assert!(polls.is_running(now));
        polls.end(now);
        let now = poll(&polls, now + MAX_GAP, MAX_GAP, 9);
        assert!(!polls.is_running(now));
        assert!(polls.is_running(poll(&polls, now + MAX_GAP, MAX_GAP, 1)));
    }
}
