//! `cargo xtask package`: makes the packages of a release in `target/package-out`: a tarball, a
//! Debian package and a wheel, each with the same binary, and `SHA256SUMS`. `deploy/install.sh` and
//! docs/ci.md install them.

mod archives;
mod binary;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Uid;

use crate::root;

/// Make the packages of a release: a tarball, a Debian package, a wheel, and SHA256SUMS
///
/// Builds `mitra` once, with the profile `dist`. All packages have this binary.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask package            # writes to target/package-out
  cargo xtask package --check    # as root: also installs and runs each package in a fresh Debian 12
  sudo xtask/package/check target/package-out    # only the second part")]
pub(crate) struct Args {
    /// Also install and run each package in a fresh Debian 12: needs root, debootstrap, the network
    /// and 1 GB below $TMPDIR for two minutes
    #[arg(long)]
    check: bool,
}

/// The directory of the packages, relative to the root. The assets in `[package.metadata.deb]` of
/// the root's Cargo.toml name its directory `stage`.
const OUT: &str = "target/package-out";

/// The oldest C library that the packages need: 2.34.
const GLIBC_MINOR: u32 = 34;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &Args) -> Result<()> {
    let check = own("check");
    if args.check && !Uid::effective().is_root() {
        bail!(
            "--check makes a file system of its own, which needs root: run `cargo xtask package`, and then \
             `sudo {} {OUT}`",
            check.display()
        );
    }
    ensure!(cfg!(target_arch = "x86_64"), "the packages are for x86-64: make them on such a machine");
    require("cargo-deb", "cargo install cargo-deb --locked")?;
    require("dpkg-shlibdeps", "apt-get install dpkg-dev")?;
    if args.check {
        require("debootstrap", "apt-get install debootstrap")?;
    }
    let binary = binary::build()?;
    let glibc_minor = binary::glibc_minor(&binary)?;
    ensure!(
        glibc_minor <= GLIBC_MINOR,
        "the binary needs glibc 2.{glibc_minor}, and the packages promise 2.{GLIBC_MINOR}: build them on Debian 12"
    );

    let out = root().join(OUT);
    match fs::remove_dir_all(&out) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot empty {}", out.display()));
        }
        _ => {}
    }
    let stage = out.join("stage");
    archives::stage(&binary, &stage)?;
    let packages = [archives::tarball(&stage, &out)?, debian_package(&out)?, archives::wheel(&stage, &out)?];
    archives::sums(&out)?;
    for package in packages {
        println!("{OUT}/{package}");
    }
    println!("{OUT}/SHA256SUMS");
    if args.check {
        succeed(Command::new(&check).arg(&out))?;
    }
    Ok(())
}

/// Makes the Debian package from the staged files, and returns its name.
fn debian_package(out: &Path) -> Result<String> {
    let name = format!("mitra_{VERSION}_amd64.deb");
    let mut cargo_deb = Command::new("cargo-deb");
    cargo_deb.args(["--no-build", "--no-strip", "--package", "mitra", "--output"]);
    cargo_deb.arg(out.join(&name)).stdout(Stdio::null());
    succeed(cargo_deb.env("SOURCE_DATE_EPOCH", date()?).current_dir(root()))?;
    Ok(name)
}

/// Returns the time of the commit in seconds, which all files of the packages have.
fn date() -> Result<String> {
    let mut git = Command::new("git");
    let time = output(git.args(["log", "-1", "--format=%ct"]).current_dir(root()))?;
    Ok(time.trim().to_owned())
}

/// Fails with the way to install a program if it does not start.
fn require(program: &str, install: &str) -> Result<()> {
    match Command::new(program).arg("--version").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{program} is not installed: {install}")
        }
        started => started.map(drop).with_context(|| format!("cannot run {program}")),
    }
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed ({status}); see above");
    Ok(())
}

/// Returns what a command prints.
fn output(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(bytes(command)?)?)
}

fn bytes(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed ({}): {errors}", output.status);
    Ok(output.stdout)
}

/// Returns the path of a file of this task.
fn own(name: &str) -> PathBuf {
    root().join("xtask/package").join(name)
}
