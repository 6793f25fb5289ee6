//! The server side of the control socket: one thread that applies scheduled faults and serves
//! clients.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::fault_script::MAX_SCRIPT_BYTES;
use crate::socket_file::SocketFile;
use crate::{
    ControlledDevice, FaultAction, FaultScript, Request, Response, ScheduledFault, Settings, run_dir,
};

/// Timeout for reading a request, and for each write of its response. Scheduled faults wait while a
/// slow client is served.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest command line in a status response, in bytes.
const MAX_COMMAND_LINE_BYTES: usize = 256;

/// A running control server. Dropping the server stops its thread and removes the socket. After a
/// fork, the drop in the child does nothing.
#[derive(Debug)]
pub struct ControlServer {
    thread: Option<JoinHandle<()>>,
    /// Closing this end makes the other end, [`ServerThread::stop_requested`], readable.
    stop_signal: Option<UnixStream>,
    socket: Option<PathBuf>,
    pid: u32,
}

impl ControlServer {
    /// Starts a thread that serves a device.
    ///
    /// The thread applies `settings.faults`, whose delays begin at this call. If `settings.run_dir`
    /// is set, the thread also serves clients on a socket there ([`run_dir::socket`]). A process
    /// runs at most one server, because a second server replaces the socket of the first.
    ///
    /// # Errors
    /// If the run directory is not private to this user ([`run_dir::ensure`]), or the socket or the
    /// thread cannot be created.
    pub fn start(settings: &Settings, device: impl ControlledDevice) -> io::Result<ControlServer> {
        let listener = match &settings.run_dir {
            Some(dir) => {
                run_dir::ensure(dir).map_err(io::Error::other)?;
                let file = SocketFile::of_process(process::id());
                let (path, opening) = (file.path(dir), file.path_while_opening(dir));
                // An earlier process with this ID may have left its socket, at either path.
                let _ = fs::remove_file(&opening);
                let listener = UnixListener::bind(&opening)?;
                // A client takes a socket for that of an ended process if nobody listens.
                fs::rename(&opening, &path)?;
                listener.set_nonblocking(true)?;
                Some((listener, path))
            }
            None => None,
        };
        let (listener, socket) = listener.unzip();
        let (stop_signal, stop_requested) = UnixStream::pair()?;
        let mut server = ServerThread {
            device,
            rails: settings.rails.count(),
            pending: Vec::new(),
            listener,
            stop_requested,
        };
        let (faults, refused) = server.check(&settings.faults.0);
        let failed = server.schedule(&faults);
        refused.iter().chain(&failed).for_each(|error| tracing::warn!("{error}"));
        let thread = mitra_os_util::thread::spawn("mitra-control", move || server.run())?;
        Ok(ControlServer { thread: Some(thread), stop_signal: Some(stop_signal), socket, pid: process::id() })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if process::id() != self.pid {
            return;
        }
        drop(self.stop_signal.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if the device panicked, the panic hook has reported it
        }
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket); // fails if a second server has removed the socket first
        }
    }
}

struct ServerThread<D> {
    device: D,
    rails: usize,
    /// Scheduled faults with their rails, sorted by due time. Faults due at the same time keep the
    /// order in which they were requested.
    pending: Vec<(Instant, usize, FaultAction)>,
    listener: Option<UnixListener>,
    /// Becomes readable when the server is dropped.
    stop_requested: UnixStream,
}

impl<D: ControlledDevice> ServerThread<D> {
    /// Returns the faults that the device can have, and the errors of the others.
    fn check(&self, faults: &[ScheduledFault]) -> (Vec<ScheduledFault>, Vec<String>) {
        let mut errors = Vec::new();
        let mut is_possible = |fault: &&ScheduledFault| {
            let checked = self.device.check_fault(fault.rail, fault.action);
            errors.extend(checked.as_ref().err().map(|reason| format!("`{fault}`: {reason}")));
            checked.is_ok()
        };
        (faults.iter().filter(&mut is_possible).copied().collect(), errors)
    }

    /// Schedules faults, whose delays begin now, and applies the due faults. Returns the errors of
    /// the applied faults.
    fn schedule(&mut self, faults: &[ScheduledFault]) -> Vec<String> {
        let now = Instant::now();
        // A fault whose due time exceeds the range of `Instant` never becomes due.
        let pending =
            |fault: &ScheduledFault| Some((now.checked_add(fault.delay)?, fault.rail, fault.action));
        self.pending.extend(faults.iter().filter_map(pending));
        self.pending.sort_by_key(|(due, ..)| *due);
        self.apply_due(now)
    }

    fn apply_due(&mut self, now: Instant) -> Vec<String> {
        let due = self.pending.partition_point(|(due, ..)| *due <= now);
        let mut errors = Vec::new();
        for (_, rail, action) in self.pending.drain(..due) {
            if let Err(reason) = self.device.apply_fault(rail, action) {
                errors.push(format!("`rail{rail} {action}`: {reason}"));
            }
        }
        errors
    }

    fn run(mut self) {
        while self.wait() {
            self.apply_due(Instant::now()).iter().for_each(|error| tracing::warn!("{error}"));
            if let Some(Ok((mut client, _))) = self.listener.as_ref().map(UnixListener::accept) {
                let _ = self.respond(&mut client); // fails if the client disconnects early or times out
            }
        }
    }

    /// Waits until a fault is due or a client connects. Returns false if the server must stop.
    fn wait(&self) -> bool {
        let timeout = match self.pending.first() {
            Some((due, ..)) => {
                // Rounding the timeout down would busy-wait during the last millisecond. A timeout
                // beyond the range of `poll` ends early, and the caller waits again.
                let millis = due.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        let mut fds = vec![PollFd::new(self.stop_requested.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.listener.as_ref().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
        // After EINTR the caller finds nothing to do and waits again. With valid arguments `poll`
        // has no other error.
        let _ = poll(&mut fds, timeout);
        !fds[0].any().unwrap_or(false)
    }

    /// Applies the faults of a script, each after its delay, or none of them.
    fn apply(&mut self, script: &FaultScript) -> Response {
        if let Err(reason) = script.check_rails(self.rails) {
            return Response::Refused(reason);
        }
        let (_, refused) = self.check(&script.0);
        if !refused.is_empty() {
            return Response::Refused(refused.join("; "));
        }
        match self.schedule(&script.0).join("; ") {
            errors if errors.is_empty() => Response::Done,
            errors => Response::Failed(errors),
        }
    }

    fn respond(&mut self, client: &mut UnixStream) -> io::Result<()> {
        client.set_nonblocking(false)?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let response = match read_line(client)?.parse() {
            Ok(Request::Status) => {
                Response::Status { pid: process::id(), program: command_line(), device: self.device.status() }
            }
            Ok(Request::Snapshot) => Response::Snapshot {
                pid: process::id(),
                program: command_line(),
                snapshot: Box::new(self.device.snapshot()),
            },
            Ok(Request::ApplyFaults(script)) => self.apply(&script),
            Err(reason) => Response::Refused(reason),
        };
        let mut line = serde_json::to_vec(&response)?;
        line.push(b'\n');
        client.write_all(&line)
    }
}

/// Reads a line. Stops after more than [`MAX_SCRIPT_BYTES`], because the parser rejects a longer
/// request.
fn read_line(client: &mut UnixStream) -> io::Result<String> {
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    let mut line = Vec::new();
    let mut chunk = [0; 512];
    while line.len() <= MAX_SCRIPT_BYTES && !line.contains(&b'\n') {
        let remaining = deadline.saturating_duration_since(Instant::now());
        // `set_read_timeout` rejects zero.
        client.set_read_timeout(Some(remaining.max(Duration::from_millis(1))))?;
        match client.read(&mut chunk)? {
            0 => break,
            n => line.extend_from_slice(&chunk[..n]),
        }
        if remaining.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

fn command_line() -> String {
    let args: Vec<_> = env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut line = args.join(" ");
    line.truncate(line.floor_char_boundary(MAX_COMMAND_LINE_BYTES));
    line
}
