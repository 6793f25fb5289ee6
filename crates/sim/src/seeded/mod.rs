//! Workloads that `mitra sim` runs: one world for each seed, which determines the configuration,
//! the faults and the schedule.
//!
//! A world has two phases. In the *safety phase*, faults happen, and each reported outcome must be
//! true. Then the faults stop, and the *liveness phase* begins, in which everything that was posted
//! must finish. Each violated rule is a [`Finding`].
//!
//! A new workload is an entry of [`WORKLOADS`].

mod failover;
mod faults;
mod filter;
mod homes;
mod ledger;
mod memory;
mod objects;
mod packets;
mod parts;
mod rc;
mod reduction;
mod restart;
mod revocation;
mod txn;
mod verdict_findings;

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::Domain;
use mitra_verbs::{Error, Provider};

use self::parts::Reduced as _;
use crate::timeline::Timeline;
use crate::{Coverage, SimNic, Stalled, World};

pub use reduction::{Extra, Reducible, Reduction, ReductionError, ReductionStep};

/// A seed with this bit has the world that the workload `failover` drew for it before it drew more,
/// so that the regression list keeps its worlds.
pub const FIRST_GENERATION: u64 = 1 << 63;

/// All workloads, by name.
pub const WORKLOADS: &[SeededWorkload] = &[
    SeededWorkload {
        name: "failover",
        world: "a vQP, or queue pairs with a shared backup, with 1 to 8 rails of different kinds; links, NICs and hosts fail; both ends post operations of all kinds",
        run: |seed, kept_records| failover::REDUCIBLE.run_whole(seed, kept_records),
        has_coverage: true,
        reducible: Some(failover::REDUCIBLE),
    },
    SeededWorkload {
        name: "failover-cases",
        world: "the worlds of `failover`, of which each combines certain operations with a failure at a certain stage, because independent draws rarely do",
        run: |seed, kept_records| failover::REDUCIBLE_FOCUSED.run_whole(seed, kept_records),
        has_coverage: true,
        reducible: Some(failover::REDUCIBLE_FOCUSED),
    },
    SeededWorkload {
        name: "failover-limits",
        world: "the worlds of `failover`, with epochs and sequence numbers that may be used up, and with NICs whose completions are late",
        run: failover::run_with_limits,
        has_coverage: true,
        reducible: None,
    },
    SeededWorkload {
        name: "filter",
        world: "clients and a server of the exactly-once RPC, over UD with random noise, restarts and evictions, or over vQPs of the policy blanket while a rail fails",
        run: |seed, kept_records| filter::Filter::REDUCIBLE.run_whole(seed, kept_records),
        has_coverage: true,
        reducible: Some(filter::Filter::REDUCIBLE),
    },
    SeededWorkload {
        name: "homes",
        world: "three processes in a ring, each with a word that the others increment by atomics over many vQPs; links, addresses and hosts fail, and the homes must agree",
        run: homes::run,
        has_coverage: true,
        reducible: None,
    },
    SeededWorkload {
        name: "ledger",
        world: "the ledger of a vQP, with messages of up to 1 GiB and without their data; rails fail, and a model knows which packets they executed",
        run: ledger::run,
        has_coverage: false,
        reducible: None,
    },
    SeededWorkload {
        name: "objects",
        world: "1 to 3 clients of shared cells, a counter, a latch, a mutex and mailboxes over vQPs on 2 or 3 rails; links and NICs fail, evidence is lost, clients crash",
        run: |seed, kept_records| objects::Objects::REDUCIBLE.run_whole(seed, kept_records),
        has_coverage: true,
        reducible: Some(objects::Objects::REDUCIBLE),
    },
    SeededWorkload {
        name: "packets",
        world: "one RC queue pair whose peer sends copies, gaps, refused requests and forgeries; a model of the responder says what each must cause",
        run: packets::run,
        has_coverage: false,
        reducible: None,
    },
    SeededWorkload {
        name: "rc",
        world: "two RC queue pairs over one link with random noise, NIC timing and queue sizes; both ends post operations of all kinds",
        run: |seed, kept_records| rc::RcWorld::REDUCIBLE.run_whole(seed, kept_records),
        has_coverage: true,
        reducible: Some(rc::RcWorld::REDUCIBLE),
    },
    SeededWorkload {
        name: "restart",
        world: "a process crashes and starts again at the same addresses; packets of its old vQP are held back until the new one runs",
        run: restart::run,
        has_coverage: false,
        reducible: None,
    },
    SeededWorkload {
        name: "revocation",
        world: "a vQP over 2 or 3 rails that fail; a region is deregistered, or a window is invalidated or freed, by either end while requests on it are in flight",
        run: revocation::run,
        has_coverage: true,
        reducible: None,
    },
    SeededWorkload {
        name: "txn",
        world: "2 or 3 coordinators run transactions over vQPs on 2 or 3 memory nodes; links and NICs fail, coordinators and recoverers die, sleep, and wake after they were taken over",
        run: |seed, kept_records| txn::Transactions::REDUCIBLE.run_whole(seed, kept_records),
        has_coverage: true,
        reducible: Some(txn::Transactions::REDUCIBLE),
    },
];

/// A workload of `mitra sim`.
#[derive(Clone, Copy, Debug)]
pub struct SeededWorkload {
    /// The name on the command line.
    pub name: &'static str,
    /// What a world contains, in one line.
    pub world: &'static str,
    /// Runs the world of a seed, and keeps the last records of its trace, as many as the second
    /// argument says. The results other than the trace do not depend on the second argument.
    pub run: fn(u64, usize) -> SeedRun,
    /// Whether failures of NICs and links meet operations in it, so that its runs have a
    /// [`Coverage`].
    pub has_coverage: bool,
    /// Its smaller worlds, with which a failure is shrunk, if it has some.
    pub reducible: Option<Reducible>,
}

/// The result of the world of one seed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SeedRun {
    /// The number of posted operations.
    pub operations: u64,
    /// The number of injected failures of links, NICs and hosts, not counting noise on packets.
    pub faults: u64,
    /// The violated rules, the most important first. Empty if the run is correct.
    pub findings: Vec<Finding>,
    /// A hash of all events. It depends on the seed, and on whether records are kept. 0 if the
    /// workload has none.
    pub trace_hash: u64,
    /// What failures met, if the workload has a world of hosts and NICs.
    pub coverage: Coverage,
    /// The faults of the seed, one a line. Empty if no record was to be kept, or the workload does
    /// not schedule faults.
    pub schedule: Vec<String>,
    /// What the seed drew. Empty if no record was to be kept.
    pub setup: Vec<String>,
    /// The last records of the world's trace, and the state at the end. Empty if no record was to
    /// be kept.
    pub trace: Vec<String>,
    /// The last records of the world's trace in a form that can be drawn. Empty if no record was to
    /// be kept, or the workload has no world of hosts and NICs.
    pub timeline: Timeline,
}

impl SeedRun {
    /// Runs a world, in which the NICs may refuse a call that must succeed.
    fn of(run: impl FnOnce(&mut SeedRun) -> Result<(), Error>) -> SeedRun {
        let mut result = SeedRun::default();
        if let Err(error) = run(&mut result) {
            result.violation("connect", error.to_string());
        }
        result
    }

    fn violation(&mut self, checker: &'static str, detail: impl Into<String>) {
        self.findings.push(Finding::violation(checker, detail));
    }

    fn stuck(&mut self, checker: &'static str, detail: impl Into<String>) {
        self.findings.push(Finding::stuck(checker, detail));
    }

    /// Adds a finding if the world has not reached what it must reach.
    fn must_reach(&mut self, checker: &'static str, reached: Result<(), Stalled>) {
        self.findings.extend(reached.err().map(|stalled| Finding::stuck(checker, stalled.state)));
    }

    /// Adds the trace of a world, and a description of what the seed drew.
    fn keep_trace(&mut self, world: &World, kept_records: usize, setup: impl FnOnce() -> Vec<String>) {
        self.trace_hash = world.trace_hash();
        self.coverage = world.coverage();
        if kept_records > 0 {
            self.setup.extend(setup());
            self.trace.extend(world.trace_tail(kept_records));
            self.timeline = world.timeline();
        }
    }
}

/// A violated rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The name of the checker that found it, stable for scripts.
    pub checker: &'static str,
    /// Whether something that should happen did not happen in the liveness phase. If not, something
    /// happened that must not happen.
    pub is_stuck: bool,
    /// What happened.
    pub detail: String,
}

impl Finding {
    /// Creates a finding of a checker for something that must not happen.
    pub fn violation(checker: &'static str, detail: impl Into<String>) -> Finding {
        Finding { checker, is_stuck: false, detail: detail.into() }
    }

    /// Creates a finding of a checker for something that did not happen.
    pub fn stuck(checker: &'static str, detail: impl Into<String>) -> Finding {
        Finding { checker, is_stuck: true, detail: detail.into() }
    }
}

/// Runs a world until it is done: for the time `safety`, and then for the time `liveness` without
/// the faults that `calm` ends.
fn run_phases(
    world: &mut World,
    mut is_done: impl FnMut(&World) -> bool,
    safety: Duration,
    calm: fn(&mut World),
    liveness: Duration,
) -> Result<(), Stalled> {
    world.run_until(&mut is_done, safety).or_else(|_| {
        calm(world);
        world.run_until(is_done, liveness)
    })
}

/// Opens the domain of a host with these NICs.
fn domain(nics: &[Arc<SimNic>]) -> Result<Arc<Domain>, Error> {
    Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
}
