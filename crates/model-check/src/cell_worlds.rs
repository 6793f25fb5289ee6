//! Worlds of recoverable and indirect cells.

use mitra_objects::{Change, Publication};
use mitra_prng::Prng;

use crate::cell_scenario::{CellCall, CellKind, CellScenario, CellWorldConfig};
use crate::object_world::{ObjectWorld, PathRules};
use crate::{Exploration, RunLimits, SeedResult};

/// Returns a fetch-and-add on a cell.
pub fn add(cell: u8, add: u32) -> CellCall {
    (cell, Some(Change::FetchAdd(add)))
}

/// Returns a compare-and-swap on a cell.
pub fn compare_swap(cell: u8, expected: u32, new: u32) -> CellCall {
    (cell, Some(Change::CompareSwap { expected, new }))
}

/// Returns the world of clients with these operations on two cells, without a broken rule.
pub fn config(kind: CellKind, programs: &[&[CellCall]], failures: &[u8]) -> CellWorldConfig {
    CellWorldConfig {
        kind,
        cells: 2,
        programs: programs.iter().map(|program| program.to_vec()).collect(),
        failures: failures.to_vec(),
        publication: Publication::CompareSwap,
        rules: PathRules::IBTA,
        broken: None,
    }
}

/// Two owners with two operations each on one cell. The path of each owner fails once.
pub fn two_owners(kind: CellKind) -> CellWorldConfig {
    config(kind, &[&[add(0, 1), compare_swap(0, 1, 5)], &[compare_swap(0, 1, 7), add(0, 10)]], &[1, 1])
}

/// Three clients that change one cell. The paths of two clients fail.
pub fn three_clients(kind: CellKind) -> CellWorldConfig {
    config(kind, &[&[add(0, 1)], &[add(0, 10)], &[add(0, 100)]], &[1, 1, 0])
}

/// Two owners that change two cells in opposite order. The path of each owner fails once.
pub fn two_words(kind: CellKind) -> CellWorldConfig {
    config(kind, &[&[add(0, 1), add(1, 1)], &[add(1, 10), add(0, 10)]], &[1, 1])
}

pub(crate) fn explore(kind: CellKind) -> Exploration {
    (two_owners(kind).world().explore())
        .and_then(|| three_clients(kind).world().explore())
        .and_then(|| two_words(kind).world().explore())
}

/// Returns the world that a seed selects: three clients with six operations each on two cells.
fn seeded_world(kind: CellKind, seed: u64) -> ObjectWorld<CellScenario> {
    let rng = &mut Prng::stream(seed, "cells");
    let mut call = || {
        let cell = rng.below(2) as u8;
        match rng.below(4) {
            0 => (cell, None),
            1 => compare_swap(cell, rng.below(3) as u32, rng.below(3) as u32),
            _ => add(cell, 1 + rng.below(2) as u32),
        }
    };
    let programs: [Vec<CellCall>; 3] = std::array::from_fn(|_| (0..6).map(|_| call()).collect());
    config(kind, &programs.each_ref().map(Vec::as_slice), &[4; 3]).world()
}

pub(crate) fn run(kind: CellKind, seed: u64) -> SeedResult {
    seeded_world(kind, seed).run(seed, RunLimits { adversary_steps: 1_000, stable_steps: 20_000 })
}
