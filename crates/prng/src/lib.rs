#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod seeds;
mod split_mix;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
pub use seeds::{fault_times, reproduce_command, rotated_variant, rotation, seeds, seeds_of_cases};
pub use split_mix::{SPLIT_MIX_STEP, mix};

/// A seeded generator of pseudo-random numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prng(ChaCha8Rng);

impl Prng {
    /// Creates the generator of a seed, with the key that `SeedableRng::seed_from_u64` expands from
    /// it.
    pub fn new(seed: u64) -> Prng {
        Prng(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Creates the generator of a named stream under a seed. Streams with different names are
    /// independent.
    pub fn stream(seed: u64, name: &str) -> Prng {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        // Any hash would do as the number of the stream, but it must not change.
        rng.set_stream(seeds::hash(name));
        Prng(rng)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `n`, or 0 if `n` is 0. The probabilities of two numbers differ by at
    /// most 2⁻⁶⁴.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included, or `low` if `high` is less than `low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns true with a probability of `ppm` in a million, and always if `ppm` is more than a
    /// million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        // A probability of 0 draws nothing, so switching a fault off does not shift the later draws
        // of the stream.
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }

    /// Returns an index below `n`, or 0 if `n` is 0.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Returns one of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts `items` in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// Returns a number from the open interval (0, 1), with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Returns 32 random bytes, to seed another generator.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        self.0.fill_bytes(&mut key);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_name_and_seed_and_repeat() {
        let first = |seed, name| Prng::stream(seed, name).bits();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }

    #[test]
    fn numbers_of_a_seed_are_the_same_in_every_version() {
        assert_eq!(Prng::new(1).bits(), 7_424_550_030_962_593_201);
        assert_eq!(Prng::stream(1, "a").bits(), 10_474_694_967_194_460_933);
    }

    #[test]
    fn ranges_include_both_ends() {
        let mut rng = Prng::stream(7, "test");
        let mut seen = [false; 4];
        for _ in 0..200 {
            seen[rng.between(2, 5) as usize - 2] = true;
            assert_eq!(rng.between(9, 9), 9);
            assert_eq!(rng.between(9, 3), 9);
        }
        assert_eq!(seen, [true; 4]);
    }

    #[test]
    fn chance_of_zero_never_happens_and_of_a_million_always() {
        let mut rng = Prng::new(7);
        assert!(!rng.chance(0) && rng.chance(1_000_000));
    }

    #[test]
    fn shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..50).collect();
        Prng::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
