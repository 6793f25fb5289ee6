//! The CPU-time clock of a thread, which other threads can read.

use core::time::Duration;

use nix::libc::clockid_t;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

std::thread_local! {
    static CURRENT: ClockId = clock_of(gettid().as_raw());
}

/// Returns the clock ID of a thread's CPU time (Linux: `MAKE_THREAD_CPUCLOCK` in
/// `include/linux/posix-timers.h`).
fn clock_of(tid: i32) -> ClockId {
    const CPUCLOCK_PERTHREAD_MASK: clockid_t = 4;
    const CPUCLOCK_SCHED: clockid_t = 2;
    ClockId::from_raw((!tid) << 3 | CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadCpuClock(ClockId);

impl ThreadCpuClock {
    pub(crate) fn current() -> ThreadCpuClock {
        ThreadCpuClock(CURRENT.with(|clock| *clock))
    }

    /// Returns the CPU time that the thread has used, or `None` if the thread has ended.
    pub(crate) fn cpu_time(self) -> Option<Duration> {
        clock_gettime(self.0).ok().map(Duration::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_thread_uses_cpu_time_and_sleeping_thread_does_not() {
        let (clock_sender, clock_receiver) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            clock_sender.send(ThreadCpuClock::current()).unwrap();
            let _ = stopped.recv();
        });
        let (sleeping, running) = (clock_receiver.recv().unwrap(), ThreadCpuClock::current());
        let before = (sleeping.cpu_time().unwrap(), running.cpu_time().unwrap());
        while running.cpu_time().unwrap() < before.1 + Duration::from_millis(20) {}
        assert!(sleeping.cpu_time().unwrap() < before.0 + Duration::from_millis(10));
        drop(stop);
        sleeper.join().unwrap();
    }
}
