//! Finds Mitra's shared library. The dynamic loader preloads it before libibverbs, or loads it in place of libibverbs.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The dynamic loader preloads the libraries in this environment variable (`ld.so(8)`).
pub(super) const LD_PRELOAD: &str = "LD_PRELOAD";
/// The dynamic loader searches the directories in this environment variable before its default directories.
const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The environment variable with the path of the library to preload, for installations in which [`find`] fails.
const MITRA_PRELOAD: &str = "MITRA_PRELOAD";

/// Returns the loader's environment variable and its new value: Mitra's library, followed by the present value.
pub(super) fn variable(replace: bool) -> anyhow::Result<(&'static str, OsString)> {
    let (variable, library) =
        if replace { (LD_LIBRARY_PATH, replacement()?) } else { (LD_PRELOAD, preload()?) };
    // ld.so(8) separates entries by colons, spaces or semicolons, and knows no escape character.
    if library.as_os_str().as_bytes().iter().any(|byte| b" :;".contains(byte)) {
        bail!(
            "the dynamic loader accepts no path with a space, colon or semicolon; move {} elsewhere",
            library.display()
        );
    }
    let mut value = library.into_os_string();
    if let Some(before) = env::var_os(variable).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok((variable, value))
}

/// Returns the path of the library to preload.
fn preload() -> anyhow::Result<PathBuf> {
    if let Some(named) = env::var_os(MITRA_PRELOAD) {
        return PathBuf::from(&named).canonicalize().with_context(|| {
            format!("{MITRA_PRELOAD}={named:?} is not a library; unset the variable, or set it to the path of libmitra_preload.so")
        });
    }
    find("libmitra_preload.so".as_ref(), "cargo build --release --workspace")
}

/// Returns the directory of Mitra's `libibverbs.so.1`, which replaces the system's.
fn replacement() -> anyhow::Result<PathBuf> {
    let library = find(Path::new("mitra-libibverbs/libibverbs.so.1"), "cargo xtask libibverbs --release")?;
    Ok(library.parent().map(Path::to_owned).unwrap_or_default())
}

/// Returns the path of the file `name` next to this program, or in ../lib/mitra, where an installation puts it. The
/// error message suggests `builder`, the command that builds the file.
fn find(name: &Path, builder: &str) -> anyhow::Result<PathBuf> {
    let program = env::current_exe().context("cannot determine the path of this program")?;
    let dir = program.parent().context("the path of this program has no directory")?;
    let places = [dir.join(name), dir.join("../lib/mitra").join(name)];
    for place in &places {
        if let Ok(found) = place.canonicalize() {
            return Ok(found);
        }
    }
    let [beside, installed] = places.each_ref().map(|place| place.display());
    bail!("neither {beside} nor {installed} exists; build it with `{builder}`")
}
