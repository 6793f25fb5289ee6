//! The replacement for libibverbs.so.1, as used by programs that load it with `dlopen`, by programs linked with it, and by
//! rdma-core's own libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::build_libraries;

/// Compiles and runs a program that writes to itself under `mitra run --replace`.
fn run(name: &str, flags: &[&str]) -> Result<(), String> {
    build_libraries::replacement()?;
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/write_to_self.c");
    output_of(Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).args(flags))?;
    let text =
        output_of(Command::new(env!("CARGO_BIN_EXE_mitra")).args(["run", "--replace", "--"]).arg(program))?;
    if text.contains("written by mitra0") { Ok(()) } else { Err(text) }
}

pub(crate) fn loaded_at_run_time() -> Result<(), String> {
    run("loads-libibverbs", &["-DDLOPEN"])
}

pub(crate) fn linked() -> Result<(), String> {
    run("linked-with-libibverbs", &["-libverbs"])
}

/// rdma-core's own libraries resolve every versioned symbol, private ones included.
pub(crate) fn under_rdma_core() -> Result<(), String> {
    let dir = build_libraries::replacement()?;
    for library in ["librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"] {
        let path = output_of(Command::new("cc").arg(format!("-print-file-name={library}")))?;
        // `ldd -r` resolves all symbols, as the loader does under immediate binding.
        let found = output_of(Command::new("ldd").arg("-r").arg(path.trim()).env("LD_LIBRARY_PATH", &dir))?;
        if !found.contains(dir.to_str().ok_or("the target directory's name is not UTF-8")?)
            || found.contains("undefined symbol")
            || found.contains("not found")
        {
            return Err(format!("{library} and the replacement\n{found}"));
        }
    }
    Ok(())
}

/// Runs a command and returns its standard output and error.
///
/// # Errors
/// The command fails.
fn output_of(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{command:?}: {}\n{text}", output.status)) }
}
