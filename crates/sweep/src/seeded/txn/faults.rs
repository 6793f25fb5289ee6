//! The faults of a world.

use core::time::Duration;
use std::sync::Arc;

use super::process::{End, Fate};
use crate::seeded::faults::{NIC_FAILURES, draw_time, schedule_blink};
use crate::seeded::parts::Left;
use mitra_sim::{Prng, SimNic, World};

/// The maximum number of fates in a world.
const MAX_FATES: u64 = 4;

pub(super) struct Faults {
    rng: Prng,
    rails: u8,
    timeout: Duration,
    /// The maximum number of requests that a process posts before its fate.
    latest: u64,
    /// The fates of processes that will start. `None`: the reduction leaves the fate out.
    fates: Vec<Option<Fate>>,
    pub(super) is_over: bool,
}

impl Faults {
    pub(super) fn new(seed: u64, rails: u8, timeout: Duration) -> Faults {
        let mut rng = Prng::stream(seed, "faults of transactions");
        let latest = 16 << rng.below(6);
        Faults { rng, rails, timeout, latest, fates: Vec::new(), is_over: false }
    }

    fn time(&mut self, doublings: u64) -> Duration {
        draw_time(&mut self.rng, 1_000, 40_000, doublings)
    }

    pub(super) fn draw_fates(&mut self, left: &mut Left<'_>) {
        for _ in 0..self.rng.below(MAX_FATES + 1) {
            let fate = self.draw_fate();
            self.fates.push(left.keeps_next_fault().then_some(fate));
        }
    }

    pub(super) fn schedule(&mut self, world: &mut World, nics: &[Vec<Arc<SimNic>>], left: &mut Left<'_>) {
        let loses_nics = self.rng.below(4) == 0;
        let mut at = Duration::ZERO;
        for _ in 0..self.rng.below(8) {
            at += self.time(9);
            let host = self.rng.index(nics.len());
            if loses_nics && self.rng.below(2) == 0 {
                // No NIC of the last rail fails for good.
                let nic = nics[host][self.rng.index(usize::from(self.rails) - 1)].id();
                let failure = *self.rng.pick(&NIC_FAILURES);
                if left.keeps_next_fault() {
                    world.after(at, move |world| world.fail(nic, failure));
                }
                continue;
            }
            let nic = nics[host][self.rng.index(self.rails.into())].id();
            let up = at + self.time(10);
            if left.keeps_next_fault() {
                schedule_blink(world, nic, at, up);
            }
        }
    }

    fn draw_fate(&mut self) -> Fate {
        let in_takeover = self.rng.below(4) == 0;
        let requests = self.rng.below(if in_takeover { 24 } else { self.latest });
        let latest = 40_000 >> self.rng.below(6);
        let delay = Duration::from_nanos(self.rng.below(latest));
        let longest = self.timeout.as_nanos() as u64 * 4;
        let end = match self.rng.below(4) {
            0 => End::Silent,
            1 | 2 => End::Exits,
            _ => End::Sleeps(Duration::from_nanos(self.rng.between(10_000, longest))),
        };
        Fate { in_takeover, requests, delay, end }
    }

    pub(super) fn next_fate(&mut self) -> Option<Fate> {
        if self.is_over || self.rng.below(4) == 0 {
            return None;
        }
        self.fates.pop().flatten()
    }

    /// Draws as [`Faults::next_fate`] does, for a process that the reduction leaves out.
    pub(super) fn skip_fate(&mut self) {
        self.rng.below(4);
    }

    /// Draws the time after which another process of a coordinator starts. `None`: it starts when
    /// the faults are over.
    pub(super) fn draw_restart(&mut self) -> Option<Duration> {
        let longest = self.timeout * 3;
        if self.is_over {
            return Some(Duration::from_millis(1));
        }
        (self.rng.below(3) > 0)
            .then(|| Duration::from_nanos(self.rng.between(1_000, longest.as_nanos() as u64)))
    }
}
