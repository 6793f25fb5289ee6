//! Work whose result several test processes need.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The variable in which nextest gives all tests of a run the same number.
const RUN: &str = "NEXTEST_RUN_ID";

/// Waits until no other process or thread has this lock, and returns it. The lock ends with the
/// value, and with the process.
///
/// # Panics
///
/// Panics if the file cannot be created.
pub fn lock(file: &Path) -> File {
    let open = File::options().read(true).write(true).create(true).truncate(false).open(file);
    let locked = open.and_then(|open| open.lock().map(|()| open));
    locked.unwrap_or_else(|error| panic!("cannot lock {}: {error}", file.display()))
}

/// Runs `build` unless another process has done so in this nextest run. Other processes wait
/// meanwhile. Without nextest, `build` runs every time.
///
/// The file `stamp` records the run. If `build` panics or is interrupted, the next process repeats
/// it.
///
/// # Panics
///
/// Panics if the file cannot be written.
pub fn once_per_run(stamp: &Path, build: impl FnOnce()) {
    let fail = |error: std::io::Error| -> ! { panic!("cannot write {}: {error}", stamp.display()) };
    let mut file = lock(stamp);
    let run = env::var(RUN).unwrap_or_default();
    let mut built_in = String::new();
    // A file that is not text does not come from this function.
    let _ = file.read_to_string(&mut built_in);
    if !run.is_empty() && built_in == run {
        return;
    }
    file.set_len(0).and_then(|()| file.rewind()).unwrap_or_else(|error| fail(error));
    build();
    file.write_all(run.as_bytes()).unwrap_or_else(|error| fail(error));
}

/// Like [`once_per_run`], for a program or library. `build` writes the file to the given path. The
/// file is then renamed to `product`, so that nobody starts a half-written program. Returns
/// `product`.
///
/// # Panics
///
/// Panics if `build` does not write the file.
pub fn build_once(product: PathBuf, build: impl FnOnce(&Path)) -> PathBuf {
    let beside = |suffix: String| {
        let mut name = OsString::from(&product);
        name.push(suffix);
        PathBuf::from(name)
    };
    once_per_run(&beside(".built".to_owned()), || {
        // Processes of different users or runs may share the directory.
        let unfinished = beside(format!(".{}", std::process::id()));
        build(&unfinished);
        let renamed = fs::rename(&unfinished, &product);
        renamed.unwrap_or_else(|error| panic!("cannot rename {}: {error}", unfinished.display()));
    });
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under nextest, the second build does nothing, because the run has a number. Otherwise, it
    /// builds again.
    #[test]
    fn build_is_repeated_after_an_interruption_only() {
        let dir = tempfile::tempdir().unwrap();
        let product = dir.path().join("product");
        let build = |text: &str| {
            let built = build_once(product.clone(), |to| fs::write(to, text).unwrap());
            fs::read_to_string(built).unwrap()
        };
        let interrupted = std::panic::catch_unwind(|| build_once(product.clone(), |_| panic!("interrupted")));
        assert!(interrupted.is_err() && !product.exists());
        assert_eq!(build("first"), "first");
        assert_eq!(build("second"), if env::var_os(RUN).is_some() { "first" } else { "second" });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the product and its stamp");
    }
}
