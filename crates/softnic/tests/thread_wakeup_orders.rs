//! The progress thread and callers with work for it, in all orders of their steps. The only state
//! of the NIC in this test is the due times of its work.

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/thread_wakeup.rs"]
mod thread_wakeup;
#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../../os-util/src/wake_signal.rs"]
mod wake_signal;
/// An eventfd on which loom's threads sleep.
mod eventfd {
    use loom::sync::{Condvar, Mutex};
    use nix::sys::eventfd::EventFd;

    loom::lazy_static! {
        static ref READABLE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
    }

    pub(crate) fn signal(_: &EventFd) {
        *READABLE.0.lock().expect("no panic") = true;
        READABLE.1.notify_all();
    }

    pub(crate) fn clear(_: &EventFd) {
        *READABLE.0.lock().expect("no panic") = false;
    }

    /// Sleeps until the descriptor is readable. Returns whether it is.
    pub(crate) fn sleep() -> bool {
        let mut readable = READABLE.0.lock().expect("no panic");
        while !*readable {
            readable = READABLE.1.wait(readable).expect("no panic");
        }
        *readable
    }
}
/// The atomic of loom, which explores the orders.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
}

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mitra_verbs::Time;

use thread_wakeup::{HasThread, ThreadWakeup, run_round};
use wake_signal::{Step, WakeSignal};

/// The time, which does not advance during the test. The thread's timer for later work never
/// expires.
const NOW: Time = Time::from_nanos(5);

#[derive(Default)]
struct Nic {
    wakeup: ThreadWakeup,
    due: Vec<Time>,
    done: usize,
}

impl HasThread for Nic {
    fn thread_wakeup(&mut self) -> &mut ThreadWakeup {
        &mut self.wakeup
    }
}

struct Shared {
    nic: Mutex<Nic>,
    signal: WakeSignal,
    progress: Condvar,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let signal = WakeSignal::new().expect("the process has a free descriptor");
        Arc::new(Shared { nic: Mutex::default(), signal, progress: Condvar::new() })
    }

    /// Adds work as a verbs call does, and then wakes the thread as `SharedNic::wake_if_due` does.
    fn post(&self, due: u64) {
        let due = Time::from_nanos(due);
        let mut nic = self.nic.lock().expect("no panic");
        nic.due.push(due);
        if nic.wakeup.must_wake(due) {
            self.signal.wake();
        }
    }

    /// Runs a round, and sleeps after it unless this is one of the first `busy_rounds`.
    fn step(&self, busy_rounds: &mut usize) -> Step {
        let nic = self.nic.lock().expect("no panic");
        let round = |nic: &mut Nic| {
            let works = nic.due.len();
            nic.due.retain(|due| *due > NOW);
            nic.done += works - nic.due.len();
            self.progress.notify_all();
            let is_busy = *busy_rounds > 0;
            *busy_rounds = busy_rounds.saturating_sub(1);
            (!is_busy).then(|| nic.due.iter().min().copied())
        };
        match run_round(nic, round, |until| *until) {
            None => Step::Worked,
            Some(_) => Step::Slept { is_signalled: eventfd::sleep() },
        }
    }

    fn start(shared: Arc<Self>, mut busy_rounds: usize) -> thread::JoinHandle<()> {
        thread::spawn(move || shared.signal.run(|| shared.step(&mut busy_rounds)))
    }

    fn wait_until_done(&self, works: usize) {
        let mut nic = self.nic.lock().expect("no panic");
        while nic.done < works {
            nic = self.progress.wait(nic).expect("no panic");
        }
    }
}

/// Posts work that is due at these times, and waits until the work that is due at [`NOW`] is done.
/// Then the thread ends. A lost wake-up would leave the test waiting: loom reports a deadlock.
fn thread_does_what_is_due(busy_rounds: usize, due: &'static [u64]) {
    loom::model(move || {
        let shared = Shared::new();
        let thread = Shared::start(Arc::clone(&shared), busy_rounds);
        for &due in due {
            shared.post(due);
        }
        shared.wait_until_done(due.iter().filter(|due| Time::from_nanos(**due) <= NOW).count());
        shared.signal.stop();
        thread.join().expect("no panic");
    });
}

#[test]
fn thread_that_is_about_to_sleep_does_posted_work() {
    thread_does_what_is_due(0, &[1, 2]);
}

#[test]
fn thread_that_runs_another_round_does_posted_work() {
    thread_does_what_is_due(1, &[1]);
}

#[test]
fn thread_that_sleeps_until_later_work_does_earlier_work() {
    thread_does_what_is_due(0, &[9, 1]);
}

/// The test explores only the orders with at most two preemptions of a thread. All orders would
/// take minutes.
#[test]
fn two_callers_post_work() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let shared = Shared::new();
        let thread = Shared::start(Arc::clone(&shared), 0);
        let caller = Arc::clone(&shared);
        let posts = thread::spawn(move || caller.post(1));
        shared.post(9);
        shared.wait_until_done(1);
        posts.join().expect("no panic");
        shared.signal.stop();
        thread.join().expect("no panic");
    });
}

#[test]
fn thread_ends_when_it_is_told_to() {
    loom::model(|| {
        let shared = Shared::new();
        let thread = Shared::start(Arc::clone(&shared), 1);
        shared.signal.stop();
        thread.join().expect("no panic");
    });
}
