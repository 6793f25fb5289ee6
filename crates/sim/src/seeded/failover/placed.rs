//! Worlds whose faults are placed at one cell of the table of failures: a failure when an operation
//! is at a stage, and a second failure at a point of the recovery. Seeds that follow each other
//! have cells that follow each other, so a sweep places faults at every cell.

use core::time::Duration;

use super::fault_schedule::{Fault, Rail};
use super::setup::Setup;
use crate::workload::OpKind;
use crate::{CoverageCell, Failure, Operation, Prng, RecoveryPoint, Stage};

/// The distance between seeds with placed faults.
const SEEDS_PER_PLACED: u64 = 3;

/// The bound on the size of operations that consist of several packets, in bytes.
const SEVERAL_PACKETS: usize = 16 << 10;

/// Returns the cell of a seed, if it has placed faults.
pub(super) fn cell(seed: u64) -> Option<CoverageCell> {
    let cells: Vec<_> = CoverageCell::all().collect();
    let is_placed = seed % SEEDS_PER_PLACED == SEEDS_PER_PLACED - 1;
    is_placed.then(|| cells[(seed / SEEDS_PER_PLACED % cells.len() as u64) as usize])
}

/// Adapts what a seed drew to its cell. End 0 is the requester, and rail 0 fails first.
pub(super) fn shape(cell: CoverageCell, setup: &mut Setup) {
    setup.vqp.failback = None;
    if let [rail] = &setup.rails[..] {
        setup.rails.push(rail.clone());
    }
    if cell.stage == Stage::NotPlaced {
        // Otherwise the NIC would break what it promises.
        setup.rails[0].capabilities[1].ack_after_placement = false;
    }
    for [plan, _] in &mut setup.plans {
        *plan = plan.clone().only(kinds(cell));
        if cell.stage == Stage::PartlyExecuted {
            plan.max_len = plan.max_len.max(SEVERAL_PACKETS);
        }
    }
}

/// Returns the kinds of operations of a cell.
fn kinds(cell: CoverageCell) -> &'static [OpKind] {
    match cell.operation {
        Operation::Write if cell.stage == Stage::PartlyExecuted => &[OpKind::Block],
        Operation::Write => &[OpKind::Write, OpKind::Block],
        Operation::WriteWithImm => &[OpKind::WriteImm],
        Operation::Send => &[OpKind::Send],
        Operation::Read => &[OpKind::Read],
        Operation::CompareSwap => &[OpKind::CompareSwap],
        Operation::FetchAdd => &[OpKind::FetchAdd],
    }
}

/// Draws the faults of a cell. They hit rails 0 and 1.
pub(super) fn faults(seed: u64, cell: CoverageCell) -> Vec<(Duration, Fault)> {
    let rng = &mut Prng::stream(seed, "failover placed faults");
    let CoverageCell { stage, operation, point, .. } = cell;
    let observer = usize::from(!matches!(stage, Stage::Posted | Stage::RequestOnWire | Stage::Acknowledged));
    // Few acknowledgements arrive, because each may be for many operations.
    let nth =
        if stage == Stage::Acknowledged { rng.between(1, 3) } else { 1 + (rng.below(8) >> rng.below(4)) };
    let nth = nth as u32;
    let at_stage = |target, failure| {
        let rail = Rail::Number(0);
        let operation = Some(operation);
        (
            Duration::ZERO,
            Fault::AtStage { rail, observer, stage, operation, nth, target, failure, hold: None },
        )
    };
    if point == RecoveryPoint::None {
        // A packet is stopped on arrival only by the failure of the NIC at which it arrives, or of
        // a link.
        let target = if cell.failure == Failure::NicDead { observer } else { rng.index(2) };
        return vec![at_stage(target, cell.failure)];
    }
    let first = at_stage(rng.index(2), Failure::LinkDown);
    // The cable of rail 0 is down at both ends, and does not fail again.
    let rail = if cell.failure == Failure::LinkDown { 1 } else { rng.index(2) };
    let nth = *rng.pick(&[1, 1, 1, 2]);
    let nth = if point == RecoveryPoint::Fenced { 1 } else { nth };
    let (rail, target) = (Rail::Number(rail), rng.index(2));
    let second = Fault::AtPoint { point, nth, rail, target, failure: cell.failure };
    vec![first, (Duration::ZERO, second)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_that_follow_each_other_reach_every_cell() {
        let number = CoverageCell::all().count() as u64;
        let mut drawn: Vec<_> = (0..SEEDS_PER_PLACED * number).filter_map(cell).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len() as u64, number);
    }
}
