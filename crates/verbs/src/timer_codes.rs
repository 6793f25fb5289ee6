//! The two 5-bit time codes of a reliable connection, with conversions from and to [`Duration`].

use core::time::Duration;

const MAX_CODE: u8 = 31;

/// The local ACK timeout: the time after which a requester retransmits a request that has not been
/// acknowledged ([`QpAttr::timeout`](crate::QpAttr::timeout)).
///
/// The timeout with a code from 1 to 31 is 4.096 µs · 2^code. Code 0 means no timeout (IBTA volume
/// 1, 9.7.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalAckTimeout(u8);

impl LocalAckTimeout {
    /// No timeout. The requester retransmits only after a NAK.
    pub const INFINITE: LocalAckTimeout = LocalAckTimeout(0);

    /// Creates the timeout with this code. [`Provider::modify_qp`](crate::Provider::modify_qp)
    /// refuses codes above 31.
    pub const fn from_code(code: u8) -> LocalAckTimeout {
        LocalAckTimeout(code)
    }

    /// Returns the shortest timeout that is not shorter than `duration`. The result is between
    /// 8.192 µs and 8796 s, even if `duration` is not.
    pub fn from_duration(duration: Duration) -> LocalAckTimeout {
        let code = (1..MAX_CODE).find(|&code| LocalAckTimeout(code).as_duration() >= Some(duration));
        LocalAckTimeout(code.unwrap_or(MAX_CODE))
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the timeout, or `None` for code 0. Of any other code, only the low 5 bits are used.
    pub fn as_duration(self) -> Option<Duration> {
        (self.0 != 0).then(|| Duration::from_nanos(4096 << (self.0 & MAX_CODE)))
    }
}

/// The time that a requester waits after an RNR NAK. The responder chooses it
/// ([`QpAttr::min_rnr_timer`](crate::QpAttr::min_rnr_timer)).
///
/// Codes 1 to 31 stand for 10 µs to 491.52 ms, and code 0 for 655.36 ms (IBTA volume 1, table 45).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RnrTimer(u8);

/// The time for each code, in units of 10 µs (IBTA volume 1, table 45).
const RNR_TEN_MICROS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// Creates the timer with this code. [`Provider::modify_qp`](crate::Provider::modify_qp)
    /// refuses codes above 31.
    pub const fn from_code(code: u8) -> RnrTimer {
        RnrTimer(code)
    }

    /// Returns the shortest timer that is not shorter than `duration`. The result is between 10 µs
    /// and 655.36 ms, even if `duration` is not.
    pub fn from_duration(duration: Duration) -> RnrTimer {
        // The time increases from code 1 to code 31. Code 0 stands for the longest time.
        let code = (1..=MAX_CODE).find(|&code| RnrTimer(code).as_duration() >= duration);
        RnrTimer(code.unwrap_or(0))
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time. Only the low 5 bits of the code are used.
    pub fn as_duration(self) -> Duration {
        Duration::from_micros(u64::from(RNR_TEN_MICROS[usize::from(self.0 & MAX_CODE)]) * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_ack_timeout_codes_match_ibta() {
        let duration = |code| LocalAckTimeout::from_code(code).as_duration();
        assert_eq!(duration(0), None);
        assert_eq!(duration(1), Some(Duration::from_nanos(8_192)));
        assert_eq!(duration(14), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(duration(31).map(|d| d.as_secs()), Some(8796));
    }

    #[test]
    fn rnr_timer_codes_match_ibta_table_45() {
        let micros = |code| RnrTimer::from_code(code).as_duration().as_micros();
        assert_eq!([micros(0), micros(1), micros(7), micros(12)], [655_360, 10, 120, 640]);
        assert_eq!([micros(14), micros(20), micros(26), micros(31)], [1_280, 10_240, 81_920, 491_520]);
    }

    #[test]
    fn every_code_survives_conversion_to_duration_and_back() {
        for code in 1..=MAX_CODE {
            let timeout = LocalAckTimeout::from_code(code);
            assert_eq!(timeout.as_duration().map(LocalAckTimeout::from_duration), Some(timeout));
        }
        for code in 0..=MAX_CODE {
            let timer = RnrTimer::from_code(code);
            assert_eq!(RnrTimer::from_duration(timer.as_duration()), timer);
        }
    }

    #[test]
    fn durations_between_two_codes_round_up() {
        let nanos = Duration::from_nanos;
        assert_eq!(LocalAckTimeout::from_duration(nanos(8_193)).code(), 2);
        assert_eq!(LocalAckTimeout::from_duration(Duration::from_millis(67)).code(), 14);
        assert_eq!(RnrTimer::from_duration(nanos(10_001)).code(), 2);
        assert_eq!(RnrTimer::from_duration(Duration::from_micros(50)).code(), 5);
        assert_eq!(RnrTimer::from_duration(Duration::from_millis(500)).code(), 0);
    }

    #[test]
    fn durations_out_of_range_become_the_nearest_finite_code() {
        assert_eq!(LocalAckTimeout::from_duration(Duration::ZERO).code(), 1);
        assert_eq!(LocalAckTimeout::from_duration(Duration::MAX).code(), 31);
        assert_eq!(RnrTimer::from_duration(Duration::ZERO).code(), 1);
        assert_eq!(RnrTimer::from_duration(Duration::MAX).code(), 0);
    }
}
