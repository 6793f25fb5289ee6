//! How long a requester waits.

use core::time::Duration;

/// The retransmission time-out of a 5-bit code: 4.096 µs · 2^code, 0 is never (IBTA volume 1, 9.7.6).
pub(crate) fn retransmission_delay(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << (code & 31)))
}

/// The wait of an RNR NAK's 5-bit code, in units of 10 µs (IBTA volume 1, table 45).
const RNR_TEN_MICROS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long to wait after an RNR NAK with this code.
pub(crate) fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_TEN_MICROS[usize::from(code & 31)]) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_tables() {
        assert_eq!(retransmission_delay(0), None);
        assert_eq!(retransmission_delay(1), Some(Duration::from_nanos(8192)));
        assert_eq!(retransmission_delay(14).map(|d| d.as_micros()), Some(67108));
        assert_eq!(retransmission_delay(31).map(|d| d.as_secs()), Some(8796));
        let micros = |code| rnr_delay(code).as_micros();
        assert_eq!([micros(0), micros(1), micros(7), micros(12)], [655_360, 10, 120, 640]);
        assert_eq!([micros(14), micros(20), micros(26), micros(31)], [1_280, 10_240, 81_920, 491_520]);
    }
}
