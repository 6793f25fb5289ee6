//! `cargo xtask test`: runs `cargo xtask setup`, then all tests. Ends with a summary.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::test_results::Summary;
use crate::{nextest, root, setup};

/// The arguments of cargo that choose the whole suite. The mutants are compiled in. A mutant is off
/// until its search switches it on for the search's thread, so one build serves all tests.
pub(crate) const SUITE: [&str; 3] = ["--workspace", "--features", "mitra/mutants,mitra-sweep/mutants"];

/// Nextest does not run the tests in documentation.
const DOC_TESTS: [&str; 3] = ["test", "--doc", "--no-fail-fast"];

/// Installs missing tools, then runs every test of the workspace, or the tests that the arguments
/// choose.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    setup::run()?;
    let mut summary = Summary::default();
    if args.is_empty() {
        let status = Command::new(env!("CARGO")).args(DOC_TESTS).args(SUITE).current_dir(root()).status();
        if !status.context("cannot run cargo")?.success() {
            summary.failed_commands.push(format!("cargo {}", DOC_TESTS.join(" ")));
        }
    }
    let suite = SUITE.iter().copied().map(String::from).chain(args.iter().cloned());
    nextest::run(&suite.collect::<Vec<_>>(), &mut summary)?;
    print!("{summary}");
    Ok(if summary.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
