//! The library that the dynamic loader preloads into the program. `mitra` contains the library and
//! writes it to a file.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use mitra_control::run_dir;
use nix::sys::statvfs::{FsFlags, statvfs};

use super::digest_file::{self, DigestFile, Kind};

/// The dynamic loader preloads the libraries in this environment variable (`ld.so(8)`).
pub(super) const LD_PRELOAD: &str = "LD_PRELOAD";
/// The environment variable with the path of another library to preload.
const MITRA_PRELOAD: &str = "MITRA_PRELOAD";

/// The shared library of the crate `mitra-preload`.
static LIBRARY: &[u8] = mitra_embed::shared_library!("mitra_preload");

/// How the names of the written libraries begin and end.
const LIBRARIES: Kind = Kind { begins: "libmitra_preload-", ends: ".so" };
/// What the loader of glibc puts in place of `$LIB` in [`LD_PRELOAD`] (`ld.so(8)`), depending on
/// the distribution: names of directories, one or two.
const LIB_PARTS: [&str; 4] = ["lib", "lib64", "x86_64-linux-gnu", "aarch64-linux-gnu"];

/// The library to preload.
pub(super) struct Preload {
    path: PathBuf,
    /// The path by which only the loader of glibc finds the library, in a directory of
    /// `mitra run`.
    path_for_glibc: Option<PathBuf>,
    /// The directory of the files that `mitra run` writes for the program.
    pub(super) dir: PathBuf,
}

impl Preload {
    /// Writes the library to `run_dir`, or to the user's cache if the loader cannot use a file
    /// there.
    pub(super) fn new(run_dir: &Path) -> anyhow::Result<Preload> {
        let Some(named) = env::var_os(MITRA_PRELOAD) else {
            let path = write_library(run_dir)?;
            let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
            let path_for_glibc =
                link_lib_parts(&dir).ok().and_then(|()| Some(dir.join("$LIB").join(path.file_name()?)));
            return Ok(Preload { path, path_for_glibc, dir });
        };
        let path = PathBuf::from(&named).canonicalize().with_context(|| {
            format!("{MITRA_PRELOAD}={named:?} is not a library; unset the variable to use the library in this program")
        })?;
        check_path(&path)?;
        let dir = run_dir.canonicalize().with_context(|| format!("cannot use {}", run_dir.display()))?;
        Ok(Preload { path, path_for_glibc: None, dir })
    }

    /// Returns the value of [`LD_PRELOAD`]: Mitra's library, followed by the present value.
    ///
    /// A script may start a program of another C library, musl for example, whose loader cannot
    /// load Mitra's library and then does not start the program. That loader takes `$LIB` for the
    /// name of a directory, finds no file, and goes on. `libraries_with` returns the libraries that
    /// the program's loader finds with a value; the path without `$LIB` is used if Mitra's is not
    /// among them.
    pub(super) fn variable(&self, libraries_with: impl FnOnce(&OsStr) -> String) -> OsString {
        let for_glibc = self.path_for_glibc.as_deref().map(before_present_value);
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let for_glibc = for_glibc.filter(|value| libraries_with(value).contains(&*name));
        for_glibc.unwrap_or_else(|| before_present_value(&self.path))
    }
}

fn before_present_value(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = env::var_os(LD_PRELOAD).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

/// Makes `dir/$LIB` the same directory as `dir`, whatever `$LIB` is.
fn link_lib_parts(dir: &Path) -> io::Result<()> {
    LIB_PARTS.iter().try_for_each(|part| match symlink(".", dir.join(part)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    })
}

/// Writes the library to the first directory that can hold it, and returns its path.
fn write_library(run_dir: &Path) -> anyhow::Result<PathBuf> {
    ensure!(
        !LIBRARY.is_empty(),
        "this program was built without its library; build it with `cargo build --release`"
    );
    let library = DigestFile::new(LIBRARIES, LIBRARY);
    let mut refusals = Vec::new();
    for dir in [Some(run_dir.to_owned()), user_cache()].into_iter().flatten() {
        match prepare(&dir).and_then(|dir| digest_file::write(&library, &dir)) {
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
