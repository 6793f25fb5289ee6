//! The directory of the control sockets: one for each user, closed to all others.

use std::env;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

/// Bytes of a Unix socket's path (`unix(7)`: 108 with the NUL).
const MAX_SOCKET_PATH: usize = 107;
/// Bytes of the longest name of a socket in it.
const MAX_NAME: usize = "/4294967295.sock".len();

/// Why the directory cannot be used: one line that says what to change.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// It is not there and cannot be made, or cannot be looked at.
    #[error(
        "cannot use the directory {path} for control sockets ({error}); set XDG_RUNTIME_DIR to one that you own"
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Somebody else could listen in, or answer.
    #[error("{0} must be a directory that you own and nobody else can enter; remove it, or chmod it to 700")]
    NotOurs(PathBuf),
    /// A socket in it could not be named.
    #[error("{0} is too long for a socket's name; set XDG_RUNTIME_DIR to a shorter directory")]
    TooLong(PathBuf),
}

/// Where this user's control sockets are: `$XDG_RUNTIME_DIR/mitra`, or `/tmp/mitra-UID` where that is not set.
pub fn path() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir.join("mitra"),
        _ => PathBuf::from(format!("/tmp/mitra-{}", Uid::effective())),
    }
}

/// Makes the directory if it is not there, and checks that it is this user's alone.
///
/// # Errors
/// It is not, cannot be made, or is too long.
pub fn ensure(dir: &Path) -> Result<(), RunDirError> {
    if dir.as_os_str().as_bytes().len() + MAX_NAME > MAX_SOCKET_PATH {
        return Err(RunDirError::TooLong(dir.to_owned()));
    }
    let failed = |error| RunDirError::Io { path: dir.to_owned(), error };
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // Not through a symbolic link: in /tmp, anybody could have put one there.
    let found = dir.symlink_metadata().map_err(failed)?;
    if !found.is_dir() || found.uid() != Uid::effective().as_raw() || found.mode() & 0o077 != 0 {
        return Err(RunDirError::NotOurs(dir.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn is_made_for_this_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("mitra");
        ensure(&dir).unwrap();
        ensure(&dir).unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_others_could_enter_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("open");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o710)).unwrap();
        let link = parent.path().join("link");
        let real = parent.path().join("real");
        ensure(&real).unwrap();
        symlink(&real, &link).unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [&dir, &link, &file] {
            let error = ensure(path).unwrap_err();
            assert!(matches!(error, RunDirError::NotOurs(_)), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()));
        }
        // Only root can make what belongs to another user; for all others, root has made something.
        let theirs = if Uid::effective().is_root() {
            std::os::unix::fs::chown(&real, Some(65534), None).unwrap();
            &real
        } else {
            Path::new("/")
        };
        assert!(matches!(ensure(theirs), Err(RunDirError::NotOurs(_))));
    }

    #[test]
    fn what_cannot_be_made_or_named_is_an_error() {
        let error = ensure(Path::new("/nowhere/mitra")).unwrap_err();
        assert!(matches!(error, RunDirError::Io { .. }), "{error}");
        let long = Path::new("/tmp").join("x".repeat(MAX_SOCKET_PATH));
        assert!(matches!(ensure(&long), Err(RunDirError::TooLong(_))));
    }
}
