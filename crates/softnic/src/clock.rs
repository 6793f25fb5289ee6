use mitra_verbs::Time;
use nix::time::{ClockId, clock_gettime};

/// The time on this machine's monotonic clock: the same for all NICs, in all processes.
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has a monotonic clock");
    Time::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
