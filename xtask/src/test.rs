//! `cargo xtask test`: runs `cargo xtask setup`, then all tests.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{root, setup};

/// Installs missing tools, then runs every test of the workspace.
pub(crate) fn run(args: &[String]) -> Result<()> {
    setup::run()?;
    let status = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(args)
        .current_dir(root())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("tests failed; see the output above");
    }
    Ok(())
}
