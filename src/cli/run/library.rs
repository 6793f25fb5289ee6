//! The library that the dynamic loader preloads into the program. `mitra` contains the library and
//! writes it to a file.

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use mitra_control::run_dir;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::library_file::{self, LibraryFile};

/// The dynamic loader preloads the libraries in this environment variable (`ld.so(8)`).
pub(super) const LD_PRELOAD: &str = "LD_PRELOAD";
/// The environment variable with the path of another library to preload.
const MITRA_PRELOAD: &str = "MITRA_PRELOAD";

/// The shared library of the crate `mitra-preload`.
static LIBRARY: &[u8] = mitra_embed::shared_library!("mitra_preload");

/// Returns the value of [`LD_PRELOAD`]: Mitra's library, followed by the present value. The library
/// is written to `run_dir`, or to the user's cache if the loader cannot use a file there.
pub(super) fn preload_variable(run_dir: &Path) -> anyhow::Result<OsString> {
    let library = match env::var_os(MITRA_PRELOAD) {
        Some(named) => {
            let library = PathBuf::from(&named).canonicalize().with_context(|| {
                format!("{MITRA_PRELOAD}={named:?} is not a library; unset the variable to use the library in this program")
            })?;
            check_path(&library)?;
            library
        }
        None => write_library(run_dir)?,
    };
    let mut value = library.into_os_string();
    if let Some(before) = env::var_os(LD_PRELOAD).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    Ok(value)
}

/// Writes the library to the first directory that can hold it, and returns its path.
fn write_library(run_dir: &Path) -> anyhow::Result<PathBuf> {
    ensure!(
        !LIBRARY.is_empty(),
        "this program was built without its library; build it with `cargo build --release`"
    );
    let library = LibraryFile::new(LIBRARY);
    let mut refusals = Vec::new();
    for dir in [Some(run_dir.to_owned()), user_cache()].into_iter().flatten() {
        match prepare(&dir).and_then(|dir| library_file::write(&library, &dir)) {
            Ok(path) => return Ok(path),
            Err(error) => refusals.push(format!("{error:#}")),
        }
    }
    bail!(
        "no directory can hold the library to preload: {}; set XDG_RUNTIME_DIR to a directory that you own and that allows programs",
        refusals.join("; ")
    )
}

/// Returns this user's directory for files that can be made again (XDG Base Directory
/// Specification).
fn user_cache() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("mitra"))
}

/// Creates the directory, which only this user can access, and checks that the loader can use a
/// library there.
fn prepare(dir: &Path) -> anyhow::Result<PathBuf> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    }
    run_dir::ensure(dir)?;
    // The program may change its working directory.
    let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
    check_path(&dir)?;
    let filesystem = statvfs(&dir).with_context(|| format!("cannot use {}", dir.display()))?;
    ensure!(!filesystem.flags().contains(FsFlags::ST_NOEXEC), "{} is mounted noexec", dir.display());
    Ok(dir)
}

/// Checks that [`LD_PRELOAD`] can contain a path: `ld.so(8)` separates paths by colons, spaces or
/// semicolons and knows no escape character.
fn check_path(path: &Path) -> anyhow::Result<()> {
    ensure!(
        !path.as_os_str().as_bytes().iter().any(|byte| b" :;".contains(byte)),
        "the dynamic loader accepts no path with a space, colon or semicolon; move {} elsewhere",
        path.display()
    );
    Ok(())
}
