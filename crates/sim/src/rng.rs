use core::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// The only source of chance: ChaCha8 keyed by the run's seed, one independent stream per purpose, so that one
/// part's draws do not shift another's.
#[derive(Clone, Debug)]
pub struct SimRng(ChaCha8Rng);

impl SimRng {
    /// The stream of that name under that seed.
    pub fn new(seed: u64, stream: &str) -> SimRng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        // FNV-1a: any fixed map from names to streams will do.
        let hash = stream
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        rng.set_stream(hash);
        SimRng(rng)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included; `low` if there is nothing between.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True `ppm` times in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        // No draw where there is no choice: switching a fault off leaves the rest of the run as it was.
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// An index or size below `n`.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }

    /// A time from the range, both ends included.
    pub fn time(&mut self, range: Range) -> Duration {
        Duration::from_nanos(self.between(range.min.as_nanos() as u64, range.max.as_nanos() as u64))
    }

    /// 32 random bytes, to seed something else.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        self.0.fill_bytes(&mut key);
        key
    }
}

/// From `min` to `max`, uniformly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The least.
    pub min: Duration,
    /// The most.
    pub max: Duration,
}

impl Range {
    /// From so many nanoseconds to so many.
    pub const fn nanos(min: u64, max: u64) -> Range {
        Range { min: Duration::from_nanos(min), max: Duration::from_nanos(max) }
    }

    /// From so many microseconds to so many.
    pub const fn micros(min: u64, max: u64) -> Range {
        Range { min: Duration::from_micros(min), max: Duration::from_micros(max) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let first = |seed, name| SimRng::new(seed, name).bits();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }

    #[test]
    fn ranges_include_their_ends() {
        let mut rng = SimRng::new(7, "test");
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[rng.between(2, 5) as usize - 2] = true;
            assert_eq!(rng.between(9, 9), 9);
            assert_eq!(rng.between(9, 3), 9);
        }
        assert_eq!(seen, [true; 4]);
        assert!(!rng.chance(0) && rng.chance(1_000_000));
    }
}
