//! Which thread drives a NIC, and what a round of that thread looks at.
//!
//! A NIC has no thread of its own in the usual sense: whoever holds its lock can drive it, which
//! means to receive datagrams, handle timers, send packets and report events
//! ([`Engine::drive`](crate::engine::Engine::drive)). There are two kinds of threads
//! ([`Driver`]): callers of verbs, and the [progress thread](crate::progress_thread). These rules
//! decide between them:
//!
//! - **A polling caller drives.** A caller that polls in a loop acquires the
//!   [lease](poll_lease::PollLease). While it holds the lease, the progress thread sleeps on a
//!   timer, and only checks once in a millisecond that the caller still polls. If the thread slept
//!   on the socket, each datagram would wake it, and it would compete with the poller for the CPU.
//! - **Without a lease the progress thread drives**, and sleeps on the socket and the links.
//!   Operations on the memory of a passive process then complete, and completion events reach
//!   sleeping consumers. While peers access the memory of a passive process in quick succession,
//!   the thread [spins](spin_policy::SpinPolicy) instead of sleeping.
//! - **A caller that arms a queue gives up the lease**, because it is about to sleep.
//! - **A program that waits for data in memory**, and polls only in between, is denied the lease:
//!   the data arrives while it does not poll. The ACKs for it are sent with its next post.
//! - **An absent holder** polls, but does not drive, because each of its polls finds a completion.
//!   The thread drives one round for it at each check.
//! - **A verbs call drives** if no thread has for 100 µs. The lock is not fair: a program that
//!   calls verbs in a loop without polls would otherwise keep the progress thread waiting, and the
//!   NIC would not answer its peers.
//!
//! A caller that finds work which is due before the progress thread wakes must wake it
//! ([`thread_wakeup`](crate::thread_wakeup)).
//!
//! A round makes few receive calls, because each is a system call: a poller's first round makes
//! one, and while other NICs have links to this one, most rounds of a poller read the links only.

pub(crate) mod poll_lease;
mod spin_policy;
mod thread_cpu_clock;

use core::time::Duration;

use mitra_verbs::{CqId, Time};

use crate::clock;
use crate::thread_wakeup::ThreadWakeup;
use poll_lease::{ABSENT_AFTER, CHECK_INTERVAL, PollLease};
use spin_policy::SpinPolicy;
use thread_cpu_clock::ThreadCpuClock;

/// The largest number of receive calls in a round with a late timer.
pub(crate) const MAX_RECEIVES_LATE_TIMER: u32 = 256;
/// The largest number of receive calls in a round of the progress thread, which releases the lock
/// between rounds.
const MAX_RECEIVES_THREAD: u32 = 4;
/// The largest number of receive calls in a round of a poller. A poller's first round makes one
/// call, so that `poll_cq` returns each completion as early as possible. A round in which every
/// call has received data doubles the number for the next round, because more data may be waiting.
/// A round that has emptied the socket lowers the number to the calls that received data. A call
/// that finds the socket empty would delay the data that the other calls received.
const MAX_RECEIVES_POLLER: u32 = 16;

/// A verbs call drives the NIC if no thread has driven the NIC for this long. The delay of a peer's
/// request is then at most the time to wake the progress thread. The additional receive calls take
/// 1% of the program's time.
const MAX_TIME_BETWEEN_DRIVES: Duration = Duration::from_micros(100);
/// A poll does not drive the NIC if a poll of another completion queue has driven it within this
/// time. A caller that polls several queues in turn then drives the NIC once per turn.
const MIN_DRIVE_INTERVAL: Duration = Duration::from_micros(1);

/// While other NICs have links, and the socket had no datagram for [`SOCKET_ACTIVE`], a poller
/// reads the socket once in this time only, because each read is a system call.
const MIN_SOCKET_INTERVAL: Duration = Duration::from_micros(20);
const SOCKET_ACTIVE: Duration = Duration::from_millis(1);
/// A progress thread that does not sleep looks at the descriptors of the links once in this time.
const LINK_INTERVAL: Duration = Duration::from_millis(1);

/// If a caller had to wake the thread for a timer within this time, the thread sleeps for at most
/// the time that the timer ran, or [`MIN_SLEEP_BOUND`]. Later callers with such timers then need
/// not wake the thread: a request that is posted during the sleep expires after the sleep.
const TIMER_PERIOD: Duration = Duration::from_secs(1);
const MIN_SLEEP_BOUND: Duration = Duration::from_millis(5);

/// The thread that drives a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    /// A caller of `poll_cq`, which needs each completion early and calls again soon.
    Poller,
    /// The progress thread, which sleeps after a round without work.
    Thread,
}

/// What the progress thread does in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ThreadRole {
    /// It drives the NIC.
    Drives,
    /// It drives one round for a lease holder that does not, and calls [`Progress::end_absence`].
    DrivesForHolder,
    /// It sleeps until this time, the next check of the lease.
    Sleeps(Time),
}

/// The record of who drove the NIC when, from which the rules follow. The NIC's lock protects it.
#[derive(Default)]
pub(crate) struct Progress {
    lease: PollLease,
    last_lease_check: Time,
    pub(crate) thread_wakeup: ThreadWakeup,
    spin_policy: SpinPolicy,
    /// When a caller last had to wake the thread for a timer, and how long the timer ran.
    last_timer: Time,
    timer_length: Duration,
    last_drive: Time,
    last_host_call: Time,
    /// The completion queue whose poll drove the NIC last, and when.
    last_poll_drive: Option<(CqId, Time)>,
    /// The CPU clock of the thread that polled last.
    poller: Option<ThreadCpuClock>,
    /// The receive calls of a poller's last round that count for the next one.
    poller_receives: u32,
    last_link_look: Time,
    /// When the socket was last read, and when it last had a datagram.
    last_socket_look: Time,
    last_socket_data: Time,
}

impl Progress {
    /// Records a verbs call.
    pub(crate) fn record_call(&mut self, now: Time) {
        self.last_host_call = now;
    }

    /// Returns whether a verbs call drives the NIC.
    pub(crate) fn must_call_drive(&self, now: Time) -> bool {
        now - self.last_drive >= MAX_TIME_BETWEEN_DRIVES
    }

    /// Records a poll that took completions without driving the NIC.
    pub(crate) fn record_poll(&mut self) {
        self.lease.record_poll();
    }

    /// Returns whether a poll of `cq` that has found no completion drives the NIC, and records the
    /// poll.
    pub(crate) fn begin_poll(&mut self, cq: CqId, now: Time) -> bool {
        if self.last_poll_drive.is_some_and(|(other, at)| other != cq && now - at < MIN_DRIVE_INTERVAL) {
            self.lease.record_poll();
            return false;
        }
        self.last_poll_drive = Some((cq, now));
        self.last_host_call = now;
        self.poller = Some(ThreadCpuClock::current());
        true
    }

    /// Records that a poll has driven the NIC, and no consumer of events sleeps. Returns whether
    /// the caller must wake the progress thread, which sleeps on the socket, and must sleep on a
    /// timer from now on.
    pub(crate) fn end_poll(&mut self, now: Time) -> bool {
        self.lease.record_drive(now)
    }

    /// Ends the lease, because a caller is about to sleep until an event. Returns whether the
    /// caller must wake the progress thread.
    pub(crate) fn release_lease(&mut self) -> bool {
        self.lease.release()
    }

    /// Returns whether a poller drives the NIC.
    pub(crate) fn is_lease_held(&self) -> bool {
        self.lease.is_held()
    }

    /// Returns whether the program waits for data in memory, and polls only in between.
    pub(crate) fn waits_in_memory(&self, now: Time) -> bool {
        self.lease.is_denied(now)
    }

    /// Records the start of a round.
    pub(crate) fn begin_round(&mut self, now: Time) {
        self.last_drive = now;
    }

    /// When the NIC was last driven.
    pub(crate) fn last_drive(&self) -> Time {
        self.last_drive
    }

    /// Returns the largest number of receive calls in a round.
    pub(crate) fn max_receives(&self, driver: Driver, is_late: bool) -> u32 {
        match driver {
            _ if is_late => MAX_RECEIVES_LATE_TIMER,
            Driver::Poller => self.poller_receives.max(1),
            Driver::Thread => MAX_RECEIVES_THREAD,
        }
    }

    /// Returns whether a poller's round leaves out the socket, if other NICs have links.
    pub(crate) fn may_skip_socket(&self, now: Time) -> bool {
        now - self.last_socket_data > SOCKET_ACTIVE && now - self.last_socket_look < MIN_SOCKET_INTERVAL
    }

    /// Records how many of a round's receive calls returned data.
    pub(crate) fn record_receives(&mut self, now: Time, driver: Driver, received: u32, max_receives: u32) {
        self.last_socket_look = now;
        if received > 0 {
            self.last_socket_data = now;
        }
        if driver == Driver::Poller {
            let next = if received < max_receives { received } else { received * 2 };
            self.poller_receives = next.clamp(1, MAX_RECEIVES_POLLER);
        }
    }

    /// Returns whether the thread, which does not sleep, looks at the descriptors of the links now.
    pub(crate) fn begin_link_look(&mut self, now: Time) -> bool {
        let is_due = now - self.last_link_look >= LINK_INTERVAL;
        if is_due {
            self.last_link_look = now;
        }
        is_due
    }

    /// Returns what the progress thread does in this round, and checks the lease if that is due. A
    /// NIC without `has_host_access` has no polling callers.
    pub(crate) fn begin_thread_round(&mut self, now: Time, has_host_access: bool) -> ThreadRole {
        let is_check_due = now - self.last_lease_check >= CHECK_INTERVAL / 2;
        if is_check_due {
            self.last_lease_check = now;
        }
        // An event of a link wakes the thread before the next check of the lease is due.
        if !is_check_due && self.lease.is_held() && has_host_access {
            return ThreadRole::Sleeps(self.next_lease_check());
        }
        if !self.lease.check() || !has_host_access {
            return ThreadRole::Drives;
        }
        // A lease holder whose polls all find completions does not drive the NIC, and a holder that
        // waits for data in memory does not poll when the data arrives.
        if self.last_poll_drive.is_none_or(|(_, at)| now - at >= ABSENT_AFTER) {
            return ThreadRole::DrivesForHolder;
        }
        self.lease.record_present();
        ThreadRole::Sleeps(self.next_lease_check())
    }

    /// Records the round that the thread has driven for an absent holder. Returns until when the
    /// thread sleeps, or `None` if the holder has lost the lease.
    pub(crate) fn end_absence(&mut self, now: Time, had_datagrams: bool) -> Option<Time> {
        let cpu_time = self.poller.filter(|_| had_datagrams).and_then(ThreadCpuClock::cpu_time);
        self.record_absence(now, cpu_time);
        self.lease.is_held().then(|| self.next_lease_check())
    }

    /// Records a check that found the lease holder absent. `cpu_time` is the holder's CPU time if
    /// datagrams were waiting.
    pub(crate) fn record_absence(&mut self, now: Time, cpu_time: Option<Duration>) {
        self.lease.record_absent(now, cpu_time);
    }

    fn next_lease_check(&self) -> Time {
        self.last_lease_check + CHECK_INTERVAL
    }

    /// Records a round of the thread. Returns whether the thread runs the next one at once.
    pub(crate) fn must_spin(&mut self, now: Time) -> bool {
        self.spin_policy.should_spin(now, self.last_host_call)
    }

    /// Records that a round of the thread has received something.
    pub(crate) fn record_thread_receive(&mut self, now: Time) {
        self.spin_policy.record_receive(now);
    }

    /// Returns until when the thread sleeps at most.
    pub(crate) fn max_sleep(&self, now: Time) -> Option<Time> {
        (now - self.last_timer < TIMER_PERIOD).then_some(now + self.timer_length)
    }

    /// Returns whether the caller must wake the thread for work that is due at `due`.
    pub(crate) fn must_wake(&mut self, due: Time) -> bool {
        let must_wake = self.thread_wakeup.must_wake(due);
        if must_wake {
            let now = clock::now();
            (self.last_timer, self.timer_length) = (now, due.saturating_since(now).max(MIN_SLEEP_BOUND));
        }
        must_wake
    }

    /// Records that a consumer of events is about to wake.
    pub(crate) fn record_event(&mut self, now: Time) {
        self.spin_policy.record_event(now);
    }

    /// Sets when a poll of `cq` drove the NIC last, and makes a check of the lease due.
    #[cfg(test)]
    pub(crate) fn set_last_poll_drive(&mut self, cq: CqId, at: Time) {
        (self.last_poll_drive, self.last_lease_check) = (Some((cq, at)), Time::ZERO);
    }
}
