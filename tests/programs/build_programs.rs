//! Builds the C programs that the rows need. Rows may run in processes of their own, which share
//! the programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use mitra_test_process::{build_once, command, output};

/// Compiles a program of this directory, and returns its path.
///
/// # Panics
/// The program cannot be compiled.
pub(crate) fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    compile_with(command("cc").args(["-O1", "-Wall"]), source, name, flags)
}

/// Compiles a program with a compiler and its first options.
pub(crate) fn compile_with(compiler: &mut Command, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    build_once(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), |program| {
        let built = output_of(compiler.arg("-o").arg(program).arg(source).args(flags));
        built.unwrap_or_else(|error| panic!("{error}; `cargo xtask setup` installs compilers and headers"));
    })
}

/// Runs a command and returns its standard output and error.
///
/// # Errors
/// The command fails.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let output = output(command);
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{command:?}: {}\n{text}", output.status)) }
}

/// Builds the MPI program and returns its path.
pub(crate) fn mpi_check() -> String {
    let built =
        compile_with(command("mpicc").args(["-O1", "-Wall", "-Werror"]), "mpi_check.c", "mpi-check", &[]);
    built.display().to_string()
}
