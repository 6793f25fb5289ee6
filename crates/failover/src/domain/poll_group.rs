//! The poll group of a domain's NICs: vQPs that are driven only when there is something to do.
//!
//! A vQP with a waker ([`VirtualQpBuilder::waker`]) is a member. The members share completion
//! queues on each NIC, so that a poll of these queues finds the completions of all members. The
//! poll moves each completion to the inbox of its queue pair, which the number of the queue pair in
//! the completion names, and wakes the member. Members that have nothing to do cost nothing.
//!
//! A member is woken when:
//!
//! - a completion is moved to one of its inboxes;
//! - a control message arrives for it, except for a heartbeat that the member does not wait for;
//! - a NIC reports a change of its port, its death, or an event about one of the member's queue
//!   pairs;
//! - another vQP moves the home rail;
//! - receives are posted to a shared receive queue that it waits for;
//! - a poll of the shared completion queues fails.
//!
//! [`VirtualQp::next_poll`] covers everything else: timers, and work that needs polling.
//!
//! [`VirtualQp::next_poll`]: crate::VirtualQp::next_poll
//! [`VirtualQpBuilder::waker`]: crate::VirtualQpBuilder::waker

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{Qpn, Result, Time};

use super::{ControlEndpoint, Domain, lock};
use crate::local_nic::LocalNic;
use crate::shared_cqs::SharedCqs;

/// The minimum time between two polls of everything that seldom has something to report: the events
/// of the NICs, the control messages, and the completion queues of standby rails.
const FULL_POLL_INTERVAL: Duration = Duration::from_micros(30);

/// The number of polls between two readings of the clock, if less than [`FULL_POLL_INTERVAL`]
/// passed between the last two readings. A reading at each poll would slow down tight loops.
const POLLS_PER_CLOCK_READ: u64 = 4;

/// The poll group of the NICs of one or more domains.
#[derive(Debug)]
pub(super) struct PollGroup {
    /// By rail.
    cqs: Vec<Arc<SharedCqs>>,
    /// The endpoints of members for control messages.
    controls: Mutex<Vec<Weak<ControlEndpoint>>>,
    /// The number of polls.
    polls: AtomicU64,
    /// The number of polls at the next reading of the clock.
    next_clock_read: AtomicU64,
    /// The time at the last reading of the clock, in nanoseconds.
    last_poll: AtomicU64,
    /// The time of the last full poll, in nanoseconds.
    last_full_poll: AtomicU64,
    /// Bit i: the NIC of rail i answered the last [`Domain::poll_and_query`].
    answering: Mutex<u8>,
}

impl PollGroup {
    pub(super) fn new(nics: &[LocalNic]) -> PollGroup {
        PollGroup {
            cqs: nics.iter().map(SharedCqs::new).collect(),
            controls: Mutex::default(),
            polls: AtomicU64::new(0),
            next_clock_read: AtomicU64::new(0),
            last_poll: AtomicU64::new(0),
            last_full_poll: AtomicU64::new(0),
            answering: Mutex::new(u8::MAX),
        }
    }

    pub(super) fn add_control_endpoint(&self, endpoint: &Arc<ControlEndpoint>) {
        let mut controls = lock(&self.controls);
        controls.retain(|known| known.strong_count() > 0);
        controls.push(Arc::downgrade(endpoint));
    }

    /// Wakes the member with this queue pair.
    pub(super) fn wake(&self, rail: usize, qpn: Qpn) {
        self.cqs[rail].wake(qpn);
    }

    pub(super) fn wake_all(&self) {
        self.cqs.iter().for_each(|cqs| cqs.wake_all());
    }

    fn is_full_poll_due(&self, now: Time) -> bool {
        let last = self.last_full_poll.load(Ordering::Relaxed);
        let due = Time::from_nanos(last) + FULL_POLL_INTERVAL;
        let exchange = |now| {
            self.last_full_poll.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        now >= due && exchange(now.as_nanos())
    }

    fn poll_full(&self, domain: &Domain) {
        self.cqs.iter().for_each(|cqs| cqs.poll_all());
        domain.poll_events();
        lock(&self.controls).iter().filter_map(Weak::upgrade).for_each(|endpoint| endpoint.distribute());
    }
}

impl Domain {
    /// The completion queues that the members of the poll group share on the NIC of a rail.
    pub(crate) fn shared_cqs(&self, rail: usize) -> &Arc<SharedCqs> {
        &self.shared.group.cqs[rail]
    }

    /// Counts a poll. Returns the present time, which may be as old as [`POLLS_PER_CLOCK_READ`]
    /// polls. If two threads count at the same time, the clock is read a little sooner or later.
    #[inline]
    fn begin_poll(&self) -> Time {
        let group = &self.shared.group;
        let polls = group.polls.load(Ordering::Relaxed) + 1;
        group.polls.store(polls, Ordering::Relaxed);
        if polls < group.next_clock_read.load(Ordering::Relaxed) {
            self.last_poll()
        } else {
            self.read_clock()
        }
    }

    fn read_clock(&self) -> Time {
        let group = &self.shared.group;
        let now = self.nics[0].provider.now();
        let before = Time::from_nanos(group.last_poll.swap(now.as_nanos(), Ordering::Relaxed));
        let gap = now.saturating_since(before);
        let polls = if gap < FULL_POLL_INTERVAL { POLLS_PER_CLOCK_READ } else { 1 };
        group.next_clock_read.store(group.polls.load(Ordering::Relaxed) + polls, Ordering::Relaxed);
        now
    }

    /// The time at the last reading of the clock by a poll of the group.
    #[inline]
    pub(crate) fn last_poll(&self) -> Time {
        Time::from_nanos(self.shared.group.last_poll.load(Ordering::Relaxed))
    }

    /// Drives the NICs, and wakes the vQPs with a waker
    /// ([`VirtualQpBuilder::waker`](crate::VirtualQpBuilder::waker)) for which completions, control
    /// messages or events have arrived. The cost does not depend on the number of other vQPs.
    /// Returns the time on the clock of rail 0's NIC, at most a few polls ago, by which
    /// [`VirtualQp::next_poll`](crate::VirtualQp::next_poll) is due. Concerns the vQPs of all
    /// domains over the same NICs ([`Domain::with_own_pds`]).
    ///
    /// Must not be called by a waker.
    pub fn poll(&self) -> Time {
        let now = self.poll_beside_vqp();
        self.shared.group.cqs.iter().filter(|cqs| cqs.is_active()).for_each(|cqs| cqs.poll_all());
        now
    }

    /// Does the same as [`Domain::poll`] for a caller that polls one vQP with a waker next, whether
    /// or not the vQP was woken. That poll takes the completions of all vQPs on the same rail, and
    /// wakes the others. Completions on other active rails may wait for 30 µs.
    #[inline]
    pub fn poll_beside_vqp(&self) -> Time {
        let now = self.begin_poll();
        let group = &self.shared.group;
        if group.is_full_poll_due(now) {
            group.poll_full(self);
        }
        now
    }

    /// Does the same as [`Domain::poll`], and queries whether the NICs are alive. A NIC may die
    /// without an event, so the caller of [`Domain::poll`] makes this call about every millisecond.
    pub fn poll_and_query(&self) -> Time {
        let now = self.read_clock();
        let bits = self.nics.iter().enumerate().map(|(rail, nic)| {
            let answers = nic.provider.query_port().is_ok();
            u8::from(answers) << rail
        });
        let answering = bits.fold(0, |all, bit| all | bit);
        if core::mem::replace(&mut *lock(&self.shared.group.answering), answering) != answering {
            self.shared.group.wake_all();
        }
        self.shared.group.poll_full(self);
        now
    }

    /// Requests an event on the completion channels of the NICs
    /// ([`Domain::with_completion_channels`]) at the next completion of a vQP with a waker. The
    /// caller must then call [`Domain::poll`] once more, because a completion may have arrived
    /// before the request.
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`](mitra_verbs::Error::DeviceFatal).
    pub fn arm(&self) -> Result<()> {
        self.shared.group.cqs.iter().filter(|cqs| cqs.is_active()).try_for_each(|cqs| cqs.arm())
    }
}
