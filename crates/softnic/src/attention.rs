//! Whether threads got the processor: a poller that was absent, and the progress thread while it spins.

use core::time::Duration;

use mitra_verbs::Time;
use nix::libc::clockid_t;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

std::thread_local! {
    static CLOCK: ClockId = cpu_clock(gettid().as_raw());
}

/// The clock of a thread's processor time (kernel: `MAKE_THREAD_CPUCLOCK`, posix-timers.h).
fn cpu_clock(tid: i32) -> ClockId {
    const PER_THREAD: clockid_t = 4;
    const SCHED: clockid_t = 2;
    ClockId::from_raw((!tid) << 3 | PER_THREAD | SCHED)
}

/// A thread, by which others can tell whether it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Runner(ClockId);

impl Runner {
    /// The calling thread.
    pub(crate) fn this() -> Runner {
        Runner(CLOCK.with(|clock| *clock))
    }

    /// Processor time that it has used; none if it has ended.
    pub(crate) fn used(self) -> Option<Duration> {
        clock_gettime(self.0).ok().map(Duration::from)
    }
}

/// How long the progress thread spins after something arrived that nobody polled for: passive processes are read from and
/// written to at the speed of active ones then.
const SPIN: Duration = Duration::from_micros(50);
/// A process that has not called its NIC for this long is passive: one that polls does so every microsecond, one that looks in now and
/// then (UCX at a barrier: every millisecond) is not waiting for anything.
const PASSIVE: Duration = Duration::from_micros(100);
/// How often a thread that spins looks whether it is in anybody's way: it did not get this part of the time ...
const CHECK: Duration = Duration::from_millis(2);
/// See [`CHECK`].
const SHARE: f64 = 0.75;
/// ... and how long it leaves the processor to others if it was.
const YIELD: Duration = Duration::from_millis(20);

/// The progress thread's right to spin.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    received: Time,
    checked: Time,
    used: Duration,
    not_before: Time,
}

impl Spin {
    /// Something arrived, which the progress thread took.
    pub(crate) fn received(&mut self, now: Time) {
        self.received = now;
    }

    /// Whether to look again at once instead of sleeping: something has just arrived, nobody here has called the NIC lately, and
    /// nobody else wants this processor.
    pub(crate) fn goes_on(&mut self, now: Time, called: Time) -> bool {
        if now - self.received >= SPIN || now - called < PASSIVE || now < self.not_before {
            return false;
        }
        let spun = now - self.checked;
        if spun >= CHECK {
            let used = Runner::this().used().unwrap_or_default();
            let got = used.saturating_sub(self.used);
            (self.checked, self.used) = (now, used);
            // A longer time is one that it slept through.
            if spun < 4 * CHECK && got < spun.mul_f64(SHARE) {
                self.not_before = now + YIELD;
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_uses_processor_time_and_who_sleeps_does_not() {
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(Runner::this()).unwrap();
            let _ = stopped.recv();
        });
        let (sleeper_at, own) = (told.recv().unwrap(), Runner::this());
        let before = (sleeper_at.used().unwrap(), own.used().unwrap());
        while own.used().unwrap() < before.1 + Duration::from_millis(20) {}
        assert!(sleeper_at.used().unwrap() < before.0 + Duration::from_millis(10));
        drop(stop);
        sleeper.join().unwrap();
    }

    #[test]
    fn it_spins_for_passive_processes_while_something_comes() {
        let at = |micros: u64| Time::from_nanos(micros * 1000);
        let mut spin = Spin::default();
        assert!(!spin.goes_on(at(10_000), Time::ZERO));
        spin.received(at(10_000));
        assert!(spin.goes_on(at(10_001), Time::ZERO) && spin.goes_on(at(10_049), Time::ZERO));
        assert!(!spin.goes_on(at(10_050), Time::ZERO), "nothing comes any more");
        spin.received(at(20_000));
        assert!(!spin.goes_on(at(20_001), at(19_950)), "the process is at it itself");
    }
}
