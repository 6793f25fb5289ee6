//! Builds the files that the rows need: the preload library, the replacement library, and the MPI program that checks data.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Builds the preload library beside the `mitra` of this test, where `mitra run` looks for it.
pub(crate) fn preload() {
    let dir = Path::new(env!("CARGO_BIN_EXE_mitra")).parent().expect("mitra is in a directory");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--package", "mitra-preload", "--target-dir"])
        .arg(dir.parent().expect("the directory has a parent"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
    assert!(status.success(), "cannot build mitra-preload");
}

/// Builds the replacement library in the same target directory, and returns its directory.
pub(crate) fn replacement() -> Result<PathBuf, String> {
    REPLACEMENT.clone()
}

static REPLACEMENT: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_BIN_EXE_mitra")).parent().ok_or("mitra is in no directory")?;
    let target = dir.parent().ok_or("the directory has no parent")?;
    let mut xtask = Command::new(env!("CARGO"));
    xtask.args(["run", "--quiet", "--package", "xtask", "--target-dir"]).arg(target).arg("--");
    xtask.args(["libibverbs", "--target-dir"]).arg(target);
    if !cfg!(debug_assertions) {
        xtask.arg("--release");
    }
    let built = xtask.current_dir(env!("CARGO_MANIFEST_DIR")).output().map_err(|error| error.to_string())?;
    if !built.status.success() {
        return Err(format!("cargo xtask libibverbs: {}", String::from_utf8_lossy(&built.stderr)));
    }
    Ok(dir.join("mitra-libibverbs"))
});

static MPI_CHECK: LazyLock<Result<String, String>> = LazyLock::new(|| {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mpi-check");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/mpi_check.c");
    let built =
        Command::new("mpicc").args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(source).output();
    let built = built.map_err(|error| format!("mpicc: {error}; `cargo xtask setup` installs it"))?;
    if !built.status.success() {
        return Err(format!("mpicc: {}", String::from_utf8_lossy(&built.stderr)));
    }
    Ok(program.display().to_string())
});

/// Builds the MPI program and returns its path.
pub(crate) fn mpi_check() -> Result<String, String> {
    MPI_CHECK.clone()
}
