//! A small block cipher on 24-bit numbers, for memory keys and queue pair numbers.

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// A keyed permutation of the 24-bit numbers: a Feistel network with four rounds on halves of 12
/// bits.
///
/// The round function is multiply-shift with random factors, which is strongly universal
/// (Dietzfelbinger 1996). The permutation spreads neighbouring numbers. It is not cryptographically
/// secure.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cipher {
    /// The factor and the addend of each round.
    rounds: [(u32, u32); 4],
}

impl Cipher {
    pub(crate) fn new(rng: &mut ChaCha8Rng) -> Cipher {
        Cipher { rounds: core::array::from_fn(|_| (rng.next_u32(), rng.next_u32())) }
    }

    pub(crate) fn encrypt(&self, x: u32) -> u32 {
        let (l, r) = self.rounds.iter().fold((x >> 12 & 0xfff, x & 0xfff), |(l, r), k| (r, l ^ round(k, r)));
        l << 12 | r
    }

    pub(crate) fn decrypt(&self, y: u32) -> u32 {
        let halves = (y >> 12 & 0xfff, y & 0xfff);
        let (l, r) = self.rounds.iter().rev().fold(halves, |(l, r), k| (r ^ round(k, l), l));
        l << 12 | r
    }
}

fn round(&(factor, addend): &(u32, u32), x: u32) -> u32 {
    x.wrapping_mul(factor).wrapping_add(addend) >> 20
}
