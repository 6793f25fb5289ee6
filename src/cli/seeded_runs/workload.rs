//! The workloads of `mitra sim`: those of the crate `sim`, and the consensus protocols.

use std::panic::{self, AssertUnwindSafe};

use anyhow::Context;
use mitra_consensus_check::{CATALOGUE, CatalogueEntry, Violation};
use mitra_sim::seeded::{Finding, SeedRun, SeededWorkload, WORKLOADS};

/// A workload.
pub(super) struct Workload {
    pub(super) name: &'static str,
    /// What a world contains, in one line.
    pub(super) world: &'static str,
    /// What [`SeedRun::operations`] counts.
    pub(super) unit: &'static str,
    source: Source,
}

enum Source {
    Simulated(&'static SeededWorkload),
    Protocol(&'static CatalogueEntry),
}

impl Workload {
    /// Returns all workloads.
    pub(super) fn all() -> impl Iterator<Item = Workload> {
        let simulated = WORKLOADS.iter().map(|w| Workload {
            name: w.name,
            world: w.world,
            unit: "operations",
            source: Source::Simulated(w),
        });
        let protocols = CATALOGUE.iter().map(|entry| Workload {
            name: entry.name,
            world: entry.simulated_world,
            unit: "steps",
            source: Source::Protocol(entry),
        });
        simulated.chain(protocols)
    }

    /// Returns the workload with this name.
    pub(super) fn find(name: &str) -> anyhow::Result<Workload> {
        Workload::all().find(|w| w.name == name).with_context(|| {
            let names: Vec<&str> = Workload::all().map(|w| w.name).collect();
            format!("there is no workload {name:?}; the workloads are: {}", names.join(", "))
        })
    }

    /// Runs one seed, and keeps the last records of its trace. A panic is a finding.
    pub(super) fn run(&self, seed: u64, kept_records: usize) -> SeedRun {
        let run = || match self.source {
            Source::Simulated(workload) => (workload.run)(seed, kept_records),
            Source::Protocol(entry) => run_protocol(entry, seed),
        };
        panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let finding = Finding::violation("panic", text.unwrap_or_default());
            SeedRun { findings: vec![finding], ..SeedRun::default() }
        })
    }

    /// Returns the line that repeats a seed.
    pub(super) fn reproduce_command(&self, seed: u64) -> String {
        format!("REPRODUCE WITH: mitra sim --workload {} --seeds 1 --from {seed}", self.name)
    }
}

fn run_protocol(entry: &CatalogueEntry, seed: u64) -> SeedRun {
    let ran = entry.run(seed);
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
        trace: Vec::new(),
    }
}
