//! The client side of the control socket: lists the controlled processes and sends requests to
//! them.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::socket_file::{SocketFile, has_ended};
use crate::{Request, Response};

/// The time within which the whole response must arrive. The server serves one client at a time,
/// for at most 1 s (`server::CLIENT_TIMEOUT`), so this timeout must be longer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest response that the client reads, in bytes. A snapshot with the most vQPs and events
/// has 600 KB.
const MAX_RESPONSE_BYTES: u64 = 4 << 20;

/// A process that has a control socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControlledProcess {
    /// The process ID.
    pub pid: u32,
    socket: PathBuf,
}

/// Why a request has no valid response.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The process has ended.
    #[error("process {0} has ended")]
    ProcessEnded(u32),
    /// The process is stopped, or its control thread is blocked.
    #[error("process {pid} does not respond ({error}); check whether it is stopped (ps -o stat -p {pid})")]
    NoResponse {
        /// The process ID.
        pid: u32,
        /// The error of the socket.
        error: io::Error,
    },
    /// The response is not valid in this version of the protocol.
    #[error(
        "process {pid} sent a response that this version cannot parse ({error}); use the `mitra` that started it"
    )]
    InvalidResponse {
        /// The process ID.
        pid: u32,
        /// The parse error.
        error: serde_json::Error,
    },
}

/// Returns the processes of this PID namespace that have a control socket in a directory, in
/// ascending order of process ID. Removes the sockets of processes that have ended, in any
/// namespace.
///
/// # Errors
/// If the directory exists and cannot be read. A directory that does not exist holds no processes.
pub fn list_processes(dir: &Path) -> io::Result<Vec<ControlledProcess>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut processes = Vec::new();
    for entry in entries {
        let socket = entry?.path();
        let Some(file) = SocketFile::parse(&socket) else { continue };
        if file.is_unused(dir) {
            let _ = fs::remove_file(socket); // fails if another client has removed the socket first
        } else if file.is_in_own_namespace() {
            processes.push(ControlledProcess { pid: file.pid, socket });
        }
    }
    processes.sort_by_key(|process| process.pid);
    Ok(processes)
}

impl ControlledProcess {
    /// Sends a request and waits up to 3 s for the whole response.
    ///
    /// # Errors
    /// [`RequestError::ProcessEnded`] if nothing listens on the socket,
    /// [`RequestError::NoResponse`] if the process does not respond in time,
    /// [`RequestError::InvalidResponse`] if the response cannot be parsed.
    pub fn request(&self, request: &Request) -> Result<Response, RequestError> {
        let pid = self.pid;
        let response = self.exchange(request).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                let _ = fs::remove_file(&self.socket); // a socket without a listener stays unusable
                RequestError::ProcessEnded(pid)
            }
            _ if has_ended(pid) => RequestError::ProcessEnded(pid),
            _ => RequestError::NoResponse { pid, error },
        })?;
        serde_json::from_slice(&response).map_err(|error| RequestError::InvalidResponse { pid, error })
    }

    fn exchange(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut connection = Connection::open(&self.socket, Instant::now() + RESPONSE_TIMEOUT)?;
        connection.write_all(format!("{request}\n").as_bytes())?;
        let mut response = Vec::new();
        connection.take(MAX_RESPONSE_BYTES).read_to_end(&mut response)?;
        Ok(response)
    }
}

/// A connection whose calls end at the deadline.
struct Connection {
    socket: UnixStream,
    deadline: Instant,
}

impl Connection {
    /// Waits for room in the socket's backlog, because a stopped process accepts no connection.
    fn open(path: &Path, deadline: Instant) -> io::Result<Connection> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        let connection = Connection { socket: fd.into(), deadline };
        // The write timeout also limits `connect` (Linux, net/unix/af_unix.c).
        connection.socket.set_write_timeout(Some(connection.remaining()?))?;
        connect(connection.socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(connection)
    }

    /// Returns the error `TimedOut` after the deadline.
    fn remaining(&self) -> io::Result<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.remaining()?))?;
        self.socket.read(buffer)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.remaining()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
