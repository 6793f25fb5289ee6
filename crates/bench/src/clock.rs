//! Time in loops that spin: laps into a histogram, and the end of patience.

use std::time::{Duration, Instant};

use anyhow::ensure;
use hdrhistogram::Histogram;

use mitra_peer_process::RECEIVE_TIMEOUT;

/// Spins between two looks at the clock.
const SPINS: u32 = 1 << 14;

/// Laps of a loop, the first tenth of them to warm up.
pub(crate) struct Stopwatch {
    laps: Histogram<u64>,
    warm_up: u64,
    rounds: u64,
    last: Instant,
}

impl Stopwatch {
    pub(crate) fn start(rounds: u64) -> Stopwatch {
        let laps = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("these bounds are valid");
        Stopwatch { laps, warm_up: Self::rounds_of(rounds) - rounds, rounds, last: Instant::now() }
    }

    /// Laps to run so that `rounds` are counted.
    pub(crate) fn rounds_of(rounds: u64) -> u64 {
        rounds + rounds / 10
    }

    /// The same of this one.
    pub(crate) fn rounds(&self) -> u64 {
        Self::rounds_of(self.rounds)
    }

    /// A lap is over and the next begins.
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

    pub(crate) fn done(self) -> Histogram<u64> {
        self.laps
    }
}

/// When waiting is over: so long after the first few thousand spins. Cheap enough to ask at every spin.
pub(crate) struct Deadline {
    spins: u32,
    since: Option<Instant>,
    patience: Duration,
}

impl Default for Deadline {
    /// For one message.
    fn default() -> Deadline {
        Deadline { spins: 0, since: None, patience: RECEIVE_TIMEOUT }
    }
}

impl Deadline {
    /// For a whole block.
    pub(crate) fn patient() -> Deadline {
        Deadline { patience: 20 * RECEIVE_TIMEOUT, ..Deadline::default() }
    }

    #[inline]
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        std::hint::spin_loop();
        self.spins += 1;
        if self.spins < SPINS { Ok(()) } else { self.look() }
    }

    #[cold]
    fn look(&mut self) -> anyhow::Result<()> {
        self.spins = 0;
        let since = self.since.get_or_insert_with(Instant::now);
        ensure!(since.elapsed() < self.patience, "nothing came for {:?}", self.patience);
        Ok(())
    }
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e6
}
