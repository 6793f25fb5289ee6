//! Where the tools of the tests are.

use std::env;
use std::path::PathBuf;

/// Returns the directory in which `cargo xtask setup` installs what Debian does not have: `venv`,
/// `npm`, `rust-programs` and `rxe-vm`. The directory is in the user's cache directory, so all
/// clones share it.
///
/// # Panics
///
/// Panics if neither `XDG_CACHE_HOME` nor `HOME` names an absolute path.
pub fn setup_dir() -> PathBuf {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    cache.expect("set HOME to the path of your home directory").join("mitra/setup")
}
