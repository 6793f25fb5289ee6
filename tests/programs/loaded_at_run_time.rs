//! Programs that load libibverbs or librdmacm while they run, under `mitra run`. The system's
//! libraries do not know Mitra's device.

use std::path::Path;
use std::process::Command;

use mitra_test_process::command;

use super::build_programs::{compile, output_of};

fn under_mitra() -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_mitra"));
    command.args(["run", "--"]);
    command
}

/// Returns the path of an installed library.
fn installed(library: &str) -> Result<String, String> {
    let path = output_of(command("cc").arg(format!("-print-file-name={library}")))?;
    Ok(path.trim().to_owned())
}

/// Runs a C program that loads a file in one of the ways of `write_to_self.c`, and writes to
/// itself.
fn writes_to_itself(file: &str, how: &str) -> Result<(), String> {
    let program = compile("write_to_self.c", &format!("loads-{how}"), &["-DLOAD"]);
    let text = output_of(under_mitra().arg(program).args([file, how]))?;
    if text.contains("written by mitra0") { Ok(()) } else { Err(text) }
}

pub(crate) fn by_dlsym() -> Result<(), String> {
    writes_to_itself("libibverbs.so.1", "symbols")
}

/// NCCL looks up its functions in this way (`src/misc/ibvsymbols.cc`).
pub(crate) fn by_dlvsym() -> Result<(), String> {
    writes_to_itself("libibverbs.so.1", "versions")
}

pub(crate) fn by_path() -> Result<(), String> {
    let path = installed("libibverbs.so.1")?;
    let program = compile("write_to_self.c", "loads-path", &["-DLOAD"]);
    let text = output_of(under_mitra().arg(program).args([&path, "symbols"]))?;
    if text.contains("written by mitra0") { Ok(()) } else { Err(text) }
}

pub(crate) fn in_a_namespace() -> Result<(), String> {
    writes_to_itself("libibverbs.so.1", "namespace")
}

/// A program that is linked with libibverbs and loads it, too, gets one device.
pub(crate) fn linked() -> Result<(), String> {
    let program = compile("write_to_self.c", "linked-with-libibverbs", &["-libverbs"]);
    let text = output_of(under_mitra().arg(program))?;
    if text.contains("written by mitra0") { Ok(()) } else { Err(text) }
}

pub(crate) fn from_python() -> Result<(), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/load_at_run_time.py");
    let libraries = [installed("libibverbs.so.1")?, installed("librdmacm.so.1")?];
    let text = output_of(under_mitra().arg("/usr/bin/python3").arg(script).args(libraries))?;
    if text.contains("loaded") { Ok(()) } else { Err(text) }
}

/// `dlopen` searches the RUNPATH of the library that calls it. An override that called the C
/// library's `dlopen` would hide the caller.
pub(crate) fn runpath_of_the_caller_is_searched() -> Result<(), String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("found-by-runpath");
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    compile("plugin.c", "found-by-runpath/libplugin.so", &["-DPLUGIN", "-shared", "-fPIC"]);
    let runpath = format!("-Wl,--enable-new-dtags,-rpath,{}", dir.display());
    let program = compile("plugin.c", "loads-a-plugin", &[&runpath]);
    let text = output_of(under_mitra().arg(program))?;
    if text.contains("plugin loaded") { Ok(()) } else { Err(text) }
}
