//! Delays until decision in a synchronous run without faults. A message takes one delay, a memory
//! operation takes two (IRA).

use mitra_consensus::{Process, ProcessId};

use crate::World;

/// Returns the number of delays until the first process has decided, and until all processes have
/// decided. Ω names `leader` to all processes at the start. Returns `None` if a process has not
/// decided after `max_delays`.
pub fn decision_delays<P: Process>(
    mut world: World<P>,
    leader: ProcessId,
    max_delays: u32,
) -> Option<(u32, u32)> {
    world.begin_stable_period(leader);
    let mut first = None;
    for delay in 1..=max_delays {
        world.pass_delay();
        if world.decisions().iter().any(Option::is_some) {
            first.get_or_insert(delay);
        }
        if world.is_done() {
            return first.map(|first| (first, delay));
        }
    }
    None
}
