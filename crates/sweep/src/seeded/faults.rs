//! The faults that several workloads draw and schedule.

use core::time::Duration;

use mitra_sim::{Failure, HostId, NicId, Prng, World};

pub(super) const NIC_FAILURES: [Failure; 2] = [Failure::NicDead, Failure::NicHung];
/// Failures of a rail. Links fail as often as NICs.
pub(super) const RAIL_FAILURES: [Failure; 4] =
    [Failure::LinkDown, Failure::LinkDown, Failure::NicDead, Failure::NicHung];

/// Draws a time from `shortest` to `unit · 2^(doublings - 1)`, both in nanoseconds. The order of
/// magnitude is drawn first, so that short times are as frequent as long ones.
pub(super) fn draw_time(rng: &mut Prng, shortest: u64, unit: u64, doublings: u64) -> Duration {
    let longest = unit << rng.below(doublings);
    Duration::from_nanos(rng.between(shortest, longest))
}

/// Takes a link down after the time `down`, and up after the time `up`, both counted from now on.
pub(super) fn schedule_blink(world: &mut World, nic: NicId, down: Duration, up: Duration) {
    world.after(down, move |world| world.set_link(nic, false));
    world.after(up, move |world| world.set_link(nic, true));
}

pub(super) fn schedule_nap(world: &mut World, host: HostId, after: Duration, nap: Duration) {
    world.after(after, move |world| {
        let until = world.now() + nap;
        world.pause(host, Some(until));
    });
}
