//! The workloads of `mitra sim`: the workloads of the crate `sim`, and the consensus protocols.

use std::panic::{self, AssertUnwindSafe};

use crate::seeded::{BASELINES, Finding, Reducible, Reduction, SeedRun, SeededWorkload, WORKLOADS};
use mitra_model_check::{
    CATALOGUE, CatalogueEntry, SeedResult, Violation, run_competing_leaders_from_seed,
    run_log_restarts_from_seed, run_memory_node, run_store_from_seed,
};

pub struct Workload {
    /// The name on the command line.
    pub name: &'static str,
    /// The contents of a world, in one line.
    pub world: &'static str,
    /// The unit of [`SeedRun::operations`], in the singular.
    pub unit: &'static str,
    source: Source,
}

enum Source {
    Simulated(&'static SeededWorkload),
    Protocol(&'static CatalogueEntry),
    Seeds(fn(u64) -> SeedResult),
}

/// The worlds that are run from seeds only, so `mitra check` does not have them.
const FROM_SEEDS: [Workload; 4] = [
    Workload {
        name: "kv",
        world: "3 servers, 2 of them may crash, and 3 clients with 8 operations each; 3 memories, 1 of them may crash; client histories are linearizable",
        unit: "step",
        source: Source::Seeds(run_store_from_seed),
    },
    Workload {
        name: "kv-competing-leaders",
        world: "3 servers that depose each other, and 2 clients with 20 operations each; 1 memory; client histories are linearizable",
        unit: "step",
        source: Source::Seeds(run_competing_leaders_from_seed),
    },
    Workload {
        name: "replicated-log-restarts",
        world: "1 process that submits 20 commands and restarts 20 times, over 3 memories; Ω names a leader 30 times; no committed command is lost",
        unit: "step",
        source: Source::Seeds(run_log_restarts_from_seed),
    },
    Workload {
        name: "memory-nodes",
        world: "1 memory node, in main memory or in files, and 2 processes; all crash and restart, connections, NICs and the disk fail; registers are atomic, only who holds the right writes",
        unit: "step",
        source: Source::Seeds(run_memory_node),
    },
];

impl Workload {
    /// Returns all workloads that must find nothing.
    pub fn all() -> impl Iterator<Item = Workload> {
        let simulated = WORKLOADS.iter().map(Workload::simulated);
        let protocols = CATALOGUE.iter().map(|entry| Workload {
            name: entry.name,
            world: entry.simulated_world,
            unit: "step",
            source: Source::Protocol(entry),
        });
        simulated.chain(protocols).chain(FROM_SEEDS)
    }

    /// Returns the workloads under a baseline policy, which find violations.
    pub fn baselines() -> impl Iterator<Item = Workload> {
        BASELINES.iter().map(Workload::simulated)
    }

    /// Returns a workload over simulated NICs, which [`Workload::all`] need not contain.
    pub fn simulated(workload: &'static SeededWorkload) -> Workload {
        Workload {
            name: workload.name,
            world: workload.world,
            unit: "operation",
            source: Source::Simulated(workload),
        }
    }

    /// Returns the workload with this name.
    ///
    /// # Errors
    /// A text that lists the names.
    pub fn find(name: &str) -> Result<Workload, String> {
        let known = || Workload::all().chain(Workload::baselines());
        known().find(|w| w.name == name).ok_or_else(|| {
            let names: Vec<&str> = known().map(|w| w.name).collect();
            format!("there is no workload {name:?}; the workloads are: {}", names.join(", "))
        })
    }

    /// Runs one seed, and keeps the last records of its trace. A panic is a finding.
    pub fn run(&self, seed: u64, kept_records: usize) -> SeedRun {
        catch_panic(|| match self.source {
            Source::Simulated(workload) => (workload.run)(seed, kept_records),
            Source::Protocol(entry) => seed_run(entry.run(seed)),
            Source::Seeds(run_seed) => seed_run(run_seed(seed)),
        })
    }

    /// Returns whether failures of NICs and links meet operations in the workload.
    pub fn has_coverage(&self) -> bool {
        matches!(self.source, Source::Simulated(workload) if workload.has_coverage)
    }

    /// Returns the smaller worlds of the workload, if it has some.
    pub(crate) fn reducible(&self) -> Option<&Reducible> {
        match self.source {
            Source::Simulated(workload) => workload.reducible.as_ref(),
            _ => None,
        }
    }

    /// Runs the reduced world of a seed, like [`Workload::run`].
    ///
    /// # Errors
    /// The reduction takes something away that the world does not have, or the workload has no
    /// smaller worlds.
    pub fn run_reduced(
        &self,
        seed: u64,
        reduction: &Reduction,
        kept_records: usize,
    ) -> Result<SeedRun, String> {
        if reduction.is_empty() {
            return Ok(self.run(seed, kept_records));
        }
        let reducible = self.reducible();
        let reducible =
            reducible.ok_or_else(|| format!("the workload {} has no smaller worlds", self.name))?;
        let mut error = None;
        let run = catch_panic(|| {
            (reducible.run)(seed, reduction, kept_records).unwrap_or_else(|e| {
                error = Some(e.to_string());
                SeedRun::default()
            })
        });
        error.map_or(Ok(run), Err)
    }

    /// Returns the command that repeats the reduced world of a seed.
    pub fn command(&self, seed: u64, reduction: &Reduction) -> String {
        let shrunk = if reduction.is_empty() { String::new() } else { format!(" --shrunk {reduction}") };
        format!("mitra sim --workload {} --seeds 1 --from {seed}{shrunk}", self.name)
    }

    /// Returns the line that repeats a seed.
    pub fn reproduce_command(&self, seed: u64) -> String {
        format!("REPRODUCE WITH: {}", self.command(seed, &Reduction::default()))
    }
}

/// Makes a panic a finding.
fn catch_panic(run: impl FnOnce() -> SeedRun) -> SeedRun {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
        let finding = Finding::violation("panic", text.unwrap_or_default());
        SeedRun { findings: vec![finding], ..SeedRun::default() }
    })
}

fn seed_run(ran: SeedResult) -> SeedRun {
    let findings = ran.violation.map(|violation| {
        let detail = format!("after {} steps, {violation}", ran.steps);
        match violation {
            Violation::Stuck => Finding::stuck("stuck", detail),
            Violation::NoStableLeader => Finding::stuck("no-stable-leader", detail),
            Violation::NotQuiescent => Finding::stuck("not-quiescent", detail),
            Violation::Disagreement => Finding::violation("disagreement", detail),
            Violation::Invalid => Finding::violation("invalid", detail),
            Violation::Property(_) => Finding::violation("property", detail),
            Violation::NotLinearizable => Finding::violation("not-linearizable", detail),
        }
    });
    SeedRun {
        operations: ran.steps,
        faults: u64::from(ran.faults),
        findings: findings.into_iter().collect(),
        ..SeedRun::default()
    }
}
