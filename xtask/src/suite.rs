//! The suite: what cargo builds and runs for all tests.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};

use crate::test_results::Summary;
use crate::{commit, nextest, root};

/// The arguments of cargo that choose the whole suite. The mutants are compiled in. A mutant is off
/// until its search switches it on for the search's thread, so one build serves all tests.
pub(crate) const SUITE: [&str; 3] = ["--workspace", "--features", "mitra/mutants,mitra-sweep/mutants"];

/// Nextest does not run the tests in documentation.
const DOC_TESTS: [&str; 3] = ["test", "--doc", "--no-fail-fast"];

/// Returns the text of `MITRA_ROTATION` at a landing: that of the environment, or the commit.
/// Outside of a git checkout there is none, and each test runs all its variants.
pub(crate) fn rotation() -> Option<String> {
    env::var(nextest::ROTATION).ok().filter(|text| !text.is_empty()).or_else(commit)
}

/// Returns the arguments of the whole suite, followed by others.
pub(crate) fn suite_and(args: impl IntoIterator<Item = String>) -> Vec<String> {
    SUITE.iter().copied().map(String::from).chain(args).collect()
}

/// Runs the tests in documentation, and adds them to the summary as one command.
pub(crate) fn doc_tests(summary: &mut Summary) -> Result<()> {
    let status = Command::new(env!("CARGO")).args(DOC_TESTS).args(SUITE).current_dir(root()).status();
    let is_success = status.context("cannot run cargo")?.success();
    summary.add_command(&format!("cargo {}", DOC_TESTS.join(" ")), is_success);
    Ok(())
}
