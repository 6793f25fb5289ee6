//! The search for a smaller world that shows the same failure.

use crate::seeded::{Reduction, ReductionStep, SeedRun};

use crate::Workload;

/// The result of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shrunk {
    /// The reduction to the smallest world that was found.
    pub reduction: Reduction,
    /// The number of worlds that were tried.
    pub runs: u64,
    /// Whether no single step leads to a smaller world that fails. `false` if the time ran out.
    pub is_minimal: bool,
}

impl Workload {
    /// Takes away faults, connections, operations, rails and options of a failing seed, one after
    /// the other, while this checker still finds something. Returns `None` if the workload has no
    /// smaller worlds. Each step asks `has_time` whether to go on.
    pub fn shrink(&self, seed: u64, checker: &str, has_time: impl Fn() -> bool) -> Option<Shrunk> {
        let reducible = self.reducible()?;
        let mut shrunk = Shrunk { reduction: Reduction::default(), runs: 0, is_minimal: false };
        let is_found = |run: SeedRun| run.findings.iter().any(|finding| finding.checker == checker);
        // After a step has removed something, an earlier step may be able to remove more.
        loop {
            let before = shrunk.reduction.clone();
            for step in ReductionStep::ALL {
                loop {
                    let mut smaller = (reducible.smaller)(seed, &shrunk.reduction, step).into_iter();
                    let found = smaller.find(|candidate| {
                        shrunk.runs += 1;
                        has_time() && self.run_reduced(seed, candidate, 0).is_ok_and(is_found)
                    });
                    if !has_time() {
                        return Some(shrunk);
                    }
                    match found {
                        Some(candidate) => shrunk.reduction = candidate,
                        None => break,
                    }
                }
            }
            if shrunk.reduction == before {
                shrunk.is_minimal = true;
                return Some(shrunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::seeded::{Extra, Finding, Reducible, ReductionError, SeededWorkload};

    use super::*;

    /// A world with five faults and 60 operations of each end, which fails by the third fault, if
    /// the second end has at least 7 operations and there is noise. A second checker fails in all
    /// worlds.
    fn run(_: u64, reduction: &Reduction, _: usize) -> Result<SeedRun, ReductionError> {
        let faults = reduction.faults.clone().unwrap_or((0..5).collect());
        let operations = reduction.operations.map_or(60, |[_, b]| b);
        let mut run = SeedRun::default();
        if faults.contains(&2) && operations >= 7 && !reduction.lacks(Extra::Noise) {
            run.findings.push(Finding::violation("lost", ""));
        }
        run.findings.push(Finding::stuck("stuck", ""));
        Ok(run)
    }

    fn smaller(_: u64, reduction: &Reduction, step: ReductionStep) -> Vec<Reduction> {
        match step {
            ReductionStep::Faults => {
                let faults = reduction.faults.clone().unwrap_or((0..5).collect());
                let without = |i: usize| faults.iter().copied().filter(|&fault| fault != i).collect();
                faults.iter().map(|&i| reduction.with(|r| r.faults = Some(without(i)))).collect()
            }
            ReductionStep::Operations => {
                let [a, b] = reduction.operations.unwrap_or([60, 60]);
                let fewer = [(a > 0).then(|| [a - 1, b]), (b > 0).then(|| [a, b - 1])];
                fewer.into_iter().flatten().map(|ops| reduction.with(|r| r.operations = Some(ops))).collect()
            }
            ReductionStep::Extras => {
                let left = Extra::ALL.into_iter().filter(|&extra| !reduction.lacks(extra));
                left.map(|extra| reduction.with(|r| r.without.push(extra))).collect()
            }
            _ => Vec::new(),
        }
    }

    static FAILING: SeededWorkload = SeededWorkload {
        name: "",
        world: "",
        run: |seed, kept| run(seed, &Reduction::default(), kept).expect("a world"),
        has_coverage: false,
        reducible: Some(Reducible { run, smaller }),
    };

    #[test]
    fn smallest_world_with_the_same_finding_is_found() {
        let shrunk = Workload::simulated(&FAILING).shrink(1, "lost", || true).expect("smaller worlds");
        assert_eq!((shrunk.reduction.faults, shrunk.reduction.operations), (Some(vec![2]), Some([0, 7])));
        assert!(!shrunk.reduction.without.contains(&Extra::Noise));
        assert_eq!(shrunk.reduction.without.len(), Extra::ALL.len() - 1);
        assert!(shrunk.is_minimal);
    }

    #[test]
    fn search_ends_with_its_time() {
        let left = Cell::new(40);
        let has_time = || left.replace(left.get() - 1) > 0;
        let shrunk = Workload::simulated(&FAILING).shrink(1, "lost", has_time).expect("smaller worlds");
        assert!(!shrunk.is_minimal && shrunk.runs < 41, "{shrunk:?}");
        assert!(run(1, &shrunk.reduction, 0).unwrap().findings.len() == 2, "the failure stays");
    }

    #[test]
    fn other_workloads_have_no_smaller_worlds() {
        let packets = Workload::find("packets").unwrap();
        assert_eq!(packets.shrink(1, "lost", || true), None);
    }
}
