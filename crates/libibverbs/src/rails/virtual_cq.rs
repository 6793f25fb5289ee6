//! The completion queue in which virtual queue pairs complete. It is in this process's memory, not
//! on a NIC.
//!
//! The NICs' completion queues belong to the device, and report for all its RC, UC and XRC queue
//! pairs. A poll of a [`VirtualCq`] takes what was pushed before. If there is nothing, it drives
//! the device, which finds the queue pairs that have something to do.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mitra_verbs::{CqId, Error, Qpn, Result, Wc, WcStatus};

use super::device::CompletionQueue;
use super::drive_queue::Driven;
use super::multi_rail_domain::MultiRailDomain;
use super::queue_users::{PolledUser, QueueUsers};
use crate::common::event_queue::EventQueue;
use crate::common::limit::check_limit;
use crate::common::lock::lock;

/// The completions that a queue is armed for. [`ARMED_FOR_ALL`] includes [`ARMED_FOR_SOLICITED`],
/// so the greater value wins.
const ARMED_FOR_NONE: u8 = 0;
const ARMED_FOR_SOLICITED: u8 = 1;
const ARMED_FOR_ALL: u8 = 2;

/// A completion queue in which any number of virtual queue pairs complete.
pub(crate) struct VirtualCq {
    id: CqId,
    device: Arc<MultiRailDomain>,
    /// The completions that the program has not polled.
    ready: Mutex<VecDeque<Wc>>,
    /// The maximum number of completions in `ready`.
    depth: AtomicUsize,
    /// Whether a completion was lost because the queue was full. Then all later completions are
    /// lost too, and the queue pairs that complete in the queue fail.
    overflowed: AtomicBool,
    /// Reports `IBV_EVENT_CQ_ERR`.
    on_overflow: Box<dyn Fn() + Send + Sync>,
    /// One of the `ARMED_FOR_…` constants. Written only while `ready` is locked, so that an event
    /// reports a completion that was added after the program armed the queue.
    armed: AtomicU8,
    pub(super) users: QueueUsers,
    /// The number of XRC shared receive queues whose receives complete here.
    pub(super) xrc_srqs: AtomicUsize,
    /// The UD queue pairs among the users.
    pub(super) polled: QueueUsers<dyn PolledUser>,
    /// The queue's completion channel, if it has one and the program has not destroyed the queue.
    channel: Mutex<Option<Arc<EventQueue<CqId>>>>,
}

impl VirtualCq {
    /// Creates a queue for up to `depth` completions that reports events to `channel`, if there is
    /// one. `on_overflow` reports the first loss of a completion.
    pub(crate) fn new(
        device: &Arc<MultiRailDomain>,
        id: CqId,
        depth: u32,
        channel: Option<Arc<EventQueue<CqId>>>,
        on_overflow: impl Fn() + Send + Sync + 'static,
    ) -> Arc<VirtualCq> {
        Arc::new(VirtualCq {
            id,
            device: Arc::clone(device),
            ready: Mutex::default(),
            depth: AtomicUsize::new(depth as usize),
            overflowed: AtomicBool::new(false),
            on_overflow: Box::new(on_overflow),
            armed: AtomicU8::new(ARMED_FOR_NONE),
            users: QueueUsers::default(),
            xrc_srqs: AtomicUsize::new(0),
            polled: QueueUsers::default(),
            channel: Mutex::new(channel),
        })
    }

    /// The caller holds the lock of `ready`.
    fn disarm(&self) {
        if self.armed.swap(ARMED_FOR_NONE, Ordering::Relaxed) != ARMED_FOR_NONE {
            self.device.armed_cqs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes the completions of a queue pair that is being reset.
    pub(super) fn discard(&self, qpn: Qpn) {
        lock(&self.ready).retain(|wc| wc.qpn != qpn);
    }

    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Appends a completion. If the queue is armed for it, reports an event and disarms the queue.
    /// If the queue is full or has overflowed, the completion is lost.
    pub(super) fn push(&self, wc: Wc) {
        let is_solicited_or_failed = wc.solicited || wc.status != WcStatus::Success;
        let needs = if is_solicited_or_failed { ARMED_FOR_SOLICITED } else { ARMED_FOR_ALL };
        let mut ready = lock(&self.ready);
        let is_full = ready.len() >= self.depth.load(Ordering::Relaxed);
        if is_full || self.has_overflowed() {
            drop(ready);
            return self.overflow();
        }
        ready.push_back(wc);
        // The event is reported before the lock is released. Otherwise the program could poll this
        // completion and arm the queue again, and the event would come for the new request.
        if self.armed.load(Ordering::Relaxed) >= needs {
            self.disarm();
            if let Some(channel) = &*lock(&self.channel) {
                channel.push(self.id);
            }
        }
    }

    /// Records that a completion was lost, and reports the first loss.
    fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Relaxed) {
            (self.on_overflow)();
            self.users.for_each(|user| user.wake());
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != ARMED_FOR_NONE
    }

    /// Drives the queue pairs that have something to do.
    fn drive(&self) {
        let awaits = |qp: &dyn Driven| qp.completes_in(ptr::from_ref(self).addr());
        match self.users.only() {
            // Most queues have one queue pair. A poll of this queue pair costs less than to find
            // out that it has something to do.
            Some(only) => self.device.drive_beside(awaits, || only.poll()),
            None => self.device.drive(awaits),
        }
        self.polled.for_each(|user| user.drive());
    }

    fn take(&self, max: usize, out: &mut Vec<Wc>) -> usize {
        let mut ready = lock(&self.ready);
        let n = max.min(ready.len());
        out.extend(ready.drain(..n));
        n
    }
}

impl CompletionQueue for VirtualCq {
    fn id(&self) -> CqId {
        self.id
    }

    /// If there are no completions, drives the queue pairs first.
    fn poll(&self, max: usize, out: &mut Vec<Wc>) -> Result<()> {
        if self.take(max, out) == 0 {
            self.drive();
            self.take(max, out);
        }
        Ok(())
    }

    fn resize(&self, depth: u32) -> Result<()> {
        if depth == 0 {
            return Err(Error::Invalid("a completion queue needs at least one entry; pass a depth from 1"));
        }
        check_limit("completion queue entries", depth, self.device.limits().cqe)?;
        self.drive();
        let ready = lock(&self.ready);
        if ready.len() > depth as usize {
            return Err(Error::Invalid(
                "the queue holds more completions than the new size; poll them first",
            ));
        }
        self.depth.store(depth as usize, Ordering::Relaxed);
        Ok(())
    }

    /// A request for solicited completions does not replace an earlier request for all completions
    /// (IBTA volume 1, 11.4.2.2).
    fn arm(&self, solicited_only: bool) -> Result<()> {
        if lock(&self.channel).is_some() {
            let armed = if solicited_only { ARMED_FOR_SOLICITED } else { ARMED_FOR_ALL };
            let _ready = lock(&self.ready);
            if self.armed.fetch_max(armed, Ordering::Relaxed) == ARMED_FOR_NONE {
                self.device.armed_cqs.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.device.arm()?;
        self.polled.all().iter().try_for_each(|user| user.arm())?;
        self.drive();
        Ok(())
    }

    /// Releases the channel, and removes the queue's events from it. The program may destroy the
    /// channel, which closes its descriptor, while queue pairs still refer to this queue.
    fn destroy(&self) -> Result<()> {
        let is_receiving = self.xrc_srqs.load(Ordering::Relaxed) > 0;
        if is_receiving || !self.users.is_empty() {
            let user =
                if is_receiving { "a queue pair or an XRC shared receive queue" } else { "a queue pair" };
            return Err(Error::Busy { kind: "completion queue", id: self.id.0, user });
        }
        let _ready = lock(&self.ready);
        self.disarm();
        if let Some(channel) = lock(&self.channel).take() {
            channel.retain(|id| *id != self.id);
        }
        Ok(())
    }
}
