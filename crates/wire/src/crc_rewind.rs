//! CRC-32 as arithmetic: the ring of polynomials modulo the generator, in the reflected notation of the
//! register (bit 31 is x^0). Feeding n zero bits multiplies the register by x^n; that can be undone.

/// The generator of CRC-32 without x^32, reflected.
const POLY: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 0x8000_0000;

/// a · x.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { POLY } else { 0 }
}

/// a · x⁻¹. The generator has a constant term, so that x is invertible.
const fn over_x(a: u32) -> u32 {
    if a & ONE != 0 { ((a ^ POLY) << 1) | 1 } else { a << 1 }
}

/// a · x⁴ folds the four bits shifted out back in.
const FOLD: [u32; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = times_x(times_x(times_x(times_x(i as u32))));
        i += 1;
    }
    table
};

/// a · b, four bits of `a` at a time.
const fn multiply(a: u32, b: u32) -> u32 {
    // In a nibble the highest bit has the lowest power.
    let mut multiples = [0; 16];
    multiples[8] = b;
    multiples[4] = times_x(b);
    multiples[2] = times_x(multiples[4]);
    multiples[1] = times_x(multiples[2]);
    let mut i = 3usize;
    while i < 16 {
        let low = i & i.wrapping_neg();
        multiples[i] = multiples[low] ^ multiples[i ^ low];
        i += 1;
    }
    let mut product = 0;
    let mut shift = 0;
    while shift < 32 {
        product = (product >> 4) ^ FOLD[(product & 15) as usize] ^ multiples[(a >> shift & 15) as usize];
        shift += 4;
    }
    product
}

/// 1, step, step², …
const fn powers<const N: usize>(step: u32) -> [u32; N] {
    let mut table = [ONE; N];
    let mut i = 1;
    while i < N {
        table[i] = multiply(table[i - 1], step);
        i += 1;
    }
    table
}

const BACK_1: u32 = {
    let mut a = ONE;
    let mut i = 0;
    while i < 8 {
        a = over_x(a);
        i += 1;
    }
    a
};

/// Undo 0 to 63 zero bytes.
static BACK: [u32; 64] = powers(BACK_1);

/// Undo a multiple of 64 zero bytes, below 64 KiB.
static BACK_64: [u32; 1024] = powers(multiply(BACK[63], BACK_1));

/// The register before `bytes` zero bytes (fewer than 64 KiB; the count is taken modulo that) led to `register`.
pub(crate) fn rewind(register: u32, bytes: usize) -> u32 {
    multiply(multiply(register, BACK_64[bytes / 64 % 1024]), BACK[bytes % 64])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds one byte, bit by bit.
    fn feed(register: u32, byte: u8) -> u32 {
        (0..8).fold(register ^ u32::from(byte), |r, _| times_x(r))
    }

    #[test]
    fn arithmetic_matches_crc32() {
        let ours = b"123456789".iter().fold(!0, |r, &b| feed(r, b));
        assert_eq!(!ours, 0xcbf4_3926);
        assert_eq!(!ours, crc32fast::hash(b"123456789"));
        assert_eq!(over_x(times_x(0x1234_5678)), 0x1234_5678);
        assert_eq!(multiply(ONE, 0xdead_beef), 0xdead_beef);
        assert_eq!(multiply(0xdead_beef, ONE >> 1), times_x(0xdead_beef));
        assert_eq!(multiply(0x1234_5678, 0x9abc_def0), multiply(0x9abc_def0, 0x1234_5678));
    }

    #[test]
    fn rewinding_undoes_zero_bytes() {
        let mut register = 0x1357_9bdf;
        for n in 0..65_536 {
            if n % 97 == 0 || !(200..=65_400).contains(&n) {
                assert_eq!(rewind(register, n), 0x1357_9bdf, "{n} bytes");
            }
            register = feed(register, 0);
        }
    }

    /// The documentation of `icrc` claims that a single flipped bit is detected up to this distance from the identification field,
    /// because the solution then does not fit the field's 16 bits.
    #[test]
    fn single_flipped_bit_has_no_solution_within_26744_bytes() {
        // The first bit fed in is bit 0 of the register; each later one is x^-1 of that.
        let first_miss = (0..)
            .scan(1u32, |bit, at| {
                let this = *bit;
                *bit = over_x(*bit);
                Some((at, this))
            })
            .find(|&(at, bit)| at >= 16 && bit >> 16 == 0);
        assert_eq!(first_miss.map(|(at, _)| at), Some(214_150));
    }
}
