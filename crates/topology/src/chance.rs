//! What is drawn from a seed.

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// A whole number below `n`, each as likely as another to within n/2⁶⁴.
pub(crate) fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

/// In random order (Fisher and Yates).
pub(crate) fn shuffle<T>(rng: &mut ChaCha8Rng, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i + 1));
    }
}

/// A vector of independent standard normal numbers (Box and Muller).
pub(crate) fn normal(rng: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    let unit = |rng: &mut ChaCha8Rng| ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (0..n)
        .map(|_| {
            let (radius, turn) = (unit(rng), unit(rng));
            (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * turn).cos()
        })
        .collect()
}
