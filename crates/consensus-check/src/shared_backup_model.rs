//! The exhaustive exploration of queue pairs with a shared backup, and their runs from seeds.

use std::net::SocketAddr;

use mitra_prng::Prng;
use stateright::{Model, Property};

use crate::model_checker::{explore, serve};
use crate::shared_backup_world::PROPERTIES;
use crate::{
    CatalogueEntry, Exploration, SeedResult, SharedBackupLimits, SharedBackupRule, SharedBackupStep,
    SharedBackupWorld, Violation,
};

/// All worlds of a queue pair with a shared backup that are reachable within the limits.
pub struct ExhaustiveSharedBackup {
    start: SharedBackupWorld,
}

impl ExhaustiveSharedBackup {
    /// Explores the worlds within the limits. `without` names a rule of the driver that is left out.
    pub fn new(limits: SharedBackupLimits, without: Option<SharedBackupRule>) -> ExhaustiveSharedBackup {
        ExhaustiveSharedBackup { start: SharedBackupWorld::new(limits, without) }
    }

    /// Explores all worlds, or stops at the first counterexample.
    pub fn explore(self) -> Exploration {
        explore(self)
    }

    /// Serves the worlds to a web browser at an address, until the program ends.
    pub fn serve(self, address: SocketAddr) {
        serve(self, address);
    }
}

impl SharedBackupLimits {
    /// Both ends have operations, and the backup moves once.
    pub const ONE_MOVE: SharedBackupLimits = SharedBackupLimits { operations: [2, 2], moves: 1, closes: 0 };
    /// Both ends have operations, and the backup moves twice.
    pub const TWO_MOVES: SharedBackupLimits = SharedBackupLimits { moves: 2, ..SharedBackupLimits::ONE_MOVE };
    /// The backup moves once, and the application closes one end or both.
    pub const CLOSES: SharedBackupLimits = SharedBackupLimits { operations: [1, 1], moves: 1, closes: 2 };
}

/// The entry of the catalogue.
pub(crate) const ENTRY: CatalogueEntry = CatalogueEntry {
    name: "shared-backup",
    properties: &PROPERTIES,
    explored_world: "2 ends of a queue pair with a shared backup, 2 operations each; the backup moves twice; then 1 operation each, 1 move, and ends that close",
    simulated_world: "2 ends of a queue pair with a shared backup, 12 operations each; the backup moves 12 times; one end is slow in some runs, or closes",
    explore: || {
        let explore = |limits| ExhaustiveSharedBackup::new(limits, None).explore();
        explore(SharedBackupLimits::CLOSES).and_then(|| explore(SharedBackupLimits::TWO_MOVES))
    },
    serve: |address| ExhaustiveSharedBackup::new(SharedBackupLimits::ONE_MOVE, None).serve(address),
    run_seed: |seed| run_shared_backup_from_seed(seed, None),
};

impl Model for ExhaustiveSharedBackup {
    type State = SharedBackupWorld;
    type Action = SharedBackupStep;

    fn init_states(&self) -> Vec<SharedBackupWorld> {
        vec![self.start.clone()]
    }

    fn actions(&self, world: &SharedBackupWorld, actions: &mut Vec<SharedBackupStep>) {
        let (steps, causes) = world.steps();
        actions.extend(steps.into_iter().chain(causes));
    }

    fn next_state(&self, world: &SharedBackupWorld, step: SharedBackupStep) -> Option<SharedBackupWorld> {
        let mut next = world.clone();
        next.apply(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let [once, fenced, decided, accepted, ends] = PROPERTIES;
        let keeps =
            |property, holds: fn(&Self, &SharedBackupWorld) -> bool| Property::always(property, holds);
        vec![
            keeps(once, |_, world| world.violation != Some(PROPERTIES[0])),
            keeps(fenced, |_, world| world.violation != Some(PROPERTIES[1])),
            keeps(decided, |_, world| world.violation != Some(PROPERTIES[2])),
            keeps(accepted, |_, world| world.violation != Some(PROPERTIES[3])),
            keeps(ends, |_, world| world.violation != Some(PROPERTIES[4])),
        ]
    }
}

/// Runs a queue pair with many operations and moves through random steps from a seed, until nothing is left to do. `without` names a rule of the driver
/// that is left out.
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
