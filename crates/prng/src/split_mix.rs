//! SplitMix64 (Steele, Lea, Flood, 2014): numbers from a state of 64 bits.

/// What SplitMix64 adds to its state for each number. The number is [`mix`] of the state.
pub const SPLIT_MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number (the finalizer of SplitMix64). Different numbers have different
/// results, and 0 has 0.
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first two numbers of the reference implementation from the state 0.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let numbers = [1, 2].map(|n: u64| mix(n.wrapping_mul(SPLIT_MIX_STEP)));
        assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
