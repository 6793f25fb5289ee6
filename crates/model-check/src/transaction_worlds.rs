//! The worlds of transactions that `mitra check` explores, and the worlds that `mitra sim` runs
//! from seeds.

use mitra_prng::Prng;

use crate::transaction_step::RecordUse::{LockThenAppend, Overwrite, Read, ReadThenAppend};
use crate::transaction_world::{APPLIED, CLEAN, ENDS, SERIALIZABLE};
use crate::{
    CatalogueEntry, Exhaustive, Exploration, SeedResult, TransactionConfig, TransactionProgram,
    TransactionStep, TransactionWorld, Violation,
};

const PROPERTIES: &[&str] = &[SERIALIZABLE, CLEAN, APPLIED, ENDS];

/// A world of two nodes without faults, in which all rules are kept.
const CALM: TransactionConfig = TransactionConfig {
    nodes: 2,
    records: 2,
    programs: &[],
    ends: 0,
    recoverer_ends: 0,
    doubts: 0,
    deaths: 0,
    fences: true,
    recovers_first: true,
    tears_headers: false,
};

/// The worlds by name.
pub static WORLDS: &[(&str, TransactionConfig)] = &[
    ("write-skew", TransactionConfig { programs: &[&[READS_0_WRITES_1], &[READS_1_WRITES_0]], ..CALM }),
    (
        "readers",
        TransactionConfig { programs: &[&[UPDATES_BOTH], &[&[(0, Read)], &[(1, Read), (0, Read)]]], ..CALM },
    ),
    (
        "ends",
        TransactionConfig {
            programs: &[&[UPDATES_BOTH], &[WRITES_BOTH]],
            ends: 1,
            recoverer_ends: 1,
            ..CALM
        },
    ),
    (
        "lives",
        TransactionConfig {
            records: 1,
            programs: &[&[UPDATES, UPDATES], &[LOCKS]],
            ends: 2,
            recoverer_ends: 1,
            ..CALM
        },
    ),
    ("doubts", TransactionConfig { programs: &[&[UPDATES_BOTH], &[READS_1_WRITES_0]], doubts: 2, ..CALM }),
    (
        "doubts-and-ends",
        TransactionConfig {
            records: 1,
            programs: &[&[UPDATES], &[LOCKS]],
            doubts: 2,
            ends: 1,
            recoverer_ends: 1,
            ..CALM
        },
    ),
    (
        "deaths",
        TransactionConfig {
            nodes: 3,
            programs: &[&[UPDATES_BOTH]],
            doubts: 1,
            deaths: 1,
            ends: 1,
            recoverer_ends: 1,
            ..CALM
        },
    ),
    (
        "deaths-of-two",
        TransactionConfig {
            nodes: 3,
            records: 1,
            programs: &[&[UPDATES, LOCKS], &[LOCKS]],
            deaths: 1,
            ends: 1,
            ..CALM
        },
    ),
];

/// Reads and writes both records, and locks one of them first.
const UPDATES_BOTH: TransactionProgram = &[(0, ReadThenAppend), (1, LockThenAppend)];
/// Writes both records, in the opposite order to `UPDATES_BOTH`.
const WRITES_BOTH: TransactionProgram = &[(1, Overwrite), (0, ReadThenAppend)];
const READS_0_WRITES_1: TransactionProgram = &[(0, Read), (1, ReadThenAppend)];
const READS_1_WRITES_0: TransactionProgram = &[(1, Read), (0, ReadThenAppend)];
const UPDATES: TransactionProgram = &[(0, ReadThenAppend)];
const LOCKS: TransactionProgram = &[(0, LockThenAppend)];

pub(crate) const ENTRY: CatalogueEntry = CatalogueEntry {
    name: "transactions",
    properties: PROPERTIES,
    explored_world: "1 or 2 coordinators with up to 2 transactions each, 2 memory nodes; write skew; readers; lives and a recoverer that end; 2 requests in doubt; both; 3 nodes, of which 1 dies",
    simulated_world: "16 worlds a seed: those of `mitra check`, and 4 coordinators with up to 3 transactions, 2 or 3 memory nodes of which 1 may die, up to 3 requests in doubt, 2 lives and 1 recoverer that end",
    explore: || {
        let none = Exploration { states: 0, counterexample: None };
        WORLDS.iter().fold(none, |found, (_, config)| found.and_then(|| config.explore()))
    },
    serve: |address| WORLDS[0].1.exhaustive().serve(address),
    run_seed: run,
};

impl TransactionConfig {
    /// Explores every order of steps.
    pub fn explore(self) -> Exploration {
        self.exhaustive().explore()
    }

    fn exhaustive(self) -> Exhaustive<TransactionWorld, TransactionStep> {
        let start = TransactionWorld::new(self);
        let model = Exhaustive::new(start, TransactionWorld::steps, TransactionWorld::apply);
        [SERIALIZABLE, CLEAN, APPLIED]
            .into_iter()
            .fold(model, |model, property| {
                model.always(property, move |world| world.violation() != Some(property))
            })
            .always(ENDS, |world| world.violation() != Some(ENDS) && !world.is_stuck())
    }
}

/// The programs of large worlds.
const PROGRAMS: &[&[TransactionProgram]] = &[
    &[&[(0, ReadThenAppend), (1, LockThenAppend)], &[(1, Overwrite), (2, Read)]],
    &[&[(1, Read), (0, ReadThenAppend)], &[(2, Overwrite), (0, LockThenAppend)]],
    &[&[(0, Read), (1, ReadThenAppend)], &[(0, Read)]],
    &[&[(2, ReadThenAppend)], &[(2, LockThenAppend), (0, ReadThenAppend)], &[(1, Read)]],
];

const WORLDS_OF_A_SEED: u32 = 16;

/// Runs worlds from a seed, until one violates a property.
fn run(seed: u64) -> SeedResult {
    let mut prng = Prng::stream(seed, "transactions");
    let mut result = SeedResult { steps: 0, faults: 0, violation: None };
    for _ in 0..WORLDS_OF_A_SEED {
        let deaths = prng.index(2) as u8;
        let large = TransactionConfig {
            nodes: 2 + deaths,
            records: 3,
            programs: PROGRAMS,
            ends: prng.index(3) as u8,
            recoverer_ends: prng.index(2) as u8,
            doubts: prng.index(4) as u8,
            deaths,
            ..CALM
        };
        // In small worlds, transactions meet more often.
        let config = if prng.index(3) == 0 { large } else { prng.pick(WORLDS).1 };
        run_world(TransactionWorld::new(config), &mut prng, &mut result);
        if result.violation.is_some() {
            break;
        }
    }
    result
}

/// Runs a world to its end. Most violations need an agent that takes no step for a long time, so
/// some agents are slow. The slow agents are chosen at random. After about half of the faults, the
/// only slow agent is the agent that the fault has hit.
fn run_world(mut world: TransactionWorld, prng: &mut Prng, result: &mut SeedResult) {
    let steps_to_a_fault = [8, 24, 60][prng.index(3)];
    let mut slow = 0;
    loop {
        let violation = world.violation().or_else(|| world.is_stuck().then_some(ENDS));
        result.violation = violation.map(Violation::Property);
        let (faults, calm): (Vec<_>, Vec<_>) = world.steps().into_iter().partition(TransactionStep::is_fault);
        if result.violation.is_some() || world.has_ended() && calm.is_empty() {
            return;
        }
        if prng.index(16) == 0 {
            slow = prng.below(1 << 5);
        }
        let fast: Vec<_> = calm.iter().copied().filter(|step| slow & 1 << step.agent() == 0).collect();
        let is_fault = !faults.is_empty() && (calm.is_empty() || prng.index(steps_to_a_fault) == 0);
        let step = match is_fault {
            true => *prng.pick(&faults),
            false => *prng.pick(if fast.is_empty() { &calm } else { &fast }),
        };
        if is_fault && prng.index(2) == 0 {
            slow = 1 << step.agent();
        }
        result.steps += 1;
        result.faults += u32::from(is_fault);
        world.apply(step);
    }
}
