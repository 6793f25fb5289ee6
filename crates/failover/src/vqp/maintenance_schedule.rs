use core::time::Duration;

use mitra_verbs::Time;

/// The minimum time between two maintenance runs of an end that does not post.
const MAINTENANCE_INTERVAL: Duration = Duration::from_micros(30);
/// The minimum time between a maintenance run and the next one from a poll, at an end that posts.
/// Such an end runs maintenance directly after a post, while it waits for the completion anyway.
/// Polls run maintenance only if posts have not done so for this time.
const POSTER_MAINTENANCE_INTERVAL: Duration = Duration::from_micros(120);
/// The number of polls from one reading of the clock to the next, if less than
/// [`MAINTENANCE_INTERVAL`] passed between the last two readings. A post reads the clock only if at
/// least this many polls came after the last post that read it. Reading the clock at each poll or
/// post would slow down tight loops.
const POLLS_PER_CLOCK_READ: u64 = 4;

/// The number of polls without a post after which an end that posts counts as one that does not. A
/// failed rail completes nothing, so such an end waits, and its peer may have proposed another
/// rail.
const POLLS_OF_WAITING_POSTER: u64 = 32;

/// Decides when polls and posts read the clock, and when maintenance is due.
#[derive(Debug)]
pub(super) struct MaintenanceSchedule {
    /// The number of polls since the vQP was created.
    polls: u64,
    /// The value of `polls` at which a poll reads the clock next.
    next_clock_read: u64,
    /// The time of the last reading by a poll.
    clock_read_at: Time,
    /// The value of `polls` when a post last read the clock.
    polls_at_post: u64,
    /// Whether a post has read the clock since the last maintenance from a poll.
    post_read_clock: bool,
    /// The time of the last maintenance run.
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

    /// Records a poll. Returns whether maintenance is due.
    #[inline]
    pub(super) fn on_poll(&mut self, now: impl FnOnce() -> Time) -> bool {
        self.polls += 1;
        self.polls >= self.next_clock_read && self.read_clock(now())
    }

    /// Records a reading of the clock by a poll, and schedules the next one. Returns whether
    /// maintenance is due.
    #[inline]
    fn read_clock(&mut self, now: Time) -> bool {
        let gap = now.saturating_since(core::mem::replace(&mut self.clock_read_at, now));
        self.next_clock_read = self.polls + if gap < MAINTENANCE_INTERVAL { POLLS_PER_CLOCK_READ } else { 1 };
        let is_posting = self.post_read_clock && self.polls - self.polls_at_post < POLLS_OF_WAITING_POSTER;
        let interval = if is_posting { POSTER_MAINTENANCE_INTERVAL } else { MAINTENANCE_INTERVAL };
        now.saturating_since(self.last_maintenance) >= interval
    }

    /// Records a maintenance run from a poll. Until a post reads the clock again, polls use
    /// [`MAINTENANCE_INTERVAL`].
    pub(super) fn on_maintenance_from_poll(&mut self) {
        self.post_read_clock = false;
    }

    /// Records a post. Returns whether maintenance is due.
    #[inline]
    pub(super) fn on_post(&mut self, now: impl FnOnce() -> Time) -> bool {
        if self.polls - self.polls_at_post < POLLS_PER_CLOCK_READ {
            return false;
        }
        self.polls_at_post = self.polls;
        self.post_read_clock = true;
        now().saturating_since(self.last_maintenance) >= MAINTENANCE_INTERVAL
    }

    /// The time of the last maintenance run.
    pub(super) fn last_maintenance(&self) -> Time {
        self.last_maintenance
    }

    /// Records a maintenance run and returns the time since the last one.
    pub(super) fn begin_maintenance(&mut self, now: Time) -> Duration {
        now.saturating_since(core::mem::replace(&mut self.last_maintenance, now))
    }
}
