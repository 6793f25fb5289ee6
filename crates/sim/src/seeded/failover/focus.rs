//! Worlds that combine certain operations with a failure at a certain stage, because independent draws rarely meet these cases.

use core::time::Duration;

use super::fault_schedule::{Fault, Rail};
use super::setup::RailSetup;
use crate::workload::{OpKind, Plan};
use crate::{Config, DurationRange, Failure, Prng, Stage};

/// One of this many seeds has a focus.
const SEEDS_PER_FOCUS: u64 = 12;

/// The case on which a world concentrates. End 0 is the requester, and rail 0 fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Focus {
    /// READs of a counter, each followed by a fenced atomic that changes it. The requester's NIC fails when an atomic is executed, while it
    /// places the data of the READ. A repeated READ would return the changed counter.
    FencedReads,
    /// Atomics whose results are not saved, and WRITEs with immediate of several packets. The link fails when such a WRITE is partly
    /// executed. It then follows an atomic whose value is lost, so it must not be reported as not executed.
    TornBehindError,
}

impl Focus {
    /// Draws the focus of a seed, if it has one.
    pub(super) fn draw(seed: u64) -> Option<Focus> {
        let rng = &mut Prng::stream(seed, "failover focus");
        (rng.below(SEEDS_PER_FOCUS) == 0).then(|| *rng.pick(&[Focus::FencedReads, Focus::TornBehindError]))
    }

    /// Adapts what the seed drew: the fabric, the NICs, and the requester's operations.
    pub(super) fn shape(self, world: &mut Config, rails: &mut [RailSetup], plan: &mut Plan) {
        let mut only = |kinds: &[OpKind]| *plan = plan.clone().only(kinds);
        let capabilities = rails.iter_mut().flat_map(|rail| &mut rail.capabilities);
        match self {
            Focus::FencedReads => {
                only(&[OpKind::Read]);
                (plan.counted_read_ppm, plan.overwritten_read_ppm) = (1_000_000, 0);
                // The NIC still places the data of a READ when the responder executes the atomic behind it.
                world.memory.chunk_delay = DurationRange::nanos(1, 1_600);
                capabilities.for_each(|nic| nic.psn_query = true);
            }
            Focus::TornBehindError => {
                only(&[OpKind::WriteImm, OpKind::FetchAdd, OpKind::CompareSwap]);
                capabilities.for_each(|nic| (nic.psn_query, nic.saved_results) = (true, false));
            }
        }
        plan.max_len = plan.max_len.max(8 << 10);
    }

    /// Draws the failure.
    pub(super) fn fault(self, rng: &mut Prng) -> (Duration, Fault) {
        let (stage, failure, target) = match self {
            Focus::FencedReads => (Stage::Executed, *rng.pick(&[Failure::NicDead, Failure::NicHung]), 0),
            Focus::TornBehindError => (Stage::PartlyExecuted, Failure::LinkDown, rng.index(2)),
        };
        let nth = rng.between(1, 12) as u32;
        (
            Duration::ZERO,
            Fault::AtStage { rail: Rail::Number(0), observer: 1, stage, nth, target, failure, hold: None },
        )
    }
}
