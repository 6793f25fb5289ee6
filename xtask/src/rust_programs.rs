//! Installs the Rust programs of `tests/programs`: the examples of crates that wrap libibverbs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use mitra_test_process::setup_dir;

/// A crate on crates.io, its version, and the examples that the tests run.
const CRATES: &[(&str, &str, &[&str])] = &[
    // `sideway` loads libibverbs and librdmacm at run time. The server of its example `cmtime` does
    // not end.
    ("sideway", "0.4.3", &["rc_pingpong", "rc_pingpong_split", "show_gids"]),
    // `ibverbs` is linked with libibverbs.
    ("ibverbs", "0.9.2", &["loopback"]),
];

/// Returns the directory in whose `bin` the tests look for the programs.
fn directory() -> PathBuf {
    setup_dir().join("rust-programs")
}

/// Builds the programs of the tests that are missing.
pub(crate) fn install() -> Result<()> {
    install_into(&directory(), CRATES)
}

/// Builds the examples that are missing in a directory's `bin`, with the dependencies that each
/// crate's own lock file names.
pub(crate) fn install_into(directory: &Path, crates: &[(&str, &str, &[&str])]) -> Result<()> {
    let target = directory.join("target");
    let mut has_built = false;
    for (name, version, examples) in crates {
        let installed = directory.join(format!("{name}-{version}"));
        let bin = directory.join("bin");
        if installed.exists() && examples.iter().all(|example| bin.join(example).exists()) {
            continue;
        }
        println!("setup: building the examples of {name} {version}");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["install", "--quiet", "--locked", "--debug", "--force", &format!("{name}@{version}")]);
        cargo.args(examples.iter().flat_map(|example| ["--example", *example]));
        cargo.arg("--root").arg(directory).arg("--target-dir").arg(&target);
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "0");
        let status = cargo.status().context("cannot run cargo")?;
        ensure!(status.success(), "cannot build the examples of {name} {version}; see the output above");
        fs::write(&installed, "")?;
        has_built = true;
    }
    if has_built {
        // Only the programs are needed, and the rest is larger than half a gigabyte.
        fs::remove_dir_all(&target)?;
    }
    Ok(())
}
