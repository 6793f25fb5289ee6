//! Time measurement in busy-polling loops: a histogram of laps, and a deadline that is cheap to
//! check.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use mitra_peer_process::RECEIVE_TIMEOUT;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// The number of calls of [`Deadline::check`] between two reads of the clock.
const SPINS_PER_CHECK: u32 = 1 << 14;

/// Returns the CPU time, user and system, that all threads of a process have used so far, in
/// seconds.
pub(crate) fn cpu_seconds(process: u32) -> anyhow::Result<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(process as i32)).context("a measured process has ended")?;
    Ok(Duration::from(clock.now()?).as_secs_f64())
}

/// Measures the laps of a loop. The first laps warm up and are not in the histogram. They are a
/// tenth as many as the counted laps.
pub(crate) struct Stopwatch {
    laps: Histogram<u64>,
    warm_up: u64,
    rounds: u64,
    last: Instant,
}

impl Stopwatch {
    pub(crate) fn start(rounds: u64) -> Stopwatch {
        let laps =
            Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds of the histogram are valid");
        Stopwatch { laps, warm_up: Self::with_warm_up(rounds) - rounds, rounds, last: Instant::now() }
    }

    /// Returns the number of laps to run, of which `rounds` are counted after the warm-up.
    pub(crate) fn with_warm_up(rounds: u64) -> u64 {
        rounds + rounds / 10
    }

    /// Returns the number of laps to run, warm-up included.
    pub(crate) fn rounds(&self) -> u64 {
        Self::with_warm_up(self.rounds)
    }

    /// Ends a lap and begins the next one.
    #[inline]
    pub(crate) fn lap(&mut self) {
        let now = Instant::now();
        let lap = now - self.last;
        self.last = now;
        if self.warm_up > 0 {
            self.warm_up -= 1;
        } else {
            self.laps.saturating_record(lap.as_nanos() as u64);
        }
    }

    pub(crate) fn into_histogram(self) -> Histogram<u64> {
        self.laps
    }
}

/// A timeout for busy-polling loops. It starts at the first read of the clock, which is in call
/// number [`SPINS_PER_CHECK`] of [`Deadline::check`].
pub(crate) struct Deadline {
    spins: u32,
    since: Option<Instant>,
    timeout: Duration,
}

impl Default for Deadline {
    /// Returns the deadline for one message.
    fn default() -> Deadline {
        Deadline { spins: 0, since: None, timeout: RECEIVE_TIMEOUT }
    }
}

impl Deadline {
    pub(crate) fn for_block() -> Deadline {
        Deadline { timeout: 20 * RECEIVE_TIMEOUT, ..Deadline::default() }
    }

    /// Counts one iteration of the loop. Returns an error if the timeout has expired at a read of
    /// the clock.
    #[inline]
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        std::hint::spin_loop();
        self.spins += 1;
        if self.spins < SPINS_PER_CHECK { Ok(()) } else { self.check_clock() }
    }

    /// Returns an error if the timeout has expired since the first call.
    #[cold]
    pub(crate) fn check_clock(&mut self) -> anyhow::Result<()> {
        self.spins = 0;
        let since = self.since.get_or_insert_with(Instant::now);
        ensure!(since.elapsed() < self.timeout, "timed out after {:?}", self.timeout);
        Ok(())
    }
}

pub(crate) fn micros(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e6
}
