//! `cargo xtask test`: runs `cargo xtask setup`, then all tests, then the search for mutants. Ends with a
//! summary.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::test_results::Summary;
use crate::{nextest, root, setup};

/// The arguments of the runs of nextest. The mutants are in a build of their own, so that no other test runs
/// with them. With `--workspace`, their crates use the other packages as the first run has built them.
const RUNS: [&[&str]; 3] = [
    &["--workspace"],
    &["--package", "mitra-mutants", "--features", "enabled"],
    &["--workspace", "--features", "mitra-sweep/mutants", "--test", "mutants"],
];

/// Nextest does not run the tests in documentation.
const DOC_TESTS: [&str; 4] = ["test", "--workspace", "--doc", "--no-fail-fast"];

/// Installs missing tools, then runs every test of the workspace, or those that the arguments choose.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    setup::run()?;
    let mut summary = Summary::default();
    if args.is_empty() {
        let status = Command::new(env!("CARGO")).args(DOC_TESTS).current_dir(root()).status();
        if !status.context("cannot run cargo")?.success() {
            summary.failed_commands.push(format!("cargo {}", DOC_TESTS.join(" ")));
        }
    }
    // Arguments choose tests of the workspace.
    let runs = if args.is_empty() { &RUNS[..] } else { &RUNS[..1] };
    for run in runs {
        let run = run.iter().copied().map(String::from).chain(args.iter().cloned());
        nextest::run(&run.collect::<Vec<_>>(), &mut summary)?;
    }
    print!("{summary}");
    Ok(if summary.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
