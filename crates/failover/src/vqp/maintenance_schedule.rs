use core::time::Duration;

use mitra_verbs::Time;

/// The minimum time between two maintenance runs of an end that does not post.
const MAINTENANCE_INTERVAL: Duration = Duration::from_micros(30);
/// The minimum time between a maintenance run and the next run from a poll, at an end that posts.
/// Such an end runs maintenance directly after a post, while it waits for the completion anyway.
/// Polls run maintenance only if posts have not done so for this time.
const POSTER_MAINTENANCE_INTERVAL: Duration = Duration::from_micros(120);
/// The number of polls between two readings of the clock, if less than [`MAINTENANCE_INTERVAL`]
/// passed between the last two readings. A post reads the clock only if at least this many polls
/// came after the last post that read the clock. A reading at each poll or post would slow down
/// tight loops.
const POLLS_PER_CLOCK_READ: u64 = 4;

/// After this many polls without a post, an end that posts counts as an end that does not post, and
/// its polls run maintenance more often. On a failed rail nothing completes, so the end waits
/// without posting. Only maintenance notices that the peer has proposed a new rail.
const POLLS_OF_WAITING_POSTER: u64 = 32;

#[derive(Debug, Default)]
pub(super) struct MaintenanceSchedule {
    polls: u64,
    next_clock_read: u64,
    clock_read_at: Time,
    polls_at_post: u64,
    /// Whether a post has read the clock since the last maintenance run from a poll.
    post_read_clock: bool,
    pub(super) last_maintenance: Time,
}

impl MaintenanceSchedule {
    /// Returns whether maintenance is due.
    #[inline]
    pub(super) fn on_poll(&mut self, now: impl FnOnce() -> Time) -> bool {
        self.polls += 1;
        self.polls >= self.next_clock_read && self.read_clock(now())
    }

    /// Schedules the next reading. Returns whether maintenance is due.
    #[inline]
    fn read_clock(&mut self, now: Time) -> bool {
        let gap = now.saturating_since(core::mem::replace(&mut self.clock_read_at, now));
        self.next_clock_read = self.polls + if gap < MAINTENANCE_INTERVAL { POLLS_PER_CLOCK_READ } else { 1 };
        let is_posting = self.post_read_clock && self.polls - self.polls_at_post < POLLS_OF_WAITING_POSTER;
        let interval = if is_posting { POSTER_MAINTENANCE_INTERVAL } else { MAINTENANCE_INTERVAL };
        now.saturating_since(self.last_maintenance) >= interval
    }

    /// Until a post reads the clock again, polls use [`MAINTENANCE_INTERVAL`].
    pub(super) fn on_maintenance_from_poll(&mut self) {
        self.post_read_clock = false;
    }

    /// Returns whether maintenance is due.
    #[inline]
    pub(super) fn on_post(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.polls - self.polls_at_post < POLLS_PER_CLOCK_READ {
            return false;
        }
        self.polls_at_post = self.polls;
        self.post_read_clock = true;
        now().saturating_since(self.last_maintenance) >= MAINTENANCE_INTERVAL
    }

    /// The time at which [`MAINTENANCE_INTERVAL`] has passed since the last run.
    pub(super) fn next_after_interval(&self) -> Time {
        self.last_maintenance + MAINTENANCE_INTERVAL
    }

    /// Records a maintenance run and returns the time since the previous run.
    pub(super) fn begin_maintenance(&mut self, now: Time) -> Duration {
        now.saturating_since(core::mem::replace(&mut self.last_maintenance, now))
    }
}
