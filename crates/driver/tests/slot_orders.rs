//! A vQP that the driver's thread and threads of the program share, in all orders of their steps.

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/slot.rs"]
mod slot;
/// The lock of loom, which explores the orders.
mod sync {
    pub(crate) use std::sync::PoisonError;

    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use slot::{Driven, Slot};

/// The part of a vQP that waits depend on.
struct Qp {
    /// The number of completions that its NICs have.
    at_nics: Arc<AtomicUsize>,
    completions: usize,
    is_closed: bool,
}

impl Driven for Qp {
    fn drive(&mut self) {
        self.completions += self.at_nics.swap(0, Ordering::Acquire);
    }

    fn after_change(&mut self) {}

    fn has_news(&self) -> bool {
        self.completions > 0 || self.is_closed
    }
}

fn slot() -> (Arc<Slot<Qp>>, Arc<AtomicUsize>) {
    let at_nics = Arc::new(AtomicUsize::new(0));
    (Arc::new(Slot::new(Qp { at_nics: Arc::clone(&at_nics), completions: 0, is_closed: false })), at_nics)
}

/// Waits for a completion. Returns whether there was one before the vQP closed.
fn wait(slot: &Slot<Qp>) -> bool {
    let take = |qp: &mut Qp| match qp.completions {
        0 => qp.is_closed.then_some(false),
        _ => {
            qp.completions -= 1;
            Some(true)
        }
    };
    slot.wait_until(None, take).expect("the wait has no deadline")
}

/// The driver finds the two completions in two rounds. A lost wake-up would leave a thread waiting:
/// loom reports a deadlock.
#[test]
fn waiting_threads_get_the_completions_that_the_driver_finds() {
    loom::model(|| {
        let (slot, at_nics) = slot();
        let waits = [(); 2].map(|()| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || wait(&slot))
        });
        for _ in 0..2 {
            at_nics.fetch_add(1, Ordering::Release);
            slot.drive();
        }
        assert!(waits.into_iter().all(|wait| wait.join().expect("no panic")));
    });
}

#[test]
fn close_by_another_thread_ends_all_waits() {
    loom::model(|| {
        let (slot, _) = slot();
        let waits = [(); 2].map(|()| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || wait(&slot))
        });
        slot.lock_to_change().is_closed = true;
        assert!(waits.into_iter().all(|wait| !wait.join().expect("no panic")));
    });
}

/// A call of the program may find the completion for which another thread waits.
#[test]
fn completion_that_a_call_finds_ends_a_wait() {
    loom::model(|| {
        let (slot, at_nics) = slot();
        let waits = Arc::clone(&slot);
        let wait = thread::spawn(move || wait(&waits));
        at_nics.fetch_add(1, Ordering::Release);
        slot.lock_to_change().drive();
        assert!(wait.join().expect("no panic"));
    });
}
