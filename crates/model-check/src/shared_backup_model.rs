//! The exhaustive exploration of queue pairs with a shared backup, and their runs from seeds.

use mitra_prng::Prng;

use crate::shared_backup_world::PROPERTIES;
use crate::{
    CatalogueEntry, Exhaustive, SeedResult, SharedBackupLimits, SharedBackupRule, SharedBackupStep,
    SharedBackupWorld, Violation,
};

/// Explores the worlds of a queue pair with a shared backup that are reachable within the limits.
/// `without` names a rule of the driver that is left out.
pub fn exhaustive_shared_backup(
    limits: SharedBackupLimits,
    without: Option<SharedBackupRule>,
) -> Exhaustive<SharedBackupWorld, SharedBackupStep> {
    let steps = |world: &SharedBackupWorld| {
        let (steps, causes) = world.steps();
        [steps, causes].concat()
    };
    let start = SharedBackupWorld::new(limits, without);
    PROPERTIES.iter().fold(Exhaustive::new(start, steps, SharedBackupWorld::apply), |model, property| {
        model.always(property, move |world| world.violation != Some(property))
    })
}

impl SharedBackupLimits {
    /// Both ends have operations, and the backup moves once.
    pub const ONE_MOVE: SharedBackupLimits = SharedBackupLimits { operations: [2, 2], moves: 1, closes: 0 };
    /// Both ends have operations, and the backup moves twice.
    pub const TWO_MOVES: SharedBackupLimits = SharedBackupLimits { moves: 2, ..SharedBackupLimits::ONE_MOVE };
    /// The backup moves once, and the application closes one end or both.
    pub const CLOSES: SharedBackupLimits = SharedBackupLimits { operations: [1, 1], moves: 1, closes: 2 };
}

pub(crate) const ENTRY: CatalogueEntry = CatalogueEntry {
    name: "shared-backup",
    properties: &PROPERTIES,
    explored_world: "2 ends of a queue pair with a shared backup, 2 operations each; the backup moves twice; then 1 operation each, 1 move, and ends that close",
    simulated_world: "2 ends of a queue pair with a shared backup, 12 operations each; the backup moves 12 times; one end is slow in some runs, or closes",
    explore: || {
        let explore = |limits| exhaustive_shared_backup(limits, None).explore();
        explore(SharedBackupLimits::CLOSES).and_then(|| explore(SharedBackupLimits::TWO_MOVES))
    },
    serve: |address| exhaustive_shared_backup(SharedBackupLimits::ONE_MOVE, None).serve(address),
    run_seed: |seed| run_shared_backup_from_seed(seed, None),
};

/// Runs a queue pair with many operations and moves through random steps from a seed, until nothing
/// is left to do. `without` names a rule of the driver that is left out.
pub fn run_shared_backup_from_seed(seed: u64, without: Option<SharedBackupRule>) -> SeedResult {
    let mut prng = Prng::new(seed);
    let closes = u8::from(prng.index(8) == 0);
    let limits = SharedBackupLimits { operations: [12, 12], moves: 12, closes };
    let mut world = SharedBackupWorld::new(limits, without);
    // An end that is slow takes few of its steps.
    let slow_end = prng.index(3) as u8;
    let (mut steps, mut faults) = (0, 0);
    loop {
        let (going, causes) = world.steps();
        let (slow, fast): (Vec<_>, Vec<_>) = going.into_iter().partition(|step| is_drive_of(*step, slow_end));
        let step = if !causes.is_empty() && prng.index(12) == 0 {
            faults += 1;
            *prng.pick(&causes)
        } else if !fast.is_empty() && (slow.is_empty() || prng.index(16) != 0) {
            *prng.pick(&fast)
        } else if !slow.is_empty() {
            *prng.pick(&slow)
        } else {
            break;
        };
        world.apply(step);
        steps += 1;
    }
    SeedResult { steps, faults, violation: world.violation.map(Violation::Property) }
}

/// Returns whether the driver of this end takes the step.
fn is_drive_of(step: SharedBackupStep, slow: u8) -> bool {
    matches!(step, SharedBackupStep::Drive { end } if end == slow)
}
