//! An event queue in one thread.

use std::os::fd::AsFd;

use mitra_os_util::event_queue::{Closed, EventQueue};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

fn is_readable<T>(queue: &EventQueue<T>) -> bool {
    poll(&mut [PollFd::new(queue.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn full_queue_drops_new_events() {
    let queue = EventQueue::new(100).unwrap();
    for i in 0..200 {
        queue.push(i);
    }
    assert_eq!(queue.len(), 100);
    assert!(std::iter::from_fn(|| queue.pop()).eq(0..100));
}

#[test]
fn descriptor_is_readable_while_queue_holds_event() {
    for queue in [EventQueue::new(8).unwrap(), EventQueue::with_blocking_fd(8).unwrap()] {
        assert!(!is_readable(&queue) && queue.is_empty());
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.pop(), Some(1));
        assert!(is_readable(&queue));
        assert_eq!((queue.pop(), queue.pop()), (Some(2), None));
        assert!(!is_readable(&queue));
        queue.push(3);
        queue.retain(|&event| event != 3);
        assert!(!is_readable(&queue));
        queue.retain(|_| false);
        queue.push_once(4);
        queue.push_once(4);
        assert_eq!((is_readable(&queue), queue.len()), (true, 1));
    }
}

/// An edge-triggered epoll wakes once for each new event, even if older events are unread.
#[test]
fn each_new_event_is_an_edge() {
    for queue in [EventQueue::new(3).unwrap(), EventQueue::with_blocking_fd(3).unwrap()] {
        let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
        epoll.add(&queue, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).unwrap();
        let wakes = || epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).unwrap() == 1;
        assert!(!wakes());
        queue.push(1);
        assert_eq!([wakes(), wakes()], [true, false]);
        queue.push(2);
        assert_eq!([wakes(), wakes()], [true, false]);
        queue.push_once(2);
        assert!(!wakes(), "there is no new event");
        queue.enqueue(3);
        assert!(!wakes());
        queue.signal();
        assert_eq!([wakes(), wakes()], [true, false]);
        queue.signal();
        assert!(!wakes());
        queue.push(4);
        assert_eq!([wakes(), wakes()], [true, false], "the event was dropped, but there are others");
        assert_eq!((queue.pop(), queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), Some(3), None));
        assert!(!is_readable(&queue) && !wakes());
        queue.push(5);
        assert_eq!([wakes(), wakes()], [true, false]);
    }
}

#[test]
fn enqueued_event_does_not_change_descriptor_before_signal() {
    let queue = EventQueue::new(8).unwrap();
    queue.enqueue(1);
    assert!(!is_readable(&queue));
    queue.signal();
    assert!(is_readable(&queue));
    assert_eq!(queue.pop(), Some(1));
    queue.signal();
    assert!(!is_readable(&queue), "an empty queue was signalled");
}

#[test]
fn closed_queue_returns_its_events_and_stays_readable() {
    for queue in [EventQueue::new(8).unwrap(), EventQueue::with_blocking_fd(8).unwrap()] {
        queue.push(1);
        queue.close();
        queue.push(2);
        assert_eq!(queue.pop_unless_closed(), Ok(Some(1)));
        assert_eq!([queue.pop_unless_closed(), queue.pop_unless_closed()], [Err(Closed), Err(Closed)]);
        queue.retain(|_| false);
        assert!(is_readable(&queue) && queue.begin_wait().is_none());
    }
}

#[test]
fn extracted_events_are_removed_in_order() {
    let queue = EventQueue::new(8).unwrap();
    (0..6).for_each(|i| queue.push(i));
    assert_eq!(queue.count(|i| i % 2 == 0), 3);
    assert_eq!(queue.extract(|i| i % 2 == 0), [0, 2, 4]);
    assert!(is_readable(&queue));
    assert_eq!(queue.extract(|_| true), [1, 3, 5]);
    assert!(!is_readable(&queue));
}
