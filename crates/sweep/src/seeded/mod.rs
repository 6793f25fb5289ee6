//! The workloads that `mitra sim` runs. A seed draws the configuration, the faults and the schedule
//! of one world.
//!
//! A world has two phases. In the *safety phase*, faults happen, and each reported outcome must be
//! true. In the *liveness phase*, the faults have stopped, and all posted work must finish. Each
//! violated rule is a [`Finding`].

mod failover;
mod faults;
mod filter;
mod homes;
mod late_packet;
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

use mitra_failover::{Domain, Policy};
use mitra_verbs::{Error, Provider};

use self::parts::Reduced as _;
use mitra_sim::timeline::Timeline;
use mitra_sim::{Coverage, SimNic, Stalled, World};

pub use reduction::{Extra, Reducible, Reduction, ReductionError, ReductionStep};

/// The bit of a seed that makes the workload `failover` draw only what its first version drew, so
/// that the seeds of the regression list keep their worlds.
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
        name: "failover-rings",
        world: "the worlds of `failover`, with rings of shared memory in place of most cables, which block their sender when they are full, and keep their packets when its link fails",
        run: failover::run_with_rings,
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
        name: "late-packet",
        world: "a vQP on 2 rails; the link of one fails while a switch holds a request back, which arrives up to 128 ms later",
        run: |seed, kept_records| late_packet::run(Policy::Exact, seed, kept_records),
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

/// The workloads that run under a baseline policy, which some of their seeds break.
pub const BASELINES: &[SeededWorkload] = &[SeededWorkload {
    name: "late-packet-delay",
    world: "the worlds of `late-packet` under the baseline `delay`, which executes operations twice",
    run: |seed, kept_records| late_packet::run(Policy::Delay, seed, kept_records),
    has_coverage: true,
    reducible: None,
}];

/// A workload of `mitra sim`.
#[derive(Clone, Copy, Debug)]
pub struct SeededWorkload {
    /// The name on the command line.
    pub name: &'static str,
    /// What a world contains, in one line.
    pub world: &'static str,
    /// Runs the world of a seed. The second argument is the number of trace records that the run
    /// keeps: the last ones. [`SeedRun`] says which results depend on this number.
    pub run: fn(u64, usize) -> SeedRun,
    /// Whether NICs and links fail while operations are in flight, so that runs have a
    /// [`Coverage`].
    pub has_coverage: bool,
    /// How a search shrinks a world that fails.
    pub reducible: Option<Reducible>,
}

/// The result of the world of one seed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SeedRun {
    /// The number of posted operations.
    pub operations: u64,
    /// The number of injected failures of links, NICs and hosts, not counting noise on packets.
    pub faults: u64,
    /// The number of moves away from a rail that an end took for failed because it heard nothing,
    /// although no fault had affected the rail. `None` if the workload does not count them.
    pub false_alarms: Option<u64>,
    /// The violated rules, the most important first.
    pub findings: Vec<Finding>,
    /// A hash of all events, or 0 if the workload has no world. Compare hashes of
    /// runs with the same choice of keeping records: keeping them adds events.
    pub trace_hash: u64,
    /// The operations that were in flight when NICs and links failed.
    pub coverage: Coverage,
    /// The faults of the seed, one a line. Empty if no records are kept.
    pub schedule: Vec<String>,
    /// What the seed drew. Empty if no records are kept.
    pub setup: Vec<String>,
    /// The last records of the trace, and the state at the end. Empty if no records are kept.
    pub trace: Vec<String>,
    /// The last records of the trace, prepared for a drawing. Empty if no records are kept.
    pub timeline: Timeline,
}

impl SeedRun {
    /// Runs a world. An error of a NIC or a queue pair is a finding.
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

    fn must_reach(&mut self, checker: &'static str, reached: Result<(), Stalled>) {
        self.findings.extend(reached.err().map(|stalled| Finding::stuck(checker, stalled.state)));
    }

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
    /// The name of the checker that found the violation. Scripts rely on the name.
    pub checker: &'static str,
    /// Whether the finding is about work that did not finish in the liveness phase, and not about
    /// an event that must not happen.
    pub is_stuck: bool,
    /// A description, of one or more lines.
    pub detail: String,
}

impl Finding {
    /// An event that must not happen.
    pub fn violation(checker: &'static str, detail: impl Into<String>) -> Finding {
        Finding { checker, is_stuck: false, detail: detail.into() }
    }

    /// Work that did not finish.
    pub fn stuck(checker: &'static str, detail: impl Into<String>) -> Finding {
        Finding { checker, is_stuck: true, detail: detail.into() }
    }
}

/// Runs a world until it is done: at most for the time `safety`, and then at most for the time
/// `liveness`. Between the two, `calm` ends faults.
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

fn domain(nics: &[Arc<SimNic>]) -> Result<Arc<Domain>, Error> {
    Domain::new(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())
}
