use core::time::Duration;

use mitra_verbs::Time;

/// The time between two maintenance runs of an end that does not post.
const MAINTENANCE_INTERVAL: Duration = Duration::from_micros(30);
/// The time between two maintenance runs from polls of an end that posts. That end runs maintenance right behind a post, when no answer
/// can have arrived yet, and polls run it only if posts do not.
const POSTER_MAINTENANCE_INTERVAL: Duration = Duration::from_micros(120);
/// The number of polls between two readings of the clock, while polls follow each other within [`MAINTENANCE_INTERVAL`]; also the number of
/// polls before a post reads it. Reading the clock at each poll or post would slow down tight loops.
const POLLS_PER_CLOCK_READ: u64 = 4;

/// Decides when polls and posts read the clock and run maintenance.
#[derive(Debug)]
pub(super) struct MaintenanceSchedule {
    polls: u64,
    /// The value of `polls` at which a poll reads the clock next.
    next_clock_read: u64,
    /// The time of the last reading by a poll.
    clock_read_at: Time,
    /// The value of `polls` when a post last read the clock.
    polls_at_post: u64,
    /// Whether a post has read the clock since the last maintenance from a poll.
    post_read_clock: bool,
    last_maintenance: Time,
}

impl MaintenanceSchedule {
    pub(super) fn new() -> MaintenanceSchedule {
        MaintenanceSchedule {
            polls: 0,
            next_clock_read: 0,
            clock_read_at: Time::ZERO,
            polls_at_post: 0,
            post_read_clock: false,
            last_maintenance: Time::ZERO,
        }
    }

    /// Records a poll. Returns whether maintenance is due behind it.
    #[inline]
    pub(super) fn on_poll(&mut self, now: impl FnOnce() -> Time) -> bool {
        self.polls += 1;
        self.polls >= self.next_clock_read && self.read_clock(now())
    }

    #[inline]
    fn read_clock(&mut self, now: Time) -> bool {
        let gap = now.saturating_since(core::mem::replace(&mut self.clock_read_at, now));
        self.next_clock_read = self.polls + if gap < MAINTENANCE_INTERVAL { POLLS_PER_CLOCK_READ } else { 1 };
        let interval = if self.post_read_clock { POSTER_MAINTENANCE_INTERVAL } else { MAINTENANCE_INTERVAL };
        now.saturating_since(self.last_maintenance) >= interval
    }

    /// Records a maintenance run from a poll. Until the next post, polls use the shorter interval.
    pub(super) fn on_maintenance_from_poll(&mut self) {
        self.post_read_clock = false;
    }

    /// Records a post. Returns whether maintenance is due behind it.
    #[inline]
    pub(super) fn on_post(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.polls - self.polls_at_post < POLLS_PER_CLOCK_READ {
            return false;
        }
        self.polls_at_post = self.polls;
        self.post_read_clock = true;
        now().saturating_since(self.last_maintenance) >= MAINTENANCE_INTERVAL
    }

    /// Records a maintenance run and returns the time since the last one.
    pub(super) fn begin_maintenance(&mut self, now: Time) -> Duration {
        now.saturating_since(core::mem::replace(&mut self.last_maintenance, now))
    }
}
