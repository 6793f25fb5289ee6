//! The poll lease: whether a polling caller or the progress thread drives the NIC.

use core::time::Duration;

use mitra_verbs::Time;

/// How often the progress thread checks the lease while a poller holds it. A poller loses the lease
/// if it polls fewer than [`MIN_POLLS`] times between two checks.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The number of driving polls within [`ACQUIRE_WINDOW`] that acquire the lease. A caller that
/// polls once and then waits for an event does not need the lease.
const POLLS_TO_ACQUIRE: u32 = 8;
/// The time within which [`POLLS_TO_ACQUIRE`] driving polls acquire the lease. It is long because
/// the poller competes with the progress thread for the NIC's lock until it acquires the lease.
const ACQUIRE_WINDOW: Duration = Duration::from_millis(4);
/// The minimum number of polls between two checks with which a poller keeps the lease.
const MIN_POLLS: u32 = 8;

/// A lease holder is absent if it has not driven the NIC for this long. Datagrams then wait in the
/// socket.
pub(crate) const ABSENT_AFTER: Duration = Duration::from_micros(100);
/// The holder loses the lease after this many consecutive checks with the same result: its thread
/// was running, it had not driven the NIC, and datagrams were waiting. Such a program waits for
/// data in memory and polls only for completions of its own requests (`ib_write_lat`).
const MAX_ABSENT_CHECKS: u32 = 3;
/// The length of the first denial of the lease to such a program. If the time from the end of a
/// denial to the start of the next is shorter than the denial was, the next denial is twice as
/// long, up to [`MAX_DENIAL`]. Otherwise, the next denial has this length again.
const MIN_DENIAL: Duration = Duration::from_secs(1);
const MAX_DENIAL: Duration = Duration::from_secs(16);

/// The right of a polling caller to drive the NIC alone.
///
/// A caller that polls in a loop acquires the lease. It loses the lease if it stops polling, if it
/// leaves datagrams waiting in the socket, or if a caller arms a completion queue.
#[derive(Debug, Default)]
pub(crate) struct PollLease {
    held: bool,
    /// The number of polls since the last check.
    polls: u32,
    /// The number of driving polls since `window_start`, while no caller holds the lease.
    driving_polls: u32,
    window_start: Time,
    /// The number of consecutive checks that count towards [`MAX_ABSENT_CHECKS`].
    absent_checks: u32,
    /// The time of the last check that found the holder absent and datagrams waiting, and the
    /// holder's CPU time then.
    last_absent_check: Option<(Time, Duration)>,
    /// The end of the current or last denial.
    denied_until: Time,
    /// The length of the current or last denial.
    denial: Duration,
}

impl PollLease {
    /// Records a poll that drives the NIC. Returns whether this poll acquires the lease.
    pub(crate) fn record_drive(&mut self, now: Time) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if self.held {
            return false;
        }
        if self.is_denied(now) {
            return false;
        }
        if now - self.window_start > ACQUIRE_WINDOW {
            (self.window_start, self.driving_polls) = (now, 0);
        }
        self.driving_polls += 1;
        if self.driving_polls < POLLS_TO_ACQUIRE {
            return false;
        }
        // The progress thread's first check may follow immediately, and must not end the lease.
        (self.held, self.polls) = (true, MIN_POLLS);
        true
    }

    /// Records a poll that found a completion without driving the NIC.
    pub(crate) fn record_poll(&mut self) {
        self.polls = self.polls.wrapping_add(1);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Ends the lease. Returns whether a poller held it.
    pub(crate) fn release(&mut self) -> bool {
        self.driving_polls = 0;
        std::mem::take(&mut self.held)
    }

    /// Records a check that found the holder absent. `cpu_time` is the holder's CPU time if
    /// datagrams were waiting, and `None` otherwise.
    pub(crate) fn record_absent(&mut self, now: Time, cpu_time: Option<Duration>) {
        let previous =
            core::mem::replace(&mut self.last_absent_check, cpu_time.map(|cpu_time| (now, cpu_time)));
        let Some(cpu_time) = cpu_time else { return self.record_present() };
        let Some((then, cpu_time_then)) = previous else { return };
        // A holder that ran for at most half of the time between the checks counts as preempted,
        // not as polling memory.
        let was_running = cpu_time.saturating_sub(cpu_time_then) * 2 > now - then;
        self.absent_checks = if was_running { self.absent_checks + 1 } else { 0 };
        if self.absent_checks < MAX_ABSENT_CHECKS {
            return;
        }
        (self.absent_checks, self.last_absent_check) = (0, None);
        let is_repeated = now - self.denied_until < self.denial;
        self.denial = if is_repeated { (self.denial * 2).min(MAX_DENIAL) } else { MIN_DENIAL };
        self.denied_until = now + self.denial;
        self.release();
    }

    /// Returns whether pollers cannot acquire the lease, because the program waits for data in
    /// memory.
    pub(crate) fn is_denied(&self, now: Time) -> bool {
        now < self.denied_until
    }

    pub(crate) fn record_present(&mut self) {
        (self.absent_checks, self.last_absent_check) = (0, None);
    }

    /// Checks the number of polls since the last check, and ends the lease if there were too few.
    /// Returns whether a poller holds the lease.
    pub(crate) fn check(&mut self) -> bool {
        if self.held && std::mem::take(&mut self.polls) < MIN_POLLS {
            self.release();
        }
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn poller_acquires_lease_and_loses_it_when_it_stops() {
        let mut lease = PollLease::default();
        let acquired_by: Vec<u64> = (0..100).filter(|&i| lease.record_drive(at(5000 + i))).collect();
        assert_eq!(acquired_by, [u64::from(POLLS_TO_ACQUIRE) - 1]);
        assert!(lease.check());
        assert!(!lease.check());
        assert!(!lease.record_drive(at(9000)));
    }

    #[test]
    fn check_does_not_delay_acquisition() {
        let mut lease = PollLease::default();
        for i in 1..POLLS_TO_ACQUIRE {
            assert!(!lease.record_drive(at(5000)) && !lease.check(), "{i}");
        }
        assert!(lease.record_drive(at(5000)) && lease.check());
    }

    #[test]
    fn polls_that_find_completions_keep_lease() {
        let mut lease = PollLease::default();
        while !lease.record_drive(at(5000)) {}
        for _ in 0..3 {
            (0..MIN_POLLS).for_each(|_| lease.record_poll());
            assert!(lease.check());
        }
    }

    /// Records checks, 1 ms apart, that find the holder absent with datagrams waiting.
    fn record_absent_checks(lease: &mut PollLease, now: &mut Time, count: u32, is_running: bool) {
        for _ in 0..count {
            *now += Duration::from_millis(1);
            let cpu_time = if is_running { *now - Time::ZERO } else { Duration::ZERO };
            lease.record_absent(*now, Some(cpu_time));
        }
    }

    #[test]
    fn running_holder_that_leaves_datagrams_waiting_is_denied_for_doubling_times() {
        let mut lease = PollLease::default();
        let mut now = at(5000);
        for seconds in [1, 2, 4, 8, 16, 16] {
            while !lease.record_drive(now) {}
            // The first check of a series has no earlier CPU time to compare with, so a series of
            // this length does not end the lease. A check without waiting datagrams, or with the
            // holder present, begins a new series.
            record_absent_checks(&mut lease, &mut now, MAX_ABSENT_CHECKS, true);
            lease.record_absent(now, None);
            record_absent_checks(&mut lease, &mut now, MAX_ABSENT_CHECKS, true);
            lease.record_present();
            record_absent_checks(&mut lease, &mut now, MAX_ABSENT_CHECKS, true);
            assert!(lease.is_held());
            record_absent_checks(&mut lease, &mut now, 1, true);
            assert!(!lease.is_held());
            let until = now + Duration::from_secs(seconds);
            assert!((0..100).all(|_| !lease.record_drive(Time::from_nanos(until.as_nanos() - 1))));
            now = until;
        }
    }

    #[test]
    fn preempted_holder_keeps_lease() {
        let mut lease = PollLease::default();
        let mut now = at(5000);
        while !lease.record_drive(now) {}
        record_absent_checks(&mut lease, &mut now, 100, false);
        assert!(lease.is_held());
    }

    #[test]
    fn slow_polls_and_polls_between_events_do_not_acquire_lease() {
        let mut lease = PollLease::default();
        assert!((0..1000).all(|i| !lease.record_drive(at(5000 + i * 600))));
        for i in 0..1000 {
            assert!(!lease.record_drive(at(900_000 + i)));
            lease.release();
        }
    }
}
