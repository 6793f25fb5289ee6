//! Installs and runs cargo-nextest. `.config/nextest.toml` says how it runs the tests.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::root;
use crate::test_results::{self, Outcome, Summary};

/// The environment variable by which tests choose a part of their work (`mitra_prng::rotation`).
pub(crate) const ROTATION: &str = "MITRA_ROTATION";

const CONFIG: &str = ".config/nextest.toml";

/// The file of results that a run writes, below the root even if cargo's target directory is
/// elsewhere.
const JUNIT: &str = "target/nextest/default/junit.xml";

/// Installs cargo-nextest if it is missing or older than the version that the configuration names.
pub(crate) fn install() -> Result<()> {
    let config = fs::read_to_string(root().join(CONFIG)).with_context(|| format!("cannot read {CONFIG}"))?;
    let required = required_version(&config)
        .with_context(|| format!("{CONFIG} has no line `nextest-version = \"1.2.3\"`; write one"))?;
    let output = Command::new(env!("CARGO")).args(["nextest", "--version"]).output();
    let output = output.context("cannot run cargo")?;
    if version_of(&String::from_utf8_lossy(&output.stdout)).is_some_and(|installed| installed >= required) {
        return Ok(());
    }
    println!("setup: installing cargo-nextest");
    let mut cargo = Command::new(env!("CARGO"));
    let status = cargo.args(["install", "--locked", "cargo-nextest"]).status().context("cannot run cargo")?;
    ensure!(status.success(), "`cargo install --locked cargo-nextest` failed; see the output above");
    Ok(())
}

fn required_version(config: &str) -> Option<Vec<u64>> {
    let version = config.lines().find_map(|line| line.strip_prefix("nextest-version = "))?;
    numbers(version.trim().trim_matches('"'))
}

/// Reads the version from the first line of `cargo nextest --version`:
/// `cargo-nextest 0.9.143 (60fa45f63 2026-08-04)`.
fn version_of(text: &str) -> Option<Vec<u64>> {
    numbers(text.strip_prefix("cargo-nextest ")?.split_whitespace().next()?)
}

fn numbers(version: &str) -> Option<Vec<u64>> {
    version.split('.').map(|number| number.parse().ok()).collect()
}

/// Runs the tests that the arguments choose, and adds them to the summary. Without a rotation, each
/// test runs all its variants. Nextest writes to this process's streams, and is in its process
/// group, so Ctrl-C ends both.
pub(crate) fn run(args: &[String], rotation: Option<&str>, summary: &mut Summary) -> Result<()> {
    let junit = root().join(JUNIT);
    // A run that fails before the tests does not replace the file.
    match fs::remove_file(&junit) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {JUNIT}"));
        }
        _ => {}
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["nextest", "run"]).args(args).env_remove(ROTATION).current_dir(root());
    let status = cargo.envs(rotation.map(|text| (ROTATION, text))).status();
    let is_success = status.context("cannot run cargo")?.success();
    let tests = match fs::read_to_string(&junit) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        text => test_results::parse(&text.with_context(|| format!("cannot read {JUNIT}"))?)?,
    };
    if !is_success && !tests.iter().any(|test| matches!(test.outcome, Outcome::Failed { .. })) {
        summary.failed_commands.push(format!("cargo nextest run {}", args.join(" ")));
    }
    summary.tests.extend(tests);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let required = required_version("# a comment\nnextest-version = \"0.9.143\"\n").unwrap();
        assert!(
            version_of("cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143\n").unwrap()
                >= required
        );
        assert!(version_of("cargo-nextest 0.10.0\n").unwrap() > required);
        assert!(version_of("cargo-nextest 0.9.99\n").unwrap() < required);
        assert_eq!(version_of("error: no such command: `nextest`\n"), None);
    }

    #[test]
    fn configuration_names_a_version() {
        assert!(required_version(&fs::read_to_string(root().join(CONFIG)).unwrap()).is_some());
    }
}
