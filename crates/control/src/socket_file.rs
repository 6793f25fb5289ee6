//! The files of the control sockets. Processes of several PID namespaces may share a run directory,
//! as containers do, and a process ID is unique in its namespace only. The name of a socket
//! therefore has both.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;

const ENDS: &str = ".sock";
/// The longest name of a control socket, in bytes.
pub(crate) const MAX_NAME: usize = "2147483647-4294967295.sock".len();

/// The socket of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SocketFile {
    pub(crate) pid: u32,
    /// The inode of the PID namespace (`pid_namespaces(7)`), or 0 if the system does not show it.
    namespace: u64,
}

impl SocketFile {
    /// The socket of a process in the PID namespace of this process.
    pub(crate) fn of_process(pid: u32) -> SocketFile {
        let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        SocketFile { pid, namespace }
    }

    /// Returns `None` if a file is not the socket of a process.
    pub(crate) fn parse(file: &Path) -> Option<SocketFile> {
        let (pid, namespace) = file.file_name()?.to_str()?.strip_suffix(ENDS)?.split_once('-')?;
        let pid = pid.parse().ok().filter(|&pid: &u32| pid > 0 && i32::try_from(pid).is_ok())?;
        Some(SocketFile { pid, namespace: namespace.parse().ok()? })
    }

    pub(crate) fn path(self, dir: &Path) -> PathBuf {
        dir.join(format!("{}-{}{ENDS}", self.pid, self.namespace))
    }

    /// A path at which no client looks. It is as long as [`path`](Self::path).
    pub(crate) fn path_while_opening(self, dir: &Path) -> PathBuf {
        dir.join(format!(".{}-{}.new", self.pid, self.namespace))
    }

    pub(crate) fn is_in_own_namespace(self) -> bool {
        self.namespace == Self::of_process(self.pid).namespace
    }

    /// Whether no process uses the socket in `dir`. The kernel can reuse the process ID of an ended
    /// process in this namespace for one without a control socket, so such a socket is not seen to
    /// be unused.
    pub(crate) fn is_unused(self, dir: &Path) -> bool {
        if self.is_in_own_namespace() { has_ended(self.pid) } else { nobody_listens(&self.path(dir)) }
    }
}

/// Whether this PID namespace has no process with this ID.
pub(crate) fn has_ended(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH))
}

/// Whether the process of a socket has ended. Its server listens before the socket has this path,
/// and a server with as many clients as it can have does not refuse one.
fn nobody_listens(path: &Path) -> bool {
    let connected = (|| {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
    })();
    connected == Err(Errno::ECONNREFUSED)
}
