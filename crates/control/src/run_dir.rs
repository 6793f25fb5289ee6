//! The directory of the control sockets. Each user has a directory that no other user can access.

use std::env;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::socket_file::{MAX_NAME, SocketFile};

/// The longest path of a Unix socket, in bytes (`unix(7)`: 108 with the terminating NUL).
const MAX_SOCKET_PATH: usize = 107;
/// Why a directory cannot hold control sockets.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The directory cannot be created, or its metadata cannot be read.
    #[error(
        "cannot use the directory {path} for control sockets ({error}); set XDG_RUNTIME_DIR to a directory that you own"
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// Another user could connect to the sockets in the directory, or replace them.
    #[error("{0} must be a directory that you own and no other user can access; remove it, or run chmod 700")]
    NotPrivate(PathBuf),
    /// The path of a socket in the directory would exceed the limit of `unix(7)`.
    #[error("the path {0} is too long for a Unix socket; set XDG_RUNTIME_DIR to a shorter path")]
    PathTooLong(PathBuf),
}

/// Returns the directory of this user's control sockets: `$XDG_RUNTIME_DIR/mitra`, or
/// `/tmp/mitra-UID` if the variable is not an absolute path.
pub fn default_path() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir.join("mitra"),
        _ => PathBuf::from(format!("/tmp/mitra-{}", Uid::effective())),
    }
}

/// Returns the path of the control socket of a process in the PID namespace of this process.
pub fn socket(dir: &Path, pid: u32) -> PathBuf {
    SocketFile::of_process(pid).path(dir)
}

/// Creates the directory if it does not exist, and checks that only this user can access it.
///
/// # Errors
/// [`RunDirError::NotPrivate`] if another user owns or can access the directory,
/// [`RunDirError::PathTooLong`], or [`RunDirError::Io`] if a system call fails.
pub fn ensure(dir: &Path) -> Result<(), RunDirError> {
    if dir.as_os_str().as_bytes().len() + "/".len() + MAX_NAME > MAX_SOCKET_PATH {
        return Err(RunDirError::PathTooLong(dir.to_owned()));
    }
    let io_error = |error| RunDirError::Io { path: dir.to_owned(), error };
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io_error(error)),
        _ => {}
    }
    // Symbolic links are not followed, because in /tmp any user could have created a link.
    let metadata = dir.symlink_metadata().map_err(io_error)?;
    if !metadata.is_dir() || metadata.uid() != Uid::effective().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err(RunDirError::NotPrivate(dir.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn directory_is_created_with_mode_700() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("mitra");
        ensure(&dir).unwrap();
        ensure(&dir).unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn directory_accessible_to_others_is_rejected() {
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
            assert!(matches!(error, RunDirError::NotPrivate(_)), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()));
        }
        // Root can give a directory to another user. For any other user, `/` is a directory of
        // another user.
        let foreign_dir = if Uid::effective().is_root() {
            std::os::unix::fs::chown(&real, Some(65534), None).unwrap();
            &real
        } else {
            Path::new("/")
        };
        assert!(matches!(ensure(foreign_dir), Err(RunDirError::NotPrivate(_))));
    }

    #[test]
    fn uncreatable_and_too_long_paths_are_errors() {
        let error = ensure(Path::new("/nowhere/mitra")).unwrap_err();
        assert!(matches!(error, RunDirError::Io { .. }), "{error}");
        let long = Path::new("/tmp").join("x".repeat(MAX_SOCKET_PATH));
        assert!(matches!(ensure(&long), Err(RunDirError::PathTooLong(_))));
    }
}
