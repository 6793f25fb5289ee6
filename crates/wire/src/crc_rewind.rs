//! Computes an earlier value of a CRC-32 register from a later one.
//!
//! A register is a polynomial over GF(2) modulo the generator of CRC-32. Bit 31 is the coefficient
//! of x^0, and bit 0 is the coefficient of x^31. The CRC over n zero bits multiplies the register
//! by x^n. A multiplication by x^-n takes the n bits back.

/// The generator of CRC-32 without its term x^32.
const POLY: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 0x8000_0000;

const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { POLY } else { 0 }
}

/// a · x⁻¹ exists because the generator has a constant term.
const fn over_x(a: u32) -> u32 {
    if a & ONE != 0 { ((a ^ POLY) << 1) | 1 } else { a << 1 }
}

/// The products a · x⁴ for all a < 16. In general, a · x⁴ = (a >> 4) ^ REDUCTION[a & 15].
const REDUCTION: [u32; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = times_x(times_x(times_x(times_x(i as u32))));
        i += 1;
    }
    table
};

/// Each step multiplies `b` by four bits of `a`, from the highest powers of x to the lowest.
const fn multiply(a: u32, b: u32) -> u32 {
    // The products of `b` with all polynomials of four terms. Bit 3 of the index is the coefficient
    // of x^0.
    let mut multiples = [0; 16];
    multiples[8] = b;
    multiples[4] = times_x(b);
    multiples[2] = times_x(multiples[4]);
    multiples[1] = times_x(multiples[2]);
    let mut i = 3usize;
    while i < 16 {
        let lowest_bit = i & i.wrapping_neg();
        multiples[i] = multiples[lowest_bit] ^ multiples[i ^ lowest_bit];
        i += 1;
    }
    let mut product = 0;
    let mut shift = 0;
    while shift < 32 {
        let nibble = (a >> shift & 15) as usize;
        product = (product >> 4) ^ REDUCTION[(product & 15) as usize] ^ multiples[nibble];
        shift += 4;
    }
    product
}

const fn powers<const N: usize>(base: u32) -> [u32; N] {
    let mut table = [ONE; N];
    let mut i = 1;
    while i < N {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}

/// x^-8, the factor that undoes one zero byte.
const UNDO_BYTE: u32 = {
    let mut a = ONE;
    let mut i = 0;
    while i < 8 {
        a = over_x(a);
        i += 1;
    }
    a
};

/// The factor at index i undoes i zero bytes.
static UNDO_BYTES: [u32; 64] = powers(UNDO_BYTE);

/// The factor at index i undoes 64 · i zero bytes.
static UNDO_BLOCKS: [u32; 1024] = powers(multiply(UNDO_BYTES[63], UNDO_BYTE));

/// Returns the value that the register had `zero_bytes` zero bytes before `register`. The count is
/// reduced modulo 65,536.
pub(crate) fn rewind(register: u32, zero_bytes: usize) -> u32 {
    multiply(multiply(register, UNDO_BLOCKS[zero_bytes / 64 % 1024]), UNDO_BYTES[zero_bytes % 64])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(register: u32, byte: u8) -> u32 {
        (0..8).fold(register ^ u32::from(byte), |r, _| times_x(r))
    }

    #[test]
    fn arithmetic_matches_crc32() {
        let register = b"123456789".iter().fold(!0, |r, &b| feed(r, b));
        assert_eq!(!register, 0xcbf4_3926);
        assert_eq!(!register, crc32fast::hash(b"123456789"));
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

    /// `icrc` solves for the IPv4 identification by rewinding the register to the identification
    /// field. A flipped bit goes unnoticed if its rewound difference fits the field's 16 bits. The
    /// documentation of `icrc` states from which length of a datagram on a flipped bit can go
    /// unnoticed.
    #[test]
    fn single_flipped_bit_has_no_solution_within_26744_bytes() {
        // Rewound to the start of the field, the difference from a flip of the nth bit is x^-n
        // times the difference from a flip of the first bit, which is bit 0 of the register.
        let first_miss = (0..)
            .scan(1u32, |difference, position| {
                let current = *difference;
                *difference = over_x(current);
                Some((position, current))
            })
            .find(|&(position, difference)| position >= 16 && difference >> 16 == 0);
        assert_eq!(first_miss.map(|(position, _)| position), Some(214_150));
    }
}
