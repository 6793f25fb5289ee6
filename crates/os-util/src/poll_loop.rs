//! Whether a program polls in a loop, or only a few times before it sleeps.

use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};

/// A program polls in a loop if it has polled for this long. A program that waits for one round trip
/// polls for a shorter time.
const MIN_LENGTH: u64 = Duration::from_millis(1).as_nanos() as u64;
/// A longer time between two polls ends the loop.
const MAX_GAP: u64 = Duration::from_micros(100).as_nanos() as u64;

/// The recent polls of a program. All times are in nanoseconds of one clock.
///
/// Threads that record polls at the same time may lengthen or shorten the loop by the time between
/// two polls.
#[derive(Debug, Default)]
pub struct PollLoop {
    began_at: AtomicU64,
    last_poll: AtomicU64,
}

impl PollLoop {
    /// Records a poll.
    #[inline]
    pub fn record_poll(&self, now: u64) {
        if now.saturating_sub(self.last_poll.load(Ordering::Relaxed)) > MAX_GAP {
            self.began_at.store(now, Ordering::Relaxed);
        }
        self.last_poll.store(now, Ordering::Relaxed);
    }

    /// Ends the loop, because the program is about to sleep. A later poll begins the next one.
    pub fn end(&self, now: u64) {
        self.began_at.store(now, Ordering::Relaxed);
        self.last_poll.store(now, Ordering::Relaxed);
    }

    /// Returns whether the program polls in a loop.
    #[inline]
    pub fn is_running(&self, now: u64) -> bool {
        let last = self.last_poll.load(Ordering::Relaxed);
        now.saturating_sub(last) <= MAX_GAP
            && last.saturating_sub(self.began_at.load(Ordering::Relaxed)) >= MIN_LENGTH
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
