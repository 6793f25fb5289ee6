//! Writes a file that programs use, such as the library, under a name that depends on its content.
//!
//! A running program keeps the path of its library for its children. A library with other content
//! therefore has another name, so an upgrade of `mitra` does not change the library of running
//! programs. A file appears with its whole content, so any number of programs may write it at the
//! same time.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use nix::libc::O_NOFOLLOW;
use nix::unistd::Uid;
use sha2::{Digest, Sha256};

/// Readable and executable by its owner.
const MODE: u32 = 0o500;
/// The number of files of a kind that stay in a directory: the most recently used files.
const KEPT: usize = 8;

/// How the names of the files of a kind begin and end. The digest of the content is between.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) begins: &'static str,
    pub(super) ends: &'static str,
}

pub(super) struct DigestFile<'a> {
    kind: Kind,
    content: &'a [u8],
    name: String,
}

impl DigestFile<'_> {
    pub(super) fn new(kind: Kind, content: &[u8]) -> DigestFile<'_> {
        // Half of the digest is enough, because the content of an existing file is compared, too.
        let digest: String =
            Sha256::digest(content).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        DigestFile { kind, content, name: format!("{}{digest}{}", kind.begins, kind.ends) }
    }
}

/// Writes a file to a directory that only this user can access, and returns its path. A file that
/// exists with the right content is used as it is.
///
/// # Errors
/// Fails if the directory has no room or cannot be written. The message names the file.
pub(super) fn write(file: &DigestFile, dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(&file.name);
    if !is_intact(&path, file.content).unwrap_or(false) {
        replace(&path, file.content, dir).with_context(|| format!("cannot write {}", path.display()))?;
        remove_old(file.kind, dir, &path);
    }
    Ok(path)
}

/// Returns whether this user owns a file, no other user can change it, and it has this content.
/// Marks the file as used.
fn is_intact(path: &Path, content: &[u8]) -> io::Result<bool> {
    let mut file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file()
        || metadata.uid() != Uid::effective().as_raw()
        || metadata.mode() & 0o777 != MODE
        || metadata.len() != content.len() as u64
    {
        return Ok(false);
    }
    // A crash of the machine can leave a file with its length and without its content.
    let mut buffer = vec![0; 1 << 16];
    for expected in content.chunks(buffer.len()) {
        let read = &mut buffer[..expected.len()];
        file.read_exact(read)?;
        if read != expected {
            return Ok(false);
        }
    }
    let _ = file.set_modified(SystemTime::now()); // Only the order in which files are removed depends on it.
    Ok(true)
}

/// Writes the content to a new file and gives that file the name.
fn replace(path: &Path, content: &[u8], dir: &Path) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".")
        .suffix(".new")
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(dir)?;
    file.write_all(content)?;
    // The process's umask may have removed bits.
    file.as_file().set_permissions(Permissions::from_mode(MODE))?;
    file.persist(path)?;
    Ok(())
}

/// Removes the least recently used files of a kind, except for `written`. Programs that have loaded
/// a removed library keep it.
fn remove_old(kind: Kind, dir: &Path, written: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut others: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(kind.begins) && name.ends_with(kind.ends)
        })
        .map(|entry| entry.path())
        .filter(|path| path != written)
        .filter_map(|path| Some((File::open(&path).ok()?.metadata().ok()?.modified().ok()?, path)))
        .collect();
    others.sort_unstable_by(|one, other| other.cmp(one));
    for (_, path) in others.into_iter().skip(KEPT - 1) {
        let _ = fs::remove_file(path); // Another process may have removed it.
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn file(content: &[u8]) -> DigestFile<'_> {
        DigestFile::new(Kind { begins: "lib-", ends: ".so" }, content)
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn content_determines_the_name_and_an_intact_file_stays() {
        let dir = directory();
        let (old, new) = (file(b"old"), file(b"new"));
        let path = write(&old, dir.path()).unwrap();
        let inode = path.metadata().unwrap().ino();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, MODE);
        assert_eq!(write(&old, dir.path()).unwrap(), path);
        assert_eq!(path.metadata().unwrap().ino(), inode);
        assert_ne!(write(&new, dir.path()).unwrap(), path);
        assert_eq!(fs::read(path).unwrap(), b"old");
    }

    #[test]
    fn damaged_file_is_replaced() {
        let dir = directory();
        let library = file(b"library");
        let path = write(&library, dir.path()).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, b"library").unwrap();
        fs::set_permissions(&elsewhere, Permissions::from_mode(MODE)).unwrap();
        let damages: [&dyn Fn(); 4] = [
            &|| fs::write(&path, b"librarx").unwrap(),
            &|| fs::write(&path, b"").unwrap(),
            &|| symlink(&elsewhere, &path).unwrap(),
            &|| {
                fs::write(&path, b"library").unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o722)).unwrap();
            },
        ];
        for damage in damages {
            fs::remove_file(&path).unwrap();
            damage();
            write(&library, dir.path()).unwrap();
            let found = path.symlink_metadata().unwrap();
            assert!(found.is_file() && found.mode() & 0o777 == MODE);
            assert_eq!(fs::read(&path).unwrap(), b"library");
        }
        assert_eq!(names(dir.path()).len(), 2, "no temporary file is left");
    }

    #[test]
    fn file_is_whole_whenever_it_can_be_seen() {
        let dir = directory();
        let content = vec![7; 1 << 20];
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let path = write(&file(&content), dir.path()).unwrap();
                        // Another thread may have removed the file.
                        assert!(fs::read(&path).map_or(true, |found| found == content));
                        let _ = fs::remove_file(path);
                    }
                });
            }
        });
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn libraries_that_were_used_last_stay() {
        let dir = directory();
        let beginning = SystemTime::now() - Duration::from_secs(1000);
        let contents: Vec<[u8; 1]> = (0..20).map(|i| [i]).collect();
        let mut paths = Vec::new();
        for (content, age) in contents.iter().zip(1..) {
            let path = write(&file(content), dir.path()).unwrap();
            File::open(&path).unwrap().set_modified(beginning + Duration::from_secs(age)).unwrap();
            paths.push(path);
            // The first library is used all the time.
            assert_eq!(write(&file(&contents[0]), dir.path()).unwrap(), paths[0]);
        }
        assert_eq!(names(dir.path()).len(), KEPT);
        assert!(paths[0].exists() && paths[19].exists() && !paths[1].exists());
    }
}
