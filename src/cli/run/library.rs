//! The library that the loader gives the program: in front of libibverbs, or in its place.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// What the loader reads (`ld.so(8)`): libraries in front of all others ...
pub(super) const LD_PRELOAD: &str = "LD_PRELOAD";
/// ... and directories that it looks into before its own.
const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Names the library to preload, where it is not at its place.
const MITRA_PRELOAD: &str = "MITRA_PRELOAD";

/// The variable for the loader with its new value: our library, and after it what was there.
pub(super) fn variable(replace: bool) -> anyhow::Result<(&'static str, OsString)> {
    let (variable, ours) = if replace { (LD_LIBRARY_PATH, replacement()?) } else { (LD_PRELOAD, preload()?) };
    // ld.so(8): what is named is separated by colons, spaces or semicolons, and there is no way to escape one.
    if ours.as_os_str().as_bytes().iter().any(|byte| b" :;".contains(byte)) {
        bail!(
            "the loader takes no path with a space, colon or semicolon in it; move {} elsewhere",
            ours.display()
        );
    }
    let mut value = ours.into_os_string();
    if let Some(before) = env::var_os(variable).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok((variable, value))
}

/// The library to preload.
fn preload() -> anyhow::Result<PathBuf> {
    if let Some(named) = env::var_os(MITRA_PRELOAD) {
        return PathBuf::from(&named).canonicalize().with_context(|| {
            format!("{MITRA_PRELOAD}={named:?} names no library; unset it, or name libmitra_preload.so")
        });
    }
    find("libmitra_preload.so".as_ref(), "cargo build --release --workspace")
}

/// The directory of the library that stands in for libibverbs.so.1.
fn replacement() -> anyhow::Result<PathBuf> {
    let library = find(Path::new("mitra-libibverbs/libibverbs.so.1"), "cargo xtask libibverbs --release")?;
    Ok(library.parent().map(Path::to_owned).unwrap_or_default())
}

/// A file beside this program, or where it would be installed.
fn find(name: &Path, builder: &str) -> anyhow::Result<PathBuf> {
    let program = env::current_exe().context("cannot tell where this program is")?;
    let dir = program.parent().context("this program is in no directory")?;
    let places = [dir.join(name), dir.join("../lib/mitra").join(name)];
    for place in &places {
        if let Ok(found) = place.canonicalize() {
            return Ok(found);
        }
    }
    let [beside, installed] = places.each_ref().map(|place| place.display());
    bail!("there is no {beside} nor {installed}; build it with `{builder}`")
}
