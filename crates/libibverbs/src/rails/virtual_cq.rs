//! The completion queue in which virtual queue pairs complete. It is in this process's memory, not
//! on a NIC.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use mitra_verbs::{Error, Qpn, Result, Wc, WcStatus};

use super::queue_users::QueueUsers;
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
    /// One of the `ARMED_FOR_…` constants. Written only while `ready` is locked, so that an event
    /// reports a completion that was added after the program armed the queue.
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

    /// Removes the completions of a queue pair that is being reset.
    pub(super) fn discard(&self, qpn: Qpn) {
        lock(&self.ready).retain(|wc| wc.qpn != qpn);
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.users.is_empty()
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
            self.armed.store(ARMED_FOR_NONE, Ordering::Relaxed);
            if let Some(channel) = &*lock(&self.channel) {
                channel.events.push(channel.cq_address);
            }
        }
    }

    /// Records that a completion was lost, here or in the queue of the NIC of rail 0, and reports
    /// the first loss.
    pub(super) fn overflow(&self) {
        if !self.overflowed.swap(true, Ordering::Relaxed) {
            (self.on_overflow)();
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != ARMED_FOR_NONE
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
            let _ready = lock(&self.ready);
            self.armed.fetch_max(armed, Ordering::Relaxed);
        }
        self.users.all().iter().try_for_each(|user| user.arm())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use mitra_verbs::WcOpcode;

    use super::*;
    use crate::common::event_queue::new_event_queue;

    fn queue() -> (Arc<VirtualCq>, Arc<EventQueue<usize>>) {
        let events = Arc::new(new_event_queue().expect("the process has room for a descriptor"));
        (VirtualCq::new(1 << 10, Some(Arc::clone(&events)), || {}), events)
    }

    fn completion(wr_id: u64) -> Wc {
        Wc::new(wr_id, WcStatus::Success, WcOpcode::Recv, Qpn::new(5))
    }

    #[test]
    fn each_request_brings_one_event_for_a_later_completion() {
        let (cq, events) = queue();
        cq.push(completion(1));
        assert!(events.is_empty(), "the queue was not armed");
        cq.arm(false).expect("no NIC is involved");
        assert!(events.is_empty(), "the completion is older than the request");
        cq.push(completion(2));
        cq.push(completion(3));
        assert_eq!(events.len(), 1);
    }

    /// A program that polls one completion for each event, as perftest does, finds every completion
    /// that it waits for.
    #[test]
    fn event_finds_completion_that_was_added_after_the_request() {
        const ROUNDS: u64 = 20_000;
        let (cq, events) = queue();
        let (posted, to_push) = std::sync::mpsc::channel();
        let pushing = Arc::clone(&cq);
        let pusher = thread::spawn(move || to_push.iter().for_each(|wr_id| pushing.push(completion(wr_id))));
        cq.arm(false).expect("no NIC is involved");
        for wr_id in 0..ROUNDS {
            posted.send(wr_id).expect("the thread runs");
            while events.pop().is_none() {
                thread::yield_now();
            }
            cq.arm(false).expect("no NIC is involved");
            let mut polled = Vec::new();
            cq.poll(1, &mut polled);
            assert_eq!(polled.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [wr_id]);
        }
        drop(posted);
        pusher.join().expect("a push does not panic");
    }
}
