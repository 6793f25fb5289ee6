//! The directory that holds the device's files.
//!
//! The tree is in the directory of the control sockets. The name of the tree is a digest of the
//! content, so processes that see the same device share the tree. A process that uses a tree holds
//! a shared lock on it until the process ends (`flock(2)`). A process that makes a tree removes the
//! trees that no process uses.

use core::ffi::CStr;
use core::iter::successors;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;

use mitra_control::{Settings, run_dir};

use super::attributes::{self, Attributes, COUNTERS_DIR, Entry};
use crate::common::high_descriptor::moved_up;
use crate::common::{cancellation, logging};

/// The name of a tree is this text and 16 hexadecimal digits.
pub(super) const NAME_BEGINS: &str = "device-files-";
pub(super) const DIGITS: usize = 16;

/// A tree that this process has used. Trees are leaked: there is one per content, and the
/// content seldom changes.
struct Tree {
    attributes: Attributes,
    root: CString,
    next: *const Tree,
}

/// The maximum number of attempts to make a tree while other processes remove the tree again.
const ATTEMPTS: u32 = 8;
/// Whether this process, or its parent before the fork, has logged why there is no tree.
static EXPLAINED: AtomicBool = AtomicBool::new(false);

/// The list of the trees of this process, the latest first.
static TREES: AtomicPtr<Tree> = AtomicPtr::new(ptr::null_mut());

/// Returns the root of the tree with the present content, or `None` if there is no device or no
/// place for the tree.
pub(super) fn root() -> Option<&'static CStr> {
    cancellation::held_off(present_root)
}

fn present_root() -> Option<&'static CStr> {
    let latest = TREES.load(Ordering::Acquire);
    // SAFETY: a pointer in the list comes from `Box::leak` in `add`.
    let mut trees = successors(unsafe { latest.as_ref() }, |tree| unsafe { tree.next.as_ref() });
    // SAFETY: as above.
    let attributes = Attributes::now(unsafe { latest.as_ref() }.map(|tree| &tree.attributes))?;
    let known = trees.find(|tree| tree.attributes == attributes);
    // The directory may be gone if the program has closed the descriptor that holds the lock.
    if let Some(tree) = known.filter(|tree| path_of(&tree.root).exists()) {
        return Some(&tree.root);
    }
    match (make(&attributes), known) {
        (Ok(_), Some(tree)) => Some(&tree.root),
        (Ok(root), None) => Some(&add(attributes, root).root),
        (Err(error), _) => {
            logging::install();
            if !EXPLAINED.swap(true, Ordering::Relaxed) {
                tracing::warn!("programs cannot see the device's files in /sys and /dev: {error}");
            }
            None
        }
    }
}

/// Puts a tree at the front of the list.
fn add(attributes: Attributes, root: CString) -> &'static Tree {
    let tree = Box::leak(Box::new(Tree { attributes, root, next: TREES.load(Ordering::Acquire) }));
    while let Err(latest) =
        TREES.compare_exchange(tree.next.cast_mut(), tree, Ordering::AcqRel, Ordering::Acquire)
    {
        tree.next = latest;
    }
    tree
}

/// Makes the tree for `attributes` if the tree does not exist, and locks the tree for the life of
/// this process. Returns the root.
fn make(attributes: &Attributes) -> io::Result<CString> {
    let files = attributes.files();
    let mut digest = DefaultHasher::new();
    (&files, attributes.owner).hash(&mut digest);
    let settings = Settings::from_env().map_err(io::Error::other)?;
    let dir = settings.run_dir.unwrap_or_else(run_dir::default_path);
    run_dir::ensure(&dir).map_err(io::Error::other)?;
    // A path that realpath(3) returns has no symbolic links.
    let dir = dir.canonicalize()?;
    let root = dir.join(format!("{NAME_BEGINS}{:0DIGITS$x}", digest.finish()));
    for _ in 0..ATTEMPTS {
        if let Some(lock) = lock(&root)? {
            keep(lock);
            return CString::new(root.into_os_string().into_vec()).map_err(io::Error::other);
        }
        // Another process may make the same tree, or may remove the new tree before the next
        // `lock`.
        let _being_made = write(&dir, &root, &files)?;
    }
    Err(io::Error::other("other processes remove the directory again and again"))
}

/// Locks a tree. Returns `None` if the tree does not exist or is being removed.
fn lock(root: &Path) -> io::Result<Option<File>> {
    let file = match File::open(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    Ok((file.try_lock_shared().is_ok() && is_at(&file, root)).then_some(file))
}

/// Returns whether `dir` is still the directory at `path`. Another process may have replaced the
/// directory.
fn is_at(dir: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    dir.metadata()
        .and_then(|open| Ok(identity(open) == identity(fs::symlink_metadata(path)?)))
        .unwrap_or(false)
}

/// Keeps a lock until the process and its forked children have ended or executed another program.
fn keep(lock: File) {
    let _ = moved_up(OwnedFd::from(lock)).into_raw_fd();
}

/// Writes a tree under a temporary name, renames it, and removes trees that no process uses.
/// Returns the lock on the tree, or `None` if another process has made or removed the temporary
/// directory.
fn write(dir: &Path, root: &Path, files: &[(String, Entry)]) -> io::Result<Option<File>> {
    let new = dir.join(format!(".{NAME_BEGINS}{}-{}", std::process::id(), unused_number()));
    match fs::create_dir(&new) {
        // A process that was killed, or that is in another PID namespace, has made the directory.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    }
    let Some(lock) = lock(&new)? else { return Ok(None) };
    for (path, entry) in files {
        let path = new.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        match entry {
            Entry::File(text) => OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o444)
                .open(path)?
                .write_all(text.as_bytes())?,
            Entry::Link(target) => symlink(target, path)?,
        }
    }
    if fs::rename(&new, root).is_err() {
        // Another process has made the same tree.
        fs::remove_dir_all(&new)?;
    }
    remove_unused(dir);
    Ok(Some(lock))
}

/// Returns a number that no earlier call in this process or in its parent has returned.
fn unused_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn remove_unused(dir: &Path) {
    // All entries are read before a removal changes the directory.
    let entries: Vec<fs::DirEntry> = fs::read_dir(dir).into_iter().flatten().flatten().collect();
    for entry in entries {
        let name = entry.file_name();
        let is_tree =
            name.as_bytes().strip_prefix(b".").unwrap_or(name.as_bytes()).starts_with(NAME_BEGINS.as_bytes());
        if is_tree {
            // Best effort: another process removes the tree later.
            let _ = remove(dir, &entry.path());
        }
    }
}

/// Removes a tree that no process uses. The tree first gets a name that no process looks for, so
/// that no process finds a part of a tree.
fn remove(dir: &Path, path: &Path) -> io::Result<()> {
    let tree = File::open(path)?;
    if tree.try_lock().is_ok() && is_at(&tree, path) {
        let removed = dir.join(format!(".{NAME_BEGINS}{}-{}", std::process::id(), unused_number()));
        fs::rename(path, &removed)?;
        fs::remove_dir_all(removed)?;
    }
    Ok(())
}

/// Writes the counters of this process's NICs to the files of the tree.
pub(super) fn write_counters(root: &CStr) {
    let dir = path_of(root).join(COUNTERS_DIR);
    for (name, value) in attributes::counters().into_iter().flatten() {
        // Another thread may read or write the file, so the file is replaced as a whole. After an
        // error, a counter keeps its value.
        let new = dir.join(format!(".{name}-{}-{}", std::process::id(), unused_number()));
        let written = fs::write(&new, format!("{value}\n")).and_then(|()| fs::rename(&new, dir.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
    }
}

fn path_of(root: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(root.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(dir: &Path) -> usize {
        fs::read_dir(dir).expect("the directory exists").count()
    }

    #[test]
    fn trees_in_use_stay_and_others_and_their_parts_are_removed() {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let dir = dir.path();
        let files = [("sys/a/b".to_owned(), Entry::File("text".to_owned()))];
        let [used, unused] = ["1", "2"].map(|end| dir.join(format!("{NAME_BEGINS}{end:0>DIGITS$}")));
        let written = write(dir, &used, &files).expect("the directory is writable");
        drop(write(dir, &unused, &files).expect("the directory is writable"));
        // A process that was killed during a removal leaves such a directory.
        fs::create_dir_all(dir.join(format!(".{NAME_BEGINS}1-0/sys"))).expect("the directory is writable");
        remove_unused(dir);
        assert_eq!(fs::read_to_string(used.join("sys/a/b")).expect("the tree is in use"), "text");
        assert_eq!(entries(dir), 1);
        drop(written);
        remove_unused(dir);
        assert_eq!(entries(dir), 0);
    }

    #[test]
    fn lock_of_a_tree_that_another_has_replaced_is_none() {
        let dir = tempfile::tempdir().expect("the temporary directory is writable");
        let root = dir.path().join("root");
        fs::create_dir(&root).expect("the directory is writable");
        let before = lock(&root).expect("the directory exists").expect("no one removes it");
        assert!(is_at(&before, &root));
        fs::rename(&root, dir.path().join("removed")).expect("the directory is writable");
        assert!(!is_at(&before, &root));
        fs::create_dir(&root).expect("the directory is writable");
        assert!(!is_at(&before, &root));
        assert!(lock(&dir.path().join("absent")).expect("it is no error").is_none());
    }
}
