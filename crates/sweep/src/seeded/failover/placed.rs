//! Worlds whose faults are placed at one cell of the table of failures: a failure when an operation
//! is at a stage, or a second failure at a point of the recovery. Consecutive seeds have
//! consecutive cells, so that a run over many seeds reaches every cell.

use core::time::Duration;

use super::fault_schedule::{Fault, Rail};
use super::setup::Setup;
use mitra_sim::workload::OpKind;
use mitra_sim::{CoverageCell, Failure, Operation, Prng, RecoveryPoint, Stage};

const SEEDS_PER_PLACED: u64 = 3;

/// The largest operation of cells that need several packets, in bytes.
const SEVERAL_PACKETS: usize = 16 << 10;

/// Returns the cell of a seed with placed faults.
pub(super) fn cell(seed: u64) -> Option<CoverageCell> {
    let cells: Vec<_> = CoverageCell::all().collect();
    let is_placed = seed % SEEDS_PER_PLACED == SEEDS_PER_PLACED - 1;
    is_placed.then(|| cells[(seed / SEEDS_PER_PLACED % cells.len() as u64) as usize])
}

/// Adapts a setup to a cell. End 0 is the requester, and rail 0 fails first.
pub(super) fn shape(cell: CoverageCell, setup: &mut Setup) {
    setup.vqp.failback = None;
    setup.rails.resize(setup.rails.len().max(2), setup.rails[0].clone());
    if cell.stage == Stage::NotPlaced {
        // At this stage, a NIC with `ack_after_placement` would break its promise.
        setup.rails[0].capabilities[1].ack_after_placement = false;
    }
    for [plan, _] in &mut setup.plans {
        *plan = plan.clone().only(kinds(cell));
        if cell.stage == Stage::PartlyExecuted {
            plan.max_len = plan.max_len.max(SEVERAL_PACKETS);
        }
    }
}

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

/// Draws the faults of a cell, on rails 0 and 1.
pub(super) fn faults(seed: u64, cell: CoverageCell) -> Vec<(Duration, Fault)> {
    let rng = &mut Prng::stream(seed, "failover placed faults");
    let CoverageCell { stage, operation, point, .. } = cell;
    let observer = usize::from(!matches!(stage, Stage::Posted | Stage::RequestOnWire | Stage::Acknowledged));
    // Few acknowledgements arrive, because one acknowledgement may cover many operations.
    let nth =
        if stage == Stage::Acknowledged { rng.between(1, 3) } else { 1 + (rng.below(8) >> rng.below(4)) };
    let nth = nth as u32;
    let at_stage = |target, failure| {
        let (rail, operation, hold) = (Rail::Number(0), Some(operation), None);
        (Duration::ZERO, Fault::AtStage { rail, observer, stage, operation, nth, target, failure, hold })
    };
    if point == RecoveryPoint::None {
        // Only the failure of a link, or of the NIC at which a packet arrives, stops the packet.
        let target = if cell.failure == Failure::NicDead { observer } else { rng.index(2) };
        return vec![at_stage(target, cell.failure)];
    }
    let first = at_stage(rng.index(2), Failure::LinkDown);
    // The cable of rail 0 is down at both ends, and cannot fail again.
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
