//! Builds the C programs of the tests, and the library that they run with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::rdma_core::output_of;

/// The preload library, built in the same target directory and profile as this test.
static PRELOAD: LazyLock<PathBuf> = LazyLock::new(|| {
    let own = std::env::current_exe().expect("the test binary has a path");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/test");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "mitra-preload", "--target-dir"]);
    cargo.arg(profile.parent().expect("the profile directory has a parent"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    output_of(&mut cargo);
    profile.join("libmitra_preload.so")
});

/// The directory for the control sockets of the programs.
static RUNTIME: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a temporary directory can be created"));

/// Builds the program of this name from `tests/c`, linked with libibverbs.
#[allow(dead_code, reason = "one test builds with more libraries")]
pub fn build(name: &str) -> PathBuf {
    build_with(name, &[])
}

/// Builds the program of this name from `tests/c`, linked with libibverbs and other libraries.
pub fn build_with(name: &str, libraries: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    // Each program has its own name, because tests run in parallel.
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    output_of(compiler.arg(sources.join(name).with_extension("c")).arg("-libverbs").args(libraries));
    program
}

/// Returns the path of the preload library.
#[allow(dead_code, reason = "one test compares its symbols")]
pub fn preload() -> &'static Path {
    &PRELOAD
}

/// Returns the command that runs a program with the library, on a number of rails.
pub fn command(program: &Path, rails: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", &*PRELOAD).env("MITRA_RAILS", rails);
    command.env("MITRA_RUN_DIR", RUNTIME.path().join("mitra"));
    command
}
