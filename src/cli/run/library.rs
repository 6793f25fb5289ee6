//! The library that the loader puts in front of libibverbs.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, bail};

/// What the loader reads: libraries in front of all others (`ld.so(8)`).
pub(super) const LD_PRELOAD: &str = "LD_PRELOAD";
/// Names the library, where it is not at its place.
const MITRA_PRELOAD: &str = "MITRA_PRELOAD";
const NAME: &str = "libmitra_preload.so";

/// The value for [`LD_PRELOAD`]: our library, and after it what was there.
pub(super) fn preload() -> anyhow::Result<OsString> {
    let library = find()?;
    // ld.so(8): the names are separated by spaces or colons, and there is no way to escape one.
    if library.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        bail!("the loader takes no path with a space or colon in it; move {} elsewhere", library.display());
    }
    let mut value = library.into_os_string();
    if let Some(before) = env::var_os(LD_PRELOAD).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok(value)
}

fn find() -> anyhow::Result<PathBuf> {
    if let Some(named) = env::var_os(MITRA_PRELOAD) {
        return PathBuf::from(&named).canonicalize().with_context(|| {
            format!("{MITRA_PRELOAD}={named:?} names no library; unset it, or name {NAME}")
        });
    }
    let program = env::current_exe().context("cannot tell where this program is")?;
    let dir = program.parent().context("this program is in no directory")?;
    let places = [dir.join(NAME), dir.join("../lib/mitra").join(NAME)];
    for place in &places {
        if let Ok(found) = place.canonicalize() {
            return Ok(found);
        }
    }
    bail!(
        "there is no {} nor {}; build it with `cargo build --release --workspace`, or name it in {MITRA_PRELOAD}",
        places[0].display(),
        places[1].display()
    )
}
