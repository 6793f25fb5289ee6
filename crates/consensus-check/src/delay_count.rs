//! Network delays of a synchronous run without failures: a message takes one, an operation on a memory two.

use mitra_consensus::{Process, ProcessId};

use crate::World;

/// After how many delays the first process decides, and the last, if all are told at once that `leader` leads; none if that takes
/// more than `most`.
pub fn decision_delays<P: Process>(mut world: World<P>, leader: ProcessId, most: u32) -> Option<(u32, u32)> {
    world.begin_stable_period(leader);
    let mut first = None;
    for delay in 1..=most {
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
