//! Conversions of static rates (`ibv_rate_to_mbps` and related verbs).

use std::ffi::c_int;

use mitra_verbs_abi::*;

/// Each rate as a value of `enum ibv_rate`, as a multiple of 2.5 Gbit/s, or −1 if the rate is no
/// multiple (`ibv_rate_to_mult(3)`), and in Mbit/s (`ibv_rate_to_mbps(3)`).
const RATES: [(ibv_rate, c_int, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, 1, 2_500),
    (IBV_RATE_5_GBPS, 2, 5_000),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, -1, 14_062),
    (IBV_RATE_56_GBPS, -1, 56_250),
    (IBV_RATE_112_GBPS, -1, 112_500),
    (IBV_RATE_168_GBPS, -1, 168_750),
    (IBV_RATE_25_GBPS, -1, 25_781),
    (IBV_RATE_100_GBPS, -1, 103_125),
    (IBV_RATE_200_GBPS, -1, 206_250),
    (IBV_RATE_300_GBPS, -1, 309_375),
    (IBV_RATE_28_GBPS, 11, 28_125),
    (IBV_RATE_50_GBPS, 20, 53_125),
    (IBV_RATE_400_GBPS, 160, 425_000),
    (IBV_RATE_600_GBPS, 240, 637_500),
    (IBV_RATE_800_GBPS, 320, 850_000),
    (IBV_RATE_1200_GBPS, 480, 1_275_000),
];

fn rate(matches: impl Fn(&(ibv_rate, c_int, c_int)) -> bool) -> Option<(ibv_rate, c_int, c_int)> {
    RATES.into_iter().find(matches)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rate_to_mult(code: ibv_rate) -> c_int {
    rate(|(value, ..)| *value == code).map_or(-1, |(_, mult, _)| mult)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    rate(|(_, value, _)| *value == mult && mult > 0).map_or(IBV_RATE_MAX, |(code, ..)| code)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rate_to_mbps(code: ibv_rate) -> c_int {
    rate(|(value, ..)| *value == code).map_or(-1, |(.., mbps)| mbps)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    rate(|(.., value)| *value == mbps).map_or(IBV_RATE_MAX, |(code, ..)| code)
}
