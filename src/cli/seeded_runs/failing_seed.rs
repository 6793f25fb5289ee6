//! The lowest failing seed: its trace, and a smaller world that shows the same failure.

use std::io::{self, Write};
use std::panic;
use std::time::{Duration, Instant};

use mitra_sweep::seeded::{Reduction, SeedRun};
use mitra_sweep::{Shrunk, Workload};

/// The number of records of a failing seed's trace that are printed.
const PRINTED_RECORDS: usize = 150;
/// The time after which a failure is not shrunk further.
const SHRINK_TIME: Duration = Duration::from_secs(30);

pub(super) struct FailingSeed<'a> {
    workload: &'a Workload,
    seed: u64,
    pub(super) shrunk: Option<Shrunk>,
    run: SeedRun,
}

impl<'a> FailingSeed<'a> {
    /// Runs the world again, and shrinks it if `shrinks`.
    pub(super) fn new(
        workload: &'a Workload,
        seed: u64,
        reduction: &Reduction,
        shrinks: bool,
    ) -> FailingSeed<'a> {
        let run = run(workload, seed, reduction);
        let mut failing = FailingSeed { workload, seed, shrunk: None, run };
        let finding = failing.run.findings.first().filter(|_| shrinks && reduction.is_empty());
        if let Some(finding) = finding {
            let begin = Instant::now();
            // The default hook would print the same panic for each smaller world.
            let hook = panic::take_hook();
            panic::set_hook(Box::new(|_| {}));
            failing.shrunk = workload.shrink(seed, finding.checker, || begin.elapsed() < SHRINK_TIME);
            panic::set_hook(hook);
        }
        if let Some(shrunk) = &failing.shrunk {
            failing.run = self::run(workload, seed, &shrunk.reduction);
        }
        failing
    }

    /// Prints the world: the choices of the seed, the end of its trace, the findings, and the lines
    /// that repeat it.
    pub(super) fn print(&self, err: &mut impl Write) -> io::Result<()> {
        self.run.setup.iter().chain(&self.run.trace).try_for_each(|line| writeln!(err, "{line}"))?;
        for finding in &self.run.findings {
            writeln!(err, "seed {}, checker {}: {}", self.seed, finding.checker, finding.detail)?;
        }
        writeln!(err, "{}", self.workload.reproduce_command(self.seed))?;
        let Some(shrunk) = &self.shrunk else { return Ok(()) };
        let Shrunk { reduction, runs, is_minimal } = shrunk;
        let end = if *is_minimal { "" } else { " until the time was over" };
        writeln!(err, "Shrunk by {runs} runs{end}; the faults that are left:")?;
        self.run.schedule.iter().try_for_each(|fault| writeln!(err, "  {fault}"))?;
        writeln!(err, "REPRODUCE THE SHRUNK WORLD WITH: {}", self.workload.command(self.seed, reduction))
    }
}

/// Runs a world with a trace that is short enough to be read.
fn run(workload: &Workload, seed: u64, reduction: &Reduction) -> SeedRun {
    workload.run_reduced(seed, reduction, PRINTED_RECORDS).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use mitra_sweep::seeded::{Finding, Reducible, ReductionError, ReductionStep, SeededWorkload};

    use super::*;
    use crate::cli::seeded_runs::report;

    /// A world of two faults, of which the second one is a violation.
    fn run_reduced(_: u64, reduction: &Reduction, kept: usize) -> Result<SeedRun, ReductionError> {
        let faults = reduction.faults.clone().unwrap_or_else(|| vec![0, 1]);
        let mut run = SeedRun { operations: 3, faults: faults.len() as u64, ..SeedRun::default() };
        if faults.contains(&1) {
            run.findings.push(Finding::violation("lost", "2 operations of end a\na <table>"));
        }
        if kept > 0 {
            run.schedule = faults.iter().map(|fault| format!("fault {fault}")).collect();
            run.setup = vec!["one rail".to_owned()];
        }
        Ok(run)
    }

    fn smaller(_: u64, reduction: &Reduction, step: ReductionStep) -> Vec<Reduction> {
        match (step, &reduction.faults) {
            (ReductionStep::Faults, None) => {
                let one = |fault| Reduction { faults: Some(vec![fault]), ..Reduction::default() };
                vec![one(0), one(1)]
            }
            _ => Vec::new(),
        }
    }

    static FAILING: SeededWorkload = SeededWorkload {
        name: "failing",
        world: "two faults",
        run: |seed, kept| run_reduced(seed, &Reduction::default(), kept).expect("a world"),
        has_coverage: false,
        reducible: Some(Reducible { run: run_reduced, smaller }),
    };

    fn printed(failing: &FailingSeed<'_>) -> String {
        let mut out = Vec::new();
        failing.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn failing_seed_is_shrunk_and_both_worlds_can_be_repeated() {
        let workload = Workload::simulated(&FAILING);
        let failing = FailingSeed::new(&workload, 5, &Reduction::default(), true);
        assert_eq!(
            printed(&failing),
            "one rail\nseed 5, checker lost: 2 operations of end a\na <table>\n\
             REPRODUCE WITH: mitra sim --workload failing --seeds 1 --from 5\n\
             Shrunk by 2 runs; the faults that are left:\n  fault 1\n\
             REPRODUCE THE SHRUNK WORLD WITH: mitra sim --workload failing --seeds 1 --from 5 --shrunk faults=1\n"
        );
        let whole = printed(&FailingSeed::new(&workload, 5, &Reduction::default(), false));
        assert!(whole.ends_with("--seeds 1 --from 5\n"), "{whole}");
    }

    #[test]
    fn page_shows_findings_above_the_schedule() {
        let workload = Workload::simulated(&FAILING);
        let page = report::page(&workload, 5, &"faults=1".parse().unwrap()).unwrap();
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in {page}"));
        assert!(at("lost: 2 operations of end a") < at("<li>fault 1</li>"));
        assert!(at("a &#60;table&#62;") < at("--shrunk faults=1</code>"));
    }
}
