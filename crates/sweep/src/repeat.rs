//! Two runs of one seed, compared event by event.

use crate::seeded::{Finding, SeedRun};

use crate::Workload;

impl Workload {
    /// Runs a seed twice, and returns the first run. If the runs differ, a finding of the checker
    /// `repeat` names the first record that differs. The run then depends on more than the seed.
    pub fn run_twice(&self, seed: u64) -> SeedRun {
        let mut first = self.run(seed, 0);
        if first != self.run(seed, 0) {
            // The trace is kept only now, because most seeds do not need it.
            let kept = [0, 1].map(|_| self.run(seed, usize::MAX));
            first.findings.push(Finding::violation("repeat", difference(&kept)));
        }
        first
    }
}

/// Describes the first difference of two runs.
fn difference([a, b]: &[SeedRun; 2]) -> String {
    let longest = a.trace.len().max(b.trace.len());
    let records = |run: &SeedRun, i: usize| run.trace.get(i).cloned().unwrap_or("the end".to_owned());
    match (0..longest).find(|&i| a.trace.get(i) != b.trace.get(i)) {
        Some(i) => format!("two runs differ at record {i}: {} | {}", records(a, i), records(b, i)),
        None if a == b => "two runs differ, and two more runs do not".to_owned(),
        None => {
            let results = |run: &SeedRun| {
                format!("{} operations, {} faults, {:?}", run.operations, run.faults, run.findings)
            };
            format!("two runs differ in their results: {} | {}", results(a), results(b))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::seeded::SeededWorkload;

    use super::*;

    thread_local! { static RUNS: Cell<u64> = const { Cell::new(0) } }

    /// The third record of a run depends on the number of runs before.
    fn run_with_a_counter(seed: u64, kept_records: usize) -> SeedRun {
        let run = RUNS.replace(RUNS.get() + 1);
        let trace = ["begins".to_owned(), format!("seed {seed}"), format!("run {run}")];
        let trace = trace.into_iter().take(kept_records.min(3)).collect();
        SeedRun { operations: 1, trace_hash: run, trace, ..SeedRun::default() }
    }

    #[test]
    fn first_different_record_is_found() {
        static COUNTER: SeededWorkload = SeededWorkload {
            name: "",
            world: "",
            run: run_with_a_counter,
            has_coverage: false,
            reducible: None,
        };
        let findings = Workload::simulated(&COUNTER).run_twice(5).findings;
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.checker, finding.is_stuck), ("repeat", false));
        assert_eq!(finding.detail, "two runs differ at record 2: run 2 | run 3");
    }

    #[test]
    fn results_are_compared_too() {
        let [one, two] = [1, 2].map(|operations| SeedRun { operations, ..SeedRun::default() });
        assert!(difference(&[one.clone(), two]).contains("1 operations, 0 faults, [] | 2 operations"));
        assert!(difference(&[one.clone(), one]).contains("two more runs do not"));
    }

    #[test]
    fn every_workload_repeats() {
        for workload in Workload::all() {
            for seed in 0..3 {
                assert_eq!(workload.run_twice(seed).findings, [], "{}, seed {seed}", workload.name);
            }
        }
    }
}
