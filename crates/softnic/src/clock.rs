use mitra_verbs::Time;
use nix::time::{ClockId, clock_gettime};

/// All NICs and all processes of a machine share this clock.
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux supports CLOCK_MONOTONIC");
    Time::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
