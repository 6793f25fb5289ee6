//! The two tiers of tests: what runs at each landing, and what only `cargo xtask test --all` runs.
//!
//! A landing (`cargo xtask test`, `.ci/run`) runs every test once. `MITRA_ROTATION` is the commit
//! then, by which these choose a part of their work, another part at each commit:
//!
//! | what | a landing runs | `--all` runs |
//! |---|---|---|
//! | loops over `mitra_prng::seeds` | a quarter of the seeds | all, from seed 0 |
//! | loops over `mitra_prng::fault_times` | every fourth time of a fault | every time |
//! | `mitra_test_process::variants` of other tests | one variant | each variant |
//! | rows of `tests/programs`, scenarios of `libibverbs` (`mitra_test_process::variants`) | one kind of link; on one rail, and on two, two with a log, or three | each combination |
//! | features of crates (`cargo xtask features`) | one feature of each crate alone | each feature alone |
//! | explorations of models (`tests/common/explorations.rs` of `model-check`) | 10,000 states, if the record has the sources that the model reads | the whole one |
//!
//! Everything else is in both tiers. The parts of `--all` that are not tests are in [`PARTS`].

/// A part of `cargo xtask test --all`.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    /// The tests in documentation.
    DocTests,
    /// The tests of this slice, from 1 to [`SLICES`], in all variants.
    Tests(u32),
    /// The tests as at a landing, beside busy loops.
    Stress,
    /// The sweeps of [`SWEEP`], with [`SWEEP_FACTOR`] times as many seeds.
    Sweep,
    /// A program and its arguments.
    Command(&'static [&'static str]),
    /// The search for names of mutants in the release.
    NoMutants,
}

/// The tests are divided so that a run that is interrupted repeats a few minutes only.
pub(crate) const SLICES: u32 = 8;

/// The parts in the order in which they run.
pub(crate) const PARTS: &[Part] = &[
    Part { name: "doc-tests", work: Work::DocTests },
    Part { name: "tests-1", work: Work::Tests(1) },
    Part { name: "tests-2", work: Work::Tests(2) },
    Part { name: "tests-3", work: Work::Tests(3) },
    Part { name: "tests-4", work: Work::Tests(4) },
    Part { name: "tests-5", work: Work::Tests(5) },
    Part { name: "tests-6", work: Work::Tests(6) },
    Part { name: "tests-7", work: Work::Tests(7) },
    Part { name: "tests-8", work: Work::Tests(8) },
    Part { name: "features", work: Work::Command(&["cargo", "xtask", "features", "--all"]) },
    Part { name: "release-build", work: Work::Command(&["cargo", "build", "--release", "--quiet"]) },
    Part { name: "release-has-no-mutants", work: Work::NoMutants },
    Part { name: "release-demo", work: Work::Command(&["target/release/mitra", "demo"]) },
    Part {
        name: "release-runs-a-program",
        work: Work::Command(&["target/release/mitra", "run", "--", "ibv_devinfo", "-d", "mitra0"]),
    },
    Part { name: "sweep", work: Work::Sweep },
    Part {
        name: "table-of-failures",
        work: Work::Command(&[
            "target/release/mitra",
            "sim",
            "--workload",
            "failover",
            "--seeds",
            "5000",
            "--coverage",
        ]),
    },
    Part { name: "stress", work: Work::Stress },
];

/// The workloads that are run from seeds that depend on the commit, with the number of seeds at a
/// landing. `--all` runs [`SWEEP_FACTOR`] times as many.
pub(crate) const SWEEP: &[(&str, u64)] = &[
    ("failover", 1000),
    ("revocation", 3000),
    ("restart", 500),
    ("ledger", 500),
    ("objects", 300),
    ("filter", 1000),
    ("packets", 1000),
    ("rc", 1000),
    ("kv", 200),
    ("memory-nodes", 1000),
    ("replicated-log", 500),
    ("rail-negotiation", 500),
    ("rail-questions", 2000),
    ("failover-rings", 500),
    ("txn", 500),
];

pub(crate) const SWEEP_FACTOR: u64 = 10;
