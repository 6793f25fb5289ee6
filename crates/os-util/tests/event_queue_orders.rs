//! An event queue in all orders of the steps of its threads.

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/event_queue.rs"]
mod event_queue;
/// The real descriptor, with an atomic by which loom sees each access.
mod eventfd {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use mitra_os_util::eventfd;
    use nix::sys::eventfd::EventFd;

    loom::lazy_static! {
        static ref ACCESSES: AtomicUsize = AtomicUsize::new(0);
    }

    pub(crate) fn access() {
        ACCESSES.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn signal(fd: &EventFd) {
        access();
        eventfd::signal(fd);
    }

    pub(crate) fn clear(fd: &EventFd) {
        access();
        eventfd::clear(fd);
    }
}
/// No thread sleeps on the futex: the test compares its value.
mod futex {
    use loom::sync::atomic::AtomicU32;

    pub(crate) fn wake_all(_: &AtomicU32) {}
}
/// The lock and the atomics of loom, which explores the orders.
mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

use std::os::fd::AsFd;

use event_queue::EventQueue;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn queue() -> Arc<EventQueue<u8>> {
    Arc::new(EventQueue::new(2).expect("the process has a free descriptor"))
}

fn is_readable(queue: &EventQueue<u8>) -> bool {
    eventfd::access();
    let mut polled = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).expect("the descriptor is open") == 1
}

/// A consumer that takes events until there is none, and then waits for the descriptor, takes every
/// event.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let queue = queue();
        let producer = Arc::clone(&queue);
        let pushes = thread::spawn(move || {
            producer.push(1);
            producer.push(2);
        });
        let mut taken: Vec<u8> = std::iter::from_fn(|| queue.pop()).collect();
        pushes.join().expect("the producer does not panic");
        assert_eq!(is_readable(&queue), taken.len() < 2, "after {taken:?}");
        taken.extend(std::iter::from_fn(|| queue.pop()));
        assert_eq!(taken, [1, 2]);
        assert!(!is_readable(&queue));
    });
}

/// The futex of a consumer that prepares to sleep, after it has found no event, changes with the
/// next event and with the end of the queue. So the consumer does not sleep then.
#[test]
fn no_sleeper_misses_an_event() {
    for closes in [false, true] {
        loom::model(move || {
            let queue = queue();
            let other = Arc::clone(&queue);
            let pushes = thread::spawn(move || if closes { other.close() } else { other.push(1) });
            let first = queue.pop();
            let prepared = queue.begin_wait();
            pushes.join().expect("the producer does not panic");
            if let (None, Some((futex, seen))) = (first, prepared) {
                assert_ne!(futex.load(Ordering::Relaxed), seen);
            }
        });
    }
}

#[test]
fn consumers_share_an_event_and_clear_the_descriptor() {
    loom::model(|| {
        let queue = queue();
        let pop = |queue: &Arc<EventQueue<u8>>| {
            let queue = Arc::clone(queue);
            thread::spawn(move || queue.pop())
        };
        let consumers = [pop(&queue), pop(&queue)];
        queue.push_once(7);
        let taken: Vec<_> =
            consumers.into_iter().filter_map(|consumer| consumer.join().expect("no panic")).collect();
        assert_eq!((taken.len() + queue.len(), is_readable(&queue)), (1, taken.is_empty()));
    });
}

#[test]
fn signal_shows_a_silent_event_unless_it_was_taken() {
    loom::model(|| {
        let queue = queue();
        let consumer = Arc::clone(&queue);
        let pop = thread::spawn(move || consumer.pop());
        queue.enqueue(7);
        queue.signal();
        let taken = pop.join().expect("the consumer does not panic");
        assert_eq!(is_readable(&queue), taken.is_none());
    });
}
