//! Builds the C programs that the rows need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Compiles a program of this directory, and returns its path.
pub(crate) fn compile(source: &str, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    output_of(Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).args(flags))?;
    Ok(program)
}

/// Runs a command and returns its standard output and error.
///
/// # Errors
/// The command fails.
pub(crate) fn output_of(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{command:?}: {}\n{text}", output.status)) }
}

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
