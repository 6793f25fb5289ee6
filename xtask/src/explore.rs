//! `cargo xtask explore`: writes `crates/model-check/tests/explorations.txt`.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::nextest::ROTATION;
use crate::{root, suite};

const RECORD: &str = "crates/model-check/tests/explorations.txt";

/// Explores all models whole. An exploration that finds something, or whose test no longer exists,
/// is not in the new record.
pub(crate) fn run() -> Result<ExitCode> {
    fs::write(root().join(RECORD), "").with_context(|| format!("cannot write {RECORD}"))?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["nextest", "run"]).args(suite::SUITE).args(["-E", "package(mitra-model-check-tests)"]);
    cargo.env_remove(ROTATION).env("MITRA_WRITE_EXPLORATIONS", "1").current_dir(root());
    let is_success = cargo.status().context("cannot run cargo")?.success();
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
