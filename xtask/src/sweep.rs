//! `cargo xtask sweep`: the workloads of `tiers.rs`, from seeds that nobody has run before.

use std::process::Command;

use anyhow::{Context, Result};

use crate::test_results::Summary;
use crate::tiers::SWEEP;
use crate::{commit, root};

/// Runs `factor` times the seeds of a landing of each workload. They begin at a number that depends
/// on the commit, so the same commit passes or fails each time.
pub(crate) fn run(mitra: &str, factor: u64, summary: &mut Summary) -> Result<()> {
    let commit = commit().context("the seeds of a sweep are those of a commit")?;
    let digits = commit.get(..10).context("a commit has 40 digits")?;
    let from = u64::from_str_radix(digits, 16)?.to_string();
    for (workload, seeds) in SWEEP {
        let seeds = (seeds * factor).to_string();
        let args = ["sim", "--workload", workload, "--seeds", &seeds, "--from", &from];
        let status = Command::new(root().join(mitra)).args(args).current_dir(root()).status();
        let status = status.with_context(|| format!("cannot run {mitra}"))?;
        summary.add_command(&format!("{mitra} {}", args.join(" ")), status.success());
    }
    Ok(())
}
