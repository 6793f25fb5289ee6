//! The completion queue in which virtual queue pairs complete. It is in this process's memory, not
//! on a NIC.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mitra_verbs::{Error, Qpn, Result, Wc, WcStatus};

use super::queue_users::{QueueUser, QueueUsers};
use crate::common::event_queue::EventQueue;
use crate::common::lock::lock;

/// The completions that a queue is armed for. [`ARMED_FOR_ALL`] includes [`ARMED_FOR_SOLICITED`],
/// so the greater value wins.
const ARMED_FOR_NONE: u8 = 0;
const ARMED_FOR_SOLICITED: u8 = 1;
const ARMED_FOR_ALL: u8 = 2;

/// A completion queue in which any number of virtual queue pairs complete.
pub(crate) struct VirtualCq {
    /// The completions that the program has not polled.
    ready: Mutex<VecDeque<Wc>>,
    /// The maximum number of completions in `ready`.
    depth: AtomicUsize,
    /// Whether a completion was lost because the queue was full. Then all later completions are
    /// lost too, and the queue pairs that complete in the queue fail.
    overflowed: AtomicBool,
    /// Reports `IBV_EVENT_CQ_ERR`.
    on_overflow: Box<dyn Fn() + Send + Sync>,
    /// One of the `ARMED_FOR_…` constants.
    armed: AtomicU8,
    pub(super) users: QueueUsers,
    /// The queue's completion channel, if it has one and the program has not destroyed the queue.
    channel: Mutex<Option<ChannelLink>>,
}

/// The connection of a completion queue to its completion channel.
struct ChannelLink {
    events: Arc<EventQueue<usize>>,
    /// The address of the program's `ibv_cq`, which identifies the completion queue in `events`.
    cq_address: usize,
}

impl VirtualCq {
    /// Creates a queue for up to `depth` completions that reports events to `channel`, if there is
    /// one. `on_overflow` reports the first loss of a completion.
    pub(crate) fn new(
        depth: u32,
        channel: Option<Arc<EventQueue<usize>>>,
        on_overflow: impl Fn() + Send + Sync + 'static,
    ) -> Arc<VirtualCq> {
        Arc::new(VirtualCq {
            ready: Mutex::default(),
            depth: AtomicUsize::new(depth as usize),
            overflowed: AtomicBool::new(false),
            on_overflow: Box::new(on_overflow),
            armed: AtomicU8::new(ARMED_FOR_NONE),
            users: QueueUsers::default(),
            channel: Mutex::new(channel.map(|events| ChannelLink { events, cq_address: 0 })),
        })
    }

    /// Sets the address that identifies the queue in the events of its channel. To be called before
    /// a queue pair uses the queue.
    pub(crate) fn set_cq_address(&self, address: usize) {
        if let Some(channel) = &mut *lock(&self.channel) {
            channel.cq_address = address;
        }
    }

    /// Releases the channel. The program may destroy the channel, which closes its descriptor,
    /// while queue pairs still refer to this queue.
    pub(crate) fn detach_channel(&self) {
        *lock(&self.channel) = None;
    }

    /// Removes a queue pair that is being destroyed, and its completions.
    pub(super) fn detach(&self, user: &dyn QueueUser, qpn: Qpn) {
        self.users.remove(user);
        self.discard(qpn);
    }

    /// Removes the completions of a queue pair that is being reset or destroyed.
    pub(super) fn discard(&self, qpn: Qpn) {
        lock(&self.ready).retain(|wc| wc.qpn != qpn);
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.users.is_empty()
    }

    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Appends a completion, and reports an event if the queue is armed for it. If the queue is
    /// full or has overflowed, the completion is lost.
    pub(super) fn push(&self, wc: Wc) {
        {
            let mut ready = lock(&self.ready);
            let is_full = ready.len() >= self.depth.load(Ordering::Relaxed);
            if is_full || self.has_overflowed() {
                drop(ready);
                return self.overflow();
            }
            ready.push_back(wc);
        }
        let is_solicited_or_failed = wc.solicited || wc.status != WcStatus::Success;
        if is_solicited_or_failed || self.armed.load(Ordering::Acquire) == ARMED_FOR_ALL {
            self.notify();
        }
    }

    /// Records that a completion was lost, here or in the queue of the NIC of rail 0, and reports
    /// the first loss.
    pub(super) fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Relaxed) {
            (self.on_overflow)();
        }
    }

    /// Reports an event if the queue is armed, and disarms it.
    pub(crate) fn notify(&self) {
        if self.armed.swap(ARMED_FOR_NONE, Ordering::AcqRel) != ARMED_FOR_NONE
            && let Some(channel) = &*lock(&self.channel)
        {
            channel.events.push(channel.cq_address);
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire) != ARMED_FOR_NONE
    }

    /// Drives the queue pairs, and changes the maximum number of completions if `resize_on_nic`
    /// succeeds.
    ///
    /// # Errors
    /// `Invalid` if the queue holds more than `depth` completions, or the error of `resize_on_nic`.
    pub(crate) fn resize(&self, depth: u32, resize_on_nic: impl FnOnce() -> Result<()>) -> Result<()> {
        self.users.for_each(|user| user.drive());
        let ready = lock(&self.ready);
        if ready.len() > depth as usize {
            return Err(Error::Invalid(
                "the queue holds more completions than the new size; poll them first",
            ));
        }
        resize_on_nic()?;
        self.depth.store(depth as usize, Ordering::Relaxed);
        Ok(())
    }

    /// Drives the queue pairs, and appends up to `max` completions to `out`.
    pub(crate) fn poll(&self, max: usize, out: &mut Vec<Wc>) {
        self.users.for_each(|user| user.drive());
        let mut ready = lock(&self.ready);
        let n = max.min(ready.len());
        out.extend(ready.drain(..n));
    }

    /// Requests an event at the next completion, or with `solicited_only` at the next completion
    /// that is solicited or failed. A request for solicited completions does not replace an earlier
    /// request for all completions (IBTA volume 1, 11.4.2.2).
    ///
    /// # Errors
    /// The error of a NIC that is not dead.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        if lock(&self.channel).is_some() {
            let armed = if solicited_only { ARMED_FOR_SOLICITED } else { ARMED_FOR_ALL };
            self.armed.fetch_max(armed, Ordering::AcqRel);
        }
        self.users.all().iter().try_for_each(|user| user.arm())
    }
}
