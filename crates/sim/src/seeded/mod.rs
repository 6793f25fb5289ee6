//! Workloads that `mitra sim` runs: one world for each seed, which determines the configuration, the faults and the schedule.
//!
//! A world has two phases. In the *safety phase*, faults happen, and each reported outcome must be true. Then the faults stop, and the
//! *liveness phase* begins, in which everything that was posted must finish. Each violated rule is a [`Finding`].
//!
//! A new workload is an entry of [`WORKLOADS`].

mod failover;
mod filter;
mod objects;
mod rc;
mod verdict_findings;

/// All workloads, by name.
pub const WORKLOADS: &[SeededWorkload] = &[FAILOVER, FILTER, OBJECTS, RC];

const FAILOVER: SeededWorkload = SeededWorkload {
    name: "failover",
    world: "a vQP, or queue pairs with a shared backup, with 1 to 8 rails of different kinds; links, NICs and hosts fail; both ends post operations of all kinds",
    run: failover::run,
};

const FILTER: SeededWorkload = SeededWorkload {
    name: "filter",
    world: "clients and a server of the exactly-once RPC, over UD with random noise, restarts and evictions, or over vQPs of the policy blanket while a rail fails",
    run: filter::run,
};

const RC: SeededWorkload = SeededWorkload {
    name: "rc",
    world: "two RC queue pairs over one link with random noise, NIC timing and queue sizes; both ends post operations of all kinds",
    run: rc::run,
};

const OBJECTS: SeededWorkload = SeededWorkload {
    name: "objects",
    world: "1 to 3 clients of shared cells, a counter, a latch, a mutex and mailboxes over vQPs on 2 or 3 rails; links and NICs fail, evidence is lost, clients crash",
    run: objects::run,
};

/// A workload of `mitra sim`.
#[derive(Clone, Copy, Debug)]
pub struct SeededWorkload {
    /// The name on the command line.
    pub name: &'static str,
    /// What a world contains, in one line.
    pub world: &'static str,
    /// Runs the world of a seed, and keeps the last records of its trace, as many as the second argument says. The results other than the
    /// trace do not depend on the second argument.
    pub run: fn(u64, usize) -> SeedRun,
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
    /// What the seed drew, and the last records of the world's trace. Empty if no record was to be kept.
    pub trace: Vec<String>,
}

/// A violated rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The name of the checker that found it, stable for scripts.
    pub checker: &'static str,
    /// Whether something that should happen did not happen in the liveness phase. If not, something happened that must not happen.
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
