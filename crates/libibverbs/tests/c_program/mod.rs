//! Builds the C programs of the tests and the preload library, and runs the programs with it.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::LazyLock;

use mitra_test_process::{build_once, command, preloaded};

use crate::rdma_core::output_of;

/// The preload library. Cargo builds it beside this program, because `mitra-preload` is a
/// dependency of the tests.
static PRELOAD: LazyLock<PathBuf> = LazyLock::new(|| {
    let own = std::env::current_exe().expect("the test binary has a path");
    own.with_file_name("libmitra_preload.so")
});

/// Builds the program of this name from `tests/c`, linked with libibverbs.
pub fn build(name: &str) -> PathBuf {
    build_with(name, &[])
}

/// Builds the program of this name from `tests/c`, linked with libibverbs and other libraries.
pub fn build_with(name: &str, libraries: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    build_once(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), |program| {
        let mut compiler = command("cc");
        compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(program);
        output_of(compiler.arg(&source).arg("-libverbs").args(libraries));
    })
}

/// Returns the path of the preload library.
pub fn preload() -> &'static Path {
    &PRELOAD
}

/// Runs a program with the library, on a number of rails and with more environment variables.
pub fn run(
    program: &Path,
    rails: &str,
    arguments: &[impl AsRef<std::ffi::OsStr>],
    variables: &[(&str, &str)],
) -> Output {
    let dir = tempfile::tempdir().expect("a temporary directory can be created");
    let mut command = preloaded(&PRELOAD, program);
    command.args(arguments).env("MITRA_RAILS", rails).env("MITRA_RUN_DIR", dir.path().join("mitra"));
    mitra_test_process::output(command.envs(variables.iter().copied()))
}
