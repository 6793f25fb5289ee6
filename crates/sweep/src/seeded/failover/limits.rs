//! The knobs of the workload `failover-limits`: epochs and sequence numbers close to their largest
//! values, and NICs whose completions are late.

use super::focus::Focus;
use super::setup::Setup;
use mitra_sim::{DurationRange, Prng};

/// The number of operations that a vQP can number.
const OPERATIONS: u64 = 1 << 48;

/// One of so many seeds concentrates on a case.
const SEEDS_PER_FOCUS: u64 = 2;

/// The first epoch and sequence number of connections, and delays of completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    pub(super) first_epoch: u16,
    pub(super) first_seq: u64,
    /// The delays of the completions of a queue pair that was moved to ERR, and of receives.
    pub(super) late_completions: Option<[DurationRange; 2]>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { first_epoch: 1, first_seq: 0, late_completions: None }
    }
}

impl Limits {
    pub(super) fn draw_focus(seed: u64) -> Option<Focus> {
        let rng = &mut Prng::stream(seed, "failover limits focus");
        (rng.below(SEEDS_PER_FOCUS) == 0).then(|| *rng.pick(&Focus::OF_LIMITS))
    }

    /// Draws the limits for a setup.
    pub(super) fn draw(seed: u64, setup: &Setup) -> Limits {
        let rng = &mut Prng::stream(seed, "failover limits");
        let mut limits = Limits::default();
        // If one queue pair of an XRC end used up its epochs, the program would stop serving the
        // other queue pair of the end.
        if rng.below(2) == 0 && setup.xrc_queues.is_none() {
            let left = 1 << rng.below(6);
            limits.first_epoch = u16::MAX - rng.below(left) as u16;
        }
        if rng.below(2) == 0 {
            let ops = setup.plans.iter().flatten().map(|plan| plan.ops).max().unwrap_or(1) as u64;
            limits.first_seq = OPERATIONS - rng.between(1, 3 * ops.max(1));
        }
        if rng.below(2) == 0 {
            let mut draw = || DurationRange::nanos(0, 1_000 << rng.below(8));
            limits.late_completions = Some([draw(), draw()]);
        }
        limits
    }

    pub(super) fn may_use_up_epochs(&self) -> bool {
        self.first_epoch > 1
    }

    /// Returns whether an end that has posted `posted` operations may have no sequence number for
    /// its next operation. A bind of a window and the header of an XRC message are operations too.
    pub(super) fn has_used_up_numbers(&self, posted: usize) -> bool {
        self.first_seq + 2 * posted as u64 + 2 >= OPERATIONS
    }

    /// Returns whether an end that has posted `posted` operations has posted more than it can
    /// number.
    pub(super) fn has_too_many(&self, posted: usize) -> bool {
        self.first_seq + posted as u64 > OPERATIONS
    }
}
