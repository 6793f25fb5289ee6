//! The parts of a world, and what a [`Reduction`] leaves of them.

use std::panic;

use mitra_failover::Config as VqpConfig;
use mitra_verbs::Error;

use super::{Extra, Reducible, Reduction, ReductionError, ReductionStep, SeedRun};
use mitra_sim::Config;

/// A workload whose worlds a [`Reduction`] makes smaller.
pub(super) trait Reduced {
    /// Runs the world of a seed without the parts that the reduction takes away.
    ///
    /// # Errors
    /// Any error of a NIC or a queue pair before the world begins.
    fn run(seed: u64, left: &mut Left<'_>, kept_records: usize, result: &mut SeedRun) -> Result<(), Error>;

    const REDUCIBLE: Reducible = Reducible { run: run::<Self>, smaller: smaller::<Self> };
}

/// How many parts of each kind the whole world of a seed has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Parts {
    pub(super) faults: usize,
    /// Connections, or clients. At least one stays.
    pub(super) connections: usize,
    /// The operations of each end, in each connection. The operations of clients count for end 0.
    pub(super) operations: [usize; 2],
    /// The extras of the world, which a reduction may leave out.
    pub(super) extras: Vec<Extra>,
}

impl Parts {
    /// # Errors
    /// The reduction names parts that the world does not have.
    pub(super) fn check(&self, seed: u64, reduction: &Reduction) -> Result<(), ReductionError> {
        let number = self.faults;
        if reduction.faults.iter().flatten().any(|&fault| fault >= number) {
            return Err(ReductionError::new(format!("seed {seed} has {number} faults, numbered from 0")));
        }
        let missing = [
            ("rails", reduction.rails.is_some()),
            ("connections", reduction.connections.is_some() && self.connections == 0),
            ("operations", reduction.operations.is_some() && self.operations == [0; 2]),
        ];
        match missing.into_iter().find(|(_, is_missing)| *is_missing) {
            Some((part, _)) => Err(ReductionError::new(format!(
                "the {part} of seed {seed} cannot be reduced in this workload"
            ))),
            None => Ok(()),
        }
    }

    /// Returns reductions that take away more than `reduction`, by one step. The first reduction
    /// takes the most away.
    pub(super) fn smaller(&self, reduction: &Reduction, step: ReductionStep) -> Vec<Reduction> {
        match step {
            ReductionStep::Faults => {
                let kept = reduction.faults.clone().unwrap_or_else(|| (0..self.faults).collect());
                let without = |i: usize| kept.iter().copied().filter(|&fault| fault != i).collect::<Vec<_>>();
                let fewer = kept.iter().map(|&i| reduction.with(|r| r.faults = Some(without(i))));
                let none = (kept.len() > 1).then(|| reduction.with(|r| r.faults = Some(Vec::new())));
                none.into_iter().chain(fewer).collect()
            }
            ReductionStep::Connections => {
                let kept = reduction.connections.unwrap_or(usize::MAX).min(self.connections);
                less(kept, 1).map(|n| reduction.with(|r| r.connections = Some(n))).collect()
            }
            ReductionStep::Operations => {
                let kept = [0, 1].map(|end| reduction.operations_of(end, self.operations[end]));
                let of_end = |end: usize| {
                    less(kept[end], 0).map(move |n| {
                        let mut operations = kept;
                        operations[end] = n;
                        operations
                    })
                };
                let fewer = of_end(0).chain(of_end(1));
                fewer.map(|operations| reduction.with(|r| r.operations = Some(operations))).collect()
            }
            ReductionStep::Rails => Vec::new(),
            ReductionStep::Extras => {
                let left = self.extras.iter().filter(|&&extra| !reduction.lacks(extra));
                left.map(|&extra| reduction.and_without(extra)).collect()
            }
        }
    }
}

pub(super) struct Left<'a> {
    pub(super) reduction: &'a Reduction,
    /// The parts of the whole world that were drawn so far.
    pub(super) parts: Parts,
    pub(super) faults: u64,
}

impl Left<'_> {
    pub(super) fn new(reduction: &Reduction) -> Left<'_> {
        Left { reduction, parts: Parts::default(), faults: 0 }
    }

    /// Numbers the next fault. Returns whether the fault is left.
    pub(super) fn keeps_next_fault(&mut self) -> bool {
        let number = self.parts.faults;
        self.parts.faults += 1;
        let is_kept = self.reduction.faults.as_ref().is_none_or(|kept| kept.contains(&number));
        self.faults += u64::from(is_kept);
        is_kept
    }

    pub(super) fn leave_out_noise(&mut self, config: &mut Config) {
        let silent = config.link.without_noise();
        if self.leaves_out(Extra::Noise, config.link != silent) {
            config.link = silent;
        }
        if self.leaves_out(Extra::Pauses, config.host.pause_ppm > 0) {
            config.host.pause_ppm = 0;
        }
    }

    pub(super) fn leave_out_log(&mut self, vqp: &mut VqpConfig) {
        if self.leaves_out(Extra::Log, vqp.completion_log.is_some()) {
            vqp.completion_log = None;
        }
    }

    /// Records whether the whole world has an extra. Returns whether the reduction leaves the extra
    /// out.
    fn leaves_out(&mut self, extra: Extra, is_present: bool) -> bool {
        self.parts.extras.extend(is_present.then_some(extra));
        self.reduction.lacks(extra)
    }
}

/// Returns numbers below `n`: first `least`, and then numbers that each halve the distance to `n`.
pub(super) fn less(n: usize, least: usize) -> impl Iterator<Item = usize> {
    let most = n.saturating_sub(least);
    let steps = (0..usize::BITS).map(move |halvings| most >> halvings).take_while(|&step| step > 0);
    steps.map(move |step| n - step)
}

fn run<W: Reduced + ?Sized>(
    seed: u64,
    reduction: &Reduction,
    kept_records: usize,
) -> Result<SeedRun, ReductionError> {
    let mut left = Left::new(reduction);
    let result = run_left::<W>(seed, &mut left, kept_records);
    left.parts.check(seed, reduction).map(|()| result)
}

fn smaller<W: Reduced + ?Sized>(seed: u64, reduction: &Reduction, step: ReductionStep) -> Vec<Reduction> {
    // The parts of a world that panics are unknown, so its failure is not shrunk.
    let parts = panic::catch_unwind(|| {
        let whole = Reduction::default();
        let mut left = Left::new(&whole);
        run_left::<W>(seed, &mut left, 0);
        left.parts
    });
    parts.unwrap_or_default().smaller(reduction, step)
}

fn run_left<W: Reduced + ?Sized>(seed: u64, left: &mut Left<'_>, kept_records: usize) -> SeedRun {
    SeedRun::of(|result| W::run(seed, left, kept_records, result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::WORKLOADS;

    #[test]
    fn less_approaches_a_number_from_below() {
        assert_eq!(less(60, 0).collect::<Vec<_>>(), [0, 30, 45, 53, 57, 59]);
        assert_eq!(less(3, 1).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(less(2, 2).count(), 0);
    }

    #[test]
    fn smaller_worlds_of_each_workload_run_and_find_nothing() {
        for workload in WORKLOADS {
            let Some(reducible) = workload.reducible else { continue };
            for seed in 0..4 {
                let mut reduction = Reduction::default();
                for step in ReductionStep::ALL {
                    let candidates = (reducible.smaller)(seed, &reduction, step);
                    for candidate in candidates.iter().take(2) {
                        assert_ne!(*candidate, reduction);
                        assert_eq!(candidate.to_string().parse().as_ref(), Ok(candidate));
                        let run = (reducible.run)(seed, candidate, 0).expect("the world has the parts");
                        assert_eq!(run.findings, [], "{}, seed {seed}, {candidate}", workload.name);
                    }
                    reduction = candidates.into_iter().next_back().unwrap_or(reduction);
                }
            }
        }
    }

    #[test]
    fn reductions_take_faults_and_operations_away() {
        for (name, text) in [
            ("rc", "faults=none,operations=3+2"),
            ("filter", "faults=none,connections=1,operations=5+0"),
            ("objects", "faults=none"),
            ("failover-cases", "faults=none,connections=1,operations=3+2"),
        ] {
            let workload = WORKLOADS.iter().find(|workload| workload.name == name).expect("a workload");
            let run = workload.reducible.expect("smaller worlds").run;
            for seed in 0..5 {
                let whole = (workload.run)(seed, 0);
                assert_eq!(run(seed, &Reduction::default(), 0).as_ref(), Ok(&whole), "{name} {seed}");
                let small =
                    run(seed, &text.parse().expect("a reduction"), 0).expect("the world has the parts");
                assert_eq!((small.faults, &small.findings), (0, &Vec::new()), "{name} {seed}");
                let most = if name == "objects" { u64::MAX } else { 5 };
                assert!(small.operations <= most, "{name} {seed}: {}", small.operations);
            }
        }
    }

    #[test]
    fn reduction_that_a_world_cannot_have_is_refused() {
        let (rc, seed) = (WORKLOADS.iter().find(|workload| workload.name == "rc").expect("rc"), 6);
        for text in ["faults=99", "rails=1", "connections=1"] {
            let run = rc.reducible.expect("smaller worlds").run;
            let error = run(seed, &text.parse().expect("a reduction"), 0).expect_err(text).to_string();
            assert!(error.contains("seed 6"), "{error}");
        }
    }
}
