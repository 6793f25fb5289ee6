//! Faults that the worlds of several workloads draw and schedule.

use core::time::Duration;

use crate::{Failure, HostId, NicId, Prng, World};

/// Failures of a NIC for good.
pub(super) const NIC_FAILURES: [Failure; 2] = [Failure::NicDead, Failure::NicHung];
/// Failures of a rail, half of which are those of its link.
pub(super) const RAIL_FAILURES: [Failure; 4] =
    [Failure::LinkDown, Failure::LinkDown, Failure::NicDead, Failure::NicHung];

/// Draws a time from `shortest` up to less than `unit · 2^doublings`, in nanoseconds. Short times
/// are as frequent as long ones.
pub(super) fn draw_time(rng: &mut Prng, shortest: u64, unit: u64, doublings: u64) -> Duration {
    let longest = unit << rng.below(doublings);
    Duration::from_nanos(rng.between(shortest, longest))
}

/// Schedules a link that is down from the time `down` until the time `up`.
pub(super) fn schedule_blink(world: &mut World, nic: NicId, down: Duration, up: Duration) {
    world.after(down, move |world| world.set_link(nic, false));
    world.after(up, move |world| world.set_link(nic, true));
}

/// Schedules a host that begins to sleep after a time, for the time `nap`.
pub(super) fn schedule_nap(world: &mut World, host: HostId, after: Duration, nap: Duration) {
    world.after(after, move |world| {
        let until = world.now() + nap;
        world.pause(host, Some(until));
    });
}
