//! The queue pairs of a device that have something to do. A poll of a completion queue and the
//! progress thread drive these queue pairs only, so that idle queue pairs cost nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Wake;

use mitra_verbs::Time;

use crate::common::lock::lock;

/// The value of [`QpWaker::timer`] without a timer, and of [`DriveQueue::next_timer`] without
/// timers.
const NEVER: u64 = u64::MAX;

/// A queue pair that is driven when it was woken.
pub(super) trait Driven: Send + Sync {
    /// Handles what the queue pair has to do, and wakes it again if that is not everything. Waits
    /// while another thread holds the queue pair's lock.
    fn drive(&self);

    /// Does the same as [`Driven::drive`], or wakes the queue pair again if another thread holds
    /// the lock.
    fn try_drive(&self);

    /// Returns whether requests of the queue pair complete in the completion queue at this address.
    fn completes_in(&self, cq: usize) -> bool;
}

#[derive(Default)]
struct Woken {
    waiting: VecDeque<Arc<QpWaker>>,
    /// The queue pairs that threads drive at present.
    driven: Vec<Arc<QpWaker>>,
}

/// The woken queue pairs of a device, and the timers that wake queue pairs.
pub(super) struct DriveQueue {
    woken: Mutex<Woken>,
    /// By time, and by the address of the waker. A waker has at most one timer.
    timers: Mutex<BTreeMap<(Time, usize), Arc<QpWaker>>>,
    /// The time of the first timer, in nanoseconds, or [`NEVER`].
    next_timer: AtomicU64,
}

impl DriveQueue {
    pub(super) fn new() -> Arc<DriveQueue> {
        let (woken, timers) = (Mutex::default(), Mutex::default());
        Arc::new(DriveQueue { woken, timers, next_timer: AtomicU64::new(NEVER) })
    }

    /// Creates the waker of a queue pair, which [`QpWaker::set_qp`] names later.
    pub(super) fn waker(self: &Arc<Self>) -> Arc<QpWaker> {
        Arc::new(QpWaker {
            queue: Arc::clone(self),
            qp: OnceLock::new(),
            is_queued: AtomicBool::new(false),
            timer: AtomicU64::new(NEVER),
        })
    }

    /// Drives each queue pair that is woken or whose timer is due. A queue pair that is woken
    /// during the call is driven by the next call.
    ///
    /// The call waits for another thread that drives a queue pair only if `awaits` returns true. On
    /// return, such a queue pair has handled all that it was woken for before the call.
    pub(super) fn drive(&self, now: Time, awaits: impl Fn(&dyn Driven) -> bool) {
        self.wake_due(now);
        self.drive_woken(awaits);
    }

    /// Does the same as [`DriveQueue::drive`], without the timers.
    pub(super) fn drive_woken(&self, awaits: impl Fn(&dyn Driven) -> bool) {
        let mut woken = lock(&self.woken);
        for _ in 0..woken.waiting.len() {
            let Some(waker) = woken.waiting.pop_front() else { break };
            // From here on, a wake-up queues the queue pair again, so no wake-up during the drive
            // is lost.
            waker.is_queued.store(false, Ordering::Relaxed);
            woken.driven.push(Arc::clone(&waker));
            drop(woken);
            if let Some(qp) = waker.qp() {
                if awaits(&*qp) { qp.drive() } else { qp.try_drive() }
            }
            woken = lock(&self.woken);
            if let Some(at) = woken.driven.iter().position(|driven| Arc::ptr_eq(driven, &waker)) {
                woken.driven.remove(at);
            }
        }
        // Another thread may have taken a queue pair from the list, and not driven it yet. From the
        // end on, because threads remove entries meanwhile, and the entries behind move down.
        for at in (0..woken.driven.len()).rev() {
            let Some(waker) = woken.driven.get(at).map(Arc::clone) else { continue };
            drop(woken);
            if let Some(qp) = waker.qp().filter(|qp| awaits(&**qp)) {
                qp.drive();
            }
            woken = lock(&self.woken);
        }
    }

    fn wake_due(&self, now: Time) {
        if now.as_nanos() < self.next_timer.load(Ordering::Acquire) {
            return;
        }
        let mut timers = lock(&self.timers);
        while let Some(first) = timers.first_entry()
            && first.key().0 <= now
        {
            let waker = first.remove();
            waker.timer.store(NEVER, Ordering::Release);
            waker.wake();
        }
        self.note_first(&timers);
    }

    fn note_first(&self, timers: &BTreeMap<(Time, usize), Arc<QpWaker>>) {
        let first = timers.first_key_value().map_or(NEVER, |((at, _), _)| at.as_nanos());
        self.next_timer.store(first, Ordering::Release);
    }

    /// Drops all wakers, which refer to the queue.
    pub(super) fn clear(&self) {
        lock(&self.woken).waiting.clear();
        lock(&self.timers).clear();
    }
}

/// Queues its queue pair in the [`DriveQueue`] of the device, at most once.
pub(super) struct QpWaker {
    queue: Arc<DriveQueue>,
    qp: OnceLock<Weak<dyn Driven>>,
    /// Changes only while [`DriveQueue::woken`] is locked.
    is_queued: AtomicBool,
    /// The time of the waker's timer, in nanoseconds, or [`NEVER`].
    timer: AtomicU64,
}

impl QpWaker {
    /// Sets the queue pair, once.
    pub(super) fn set_qp(&self, qp: Weak<dyn Driven>) {
        let _ = self.qp.set(qp);
    }

    fn qp(&self) -> Option<Arc<dyn Driven>> {
        self.qp.get().and_then(Weak::upgrade)
    }

    /// Wakes the queue pair at this time, or earlier if an earlier timer runs already. To be called
    /// by one thread at a time.
    pub(super) fn wake_at(self: &Arc<Self>, at: Time) {
        if self.timer.load(Ordering::Acquire) <= at.as_nanos() {
            return;
        }
        let mut timers = lock(&self.queue.timers);
        let address = Arc::as_ptr(self).addr();
        let before = self.timer.swap(at.as_nanos(), Ordering::AcqRel);
        timers.remove(&(Time::from_nanos(before), address));
        timers.insert((at, address), Arc::clone(self));
        self.queue.note_first(&timers);
    }
}

impl Wake for QpWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut woken = lock(&self.queue.woken);
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            woken.waiting.push_back(Arc::clone(self));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    /// A queue pair whose first drive lasts until the second begins.
    struct Slow {
        barrier: Barrier,
        drives: AtomicUsize,
    }

    impl Driven for Slow {
        fn drive(&self) {
            self.drives.fetch_add(1, Ordering::Relaxed);
            self.barrier.wait();
        }

        fn try_drive(&self) {
            self.drive();
        }

        fn completes_in(&self, _cq: usize) -> bool {
            true
        }
    }

    /// Completions of a queue pair that another thread has begun to drive are not missed.
    #[test]
    fn queue_pair_that_another_thread_drives_is_awaited() {
        let queue = DriveQueue::new();
        let qp = Arc::new(Slow { barrier: Barrier::new(2), drives: AtomicUsize::new(0) });
        let waker = queue.waker();
        let weak = Arc::downgrade(&qp);
        waker.set_qp(weak);
        waker.wake_by_ref();
        thread::scope(|scope| {
            scope.spawn(|| queue.drive(at(0), |_| false));
            while qp.drives.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            queue.drive(at(0), |_| false);
            assert_eq!(qp.drives.load(Ordering::Relaxed), 1);
            queue.drive(at(0), |_| true);
        });
        assert_eq!(qp.drives.load(Ordering::Relaxed), 2);
        assert!(lock(&queue.woken).driven.is_empty());
    }

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn queued(queue: &DriveQueue) -> usize {
        lock(&queue.woken).waiting.len()
    }

    #[test]
    fn waker_is_queued_once() {
        let queue = DriveQueue::new();
        let wakers = [queue.waker(), queue.waker()];
        for _ in 0..3 {
            wakers.iter().for_each(Wake::wake_by_ref);
        }
        assert_eq!(queued(&queue), 2);
        queue.drive(at(0), |_| true);
        assert_eq!(queued(&queue), 0);
        wakers[0].wake_by_ref();
        assert_eq!(queued(&queue), 1);
    }

    #[test]
    fn timer_wakes_once_at_the_earliest_time() {
        let queue = DriveQueue::new();
        let waker = queue.waker();
        [30, 20, 40].into_iter().for_each(|nanos| waker.wake_at(at(nanos)));
        queue.wake_due(at(19));
        assert_eq!(queued(&queue), 0);
        queue.drive(at(20), |_| true);
        assert_eq!(lock(&queue.timers).len(), 0);
        waker.wake_at(at(50));
        queue.wake_due(at(49));
        assert_eq!(queued(&queue), 0);
        queue.wake_due(at(50));
        assert_eq!(queued(&queue), 1);
    }

    #[test]
    fn timers_of_several_wakers_fire_in_order_of_time() {
        let queue = DriveQueue::new();
        let wakers: Vec<_> = (0..100).map(|_| queue.waker()).collect();
        (0..).zip(&wakers).for_each(|(n, waker)| waker.wake_at(at(1000 - n)));
        queue.wake_due(at(950));
        assert_eq!(queued(&queue), 50);
        queue.wake_due(at(1000));
        assert_eq!(queued(&queue), 100);
    }
}
