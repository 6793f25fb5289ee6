//! `cargo xtask test`: runs `cargo xtask setup`, then the tests. Ends with a summary.

use std::process::ExitCode;

use anyhow::Result;

use crate::full_run::{self, Shard};
use crate::suite::{doc_tests, rotation, suite_and};
use crate::test_results::Summary;
use crate::{nextest, setup};

/// Run setup, then every test once. Ends with the slowest, the flaky and the failed tests
///
/// Some tests choose a part of their work by the commit (`MITRA_ROTATION`). xtask/src/tiers.rs
/// lists them, and what --all adds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run all variants, seeds and explorations, and the other parts of a full run. A run that is
    /// interrupted goes on where it was. With arguments after --, run all variants of these tests
    /// only
    #[arg(long)]
    all: bool,
    /// Run only the parts of --all at positions I, I+N, I+2N ...
    #[arg(long, requires = "all", conflicts_with = "args", value_name = "I/N")]
    shard: Option<Shard>,
    /// Arguments for `cargo nextest run`, such as a part of the names of tests
    #[arg(last = true)]
    args: Vec<String>,
}

/// Installs missing tools, then runs every test of the workspace, or the tests that the arguments
/// choose.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let is_success = match (args.all, args.args.is_empty()) {
        (true, true) => full_run::run(args.shard)?,
        (is_all, is_whole_suite) => {
            setup::run()?;
            let rotation = if is_all { None } else { rotation() };
            let mut summary = Summary::default();
            if is_whole_suite {
                doc_tests(&mut summary)?;
            }
            nextest::run(&suite_and(args.args.iter().cloned()), rotation.as_deref(), &mut summary)?;
            print!("{summary}");
            summary.failed() == 0
        }
    };
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
