//! The side of `mitra fault`: which programs run, and what they answer.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Answer, Request};

/// How long a program may take to answer: longer than another caller may hold it up.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of the longest answer.
const MAX_ANSWER: u64 = 64 << 10;

/// A process that listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    socket: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It has ended.
    #[error("process {0} has ended")]
    Gone(u32),
    /// It is stopped, or stuck.
    #[error("process {pid} does not answer ({error}); see whether it is stopped (ps -o stat -p {pid})")]
    Silent {
        /// The process.
        pid: u32,
        /// What the system says.
        error: io::Error,
    },
    /// It answers what no Mitra of this version does.
    #[error(
        "process {pid} answers what this version does not understand ({error}); use the `mitra` that started it"
    )]
    Strange {
        /// The process.
        pid: u32,
        /// What is wrong with the answer.
        error: serde_json::Error,
    },
}

/// The processes that listen in this directory, by number. Sockets that ended processes left behind are removed.
///
/// # Errors
/// The directory is there and cannot be read.
pub fn processes(dir: &Path) -> io::Result<Vec<Process>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let socket = entry?.path();
        let is_socket = socket.extension().is_some_and(|extension| extension == "sock");
        let pid = socket.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        let Some(pid) = pid.filter(|_| is_socket) else { continue };
        let process = Process { pid, socket };
        if process.has_gone() {
            let _ = fs::remove_file(&process.socket); // somebody else may have been quicker
        } else {
            found.push(process);
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

impl Process {
    fn has_gone(&self) -> bool {
        // A number given to a new process leaves a socket that nobody listens at: `ask` finds that.
        !Path::new("/proc").join(self.pid.to_string()).exists()
    }

    /// Asks it.
    ///
    /// # Errors
    /// It has ended, or does not answer as it should.
    pub fn ask(&self, request: &Request) -> Result<Answer, AskError> {
        let pid = self.pid;
        let answer = self.exchange(request).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                let _ = fs::remove_file(&self.socket); // nobody will ever listen at it again
                AskError::Gone(pid)
            }
            _ if self.has_gone() => AskError::Gone(pid),
            _ => AskError::Silent { pid, error },
        })?;
        serde_json::from_slice(&answer).map_err(|error| AskError::Strange { pid, error })
    }

    fn exchange(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut socket = UnixStream::connect(&self.socket)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.write_all(format!("{request}\n").as_bytes())?;
        let mut answer = Vec::new();
        socket.take(MAX_ANSWER).read_to_end(&mut answer)?;
        Ok(answer)
    }
}
