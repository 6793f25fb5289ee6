//! The counts of a sweep.

use std::collections::{BTreeMap, BTreeSet};

use mitra_sweep::seeded::SeedRun;
use serde::Serialize;

use super::coverage_table::CoverageTable;

/// The number of seeds with false alarms that a summary names.
const NAMED_SEEDS: usize = 5;

/// The counts do not depend on the number of threads.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) workload: &'static str,
    pub(super) seeds: u64,
    pub(super) from: u64,
    pub(super) operations: u64,
    pub(super) faults: u64,
    /// `None` if the workload does not count them.
    pub(super) false_alarms: Option<u64>,
    /// The lowest seeds with false alarms.
    pub(super) false_alarm_seeds: BTreeSet<u64>,
    pub(super) violations: u64,
    pub(super) stuck: u64,
    pub(super) by_checker: BTreeMap<&'static str, u64>,
    pub(super) first: Option<u64>,
    /// The reduction of the first failing seed's world, if the world was shrunk.
    pub(super) shrunk: Option<String>,
    /// `None` without `--coverage`.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(super) coverage: Option<CoverageTable>,
}

impl Summary {
    pub(super) fn new(workload: &'static str, from: u64) -> Summary {
        Summary {
            workload,
            seeds: 0,
            from,
            operations: 0,
            faults: 0,
            false_alarms: None,
            false_alarm_seeds: BTreeSet::new(),
            violations: 0,
            stuck: 0,
            by_checker: BTreeMap::new(),
            first: None,
            shrunk: None,
            coverage: None,
        }
    }

    pub(super) fn add(&mut self, seed: u64, result: &SeedRun) {
        self.seeds += 1;
        self.operations += result.operations;
        self.faults += result.faults;
        if let Some(false_alarms) = result.false_alarms {
            *self.false_alarms.get_or_insert(0) += false_alarms;
            if false_alarms > 0 {
                self.false_alarm_seeds.insert(seed);
            }
            if self.false_alarm_seeds.len() > NAMED_SEEDS {
                self.false_alarm_seeds.pop_last();
            }
        }
        if let Some(table) = &mut self.coverage {
            table.add(&result.coverage);
        }
        let Some(worst) = result.findings.iter().min_by_key(|finding| finding.is_stuck) else { return };
        *if worst.is_stuck { &mut self.stuck } else { &mut self.violations } += 1;
        let mut checkers: Vec<_> = result.findings.iter().map(|finding| finding.checker).collect();
        checkers.sort_unstable();
        checkers.dedup();
        for checker in checkers {
            *self.by_checker.entry(checker).or_default() += 1;
        }
        self.first = Some(self.first.map_or(seed, |first| first.min(seed)));
    }
}

/// Returns a noun, whose plural ends in s, as it follows a number.
pub(super) fn plural(count: u64, noun: &str) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns a number with its noun.
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {}", plural(count, noun))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_seeds_with_false_alarms_are_named() {
        let mut summary = Summary::new("failover", 0);
        for seed in (0..20).rev() {
            summary.add(seed, &SeedRun { false_alarms: Some(seed % 2), ..SeedRun::default() });
        }
        assert_eq!(summary.false_alarms, Some(10));
        assert_eq!(summary.false_alarm_seeds.into_iter().collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(counted(0, "seed"), "0 seeds");
        assert_eq!(counted(1, "seed"), "1 seed");
        assert_eq!(counted(2, "seed"), "2 seeds");
    }
}
