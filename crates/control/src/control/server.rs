//! The side of the program: one thread that lets faults befall its device in time, and answers callers.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Answer, Device, Request};
use crate::script::MAX_SCRIPT;
use crate::{Change, Settings, TimedFault, run_dir};

/// How long a caller may take to say what it wants, and to hear the answer. Faults that are due wait so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a command line that are told.
const MAX_PROGRAM: usize = 256;

/// Serves the device from a thread of its own: `settings.faults` befall it, counted from now; and if there is a
/// `settings.run_dir`, `mitra fault` reaches it. Once in a process: a second call takes the socket's name over.
///
/// # Errors
/// The directory is not this user's alone, or the socket or thread cannot be made.
pub fn serve(settings: &Settings, device: impl Device) -> io::Result<Server> {
    let listener = match &settings.run_dir {
        Some(dir) => {
            run_dir::ensure(dir).map_err(io::Error::other)?;
            let path = dir.join(format!("{}.sock", process::id()));
            // Left by a process that had this number before, or by this one before it became another program.
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            Some((listener, path))
        }
        None => None,
    };
    let (listener, socket) = listener.unzip();
    let (stop, stopped) = UnixStream::pair()?;
    let mut controller =
        Controller { device, rails: settings.rails.count(), due: Vec::new(), listener, stopped };
    controller.schedule(&settings.faults.0);
    let thread = crate::thread::start("mitra-control", move || controller.run())?;
    Ok(Server { thread: Some(thread), stop: Some(stop), socket, pid: process::id() })
}

/// Ends the service, and removes its socket, when it is dropped; in a process forked from the one that it serves, dropping
/// it does nothing.
#[derive(Debug)]
pub struct Server {
    thread: Option<JoinHandle<()>>,
    stop: Option<UnixStream>,
    socket: Option<PathBuf>,
    pid: u32,
}

impl Drop for Server {
    fn drop(&mut self) {
        if process::id() != self.pid {
            return;
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a device that panicked has said so
        }
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket); // if it has gone, all the better
        }
    }
}

struct Controller<D> {
    device: D,
    rails: usize,
    /// In the order in which they fall due; of two at one time, the one that came first.
    due: Vec<(Instant, usize, Change)>,
    listener: Option<UnixListener>,
    /// Closed at its other end when the service is to end.
    stopped: UnixStream,
}

impl<D: Device> Controller<D> {
    /// Enters faults, counted from now, and lets those strike that are due.
    fn schedule(&mut self, faults: &[TimedFault]) {
        let now = Instant::now();
        // A time beyond the clock's end never comes.
        let due = |fault: &TimedFault| Some((now.checked_add(fault.after)?, fault.rail, fault.change));
        self.due.extend(faults.iter().filter_map(due));
        self.due.sort_by_key(|(at, ..)| *at);
        self.strike(now);
    }

    fn strike(&mut self, now: Instant) {
        let struck = self.due.partition_point(|(at, ..)| *at <= now);
        for (_, rail, change) in self.due.drain(..struck) {
            self.device.inflict(rail, change);
        }
    }

    fn run(mut self) {
        while self.wait() {
            self.strike(Instant::now());
            if let Some(Ok((mut caller, _))) = self.listener.as_ref().map(UnixListener::accept) {
                let _ = self.answer(&mut caller); // a caller that went away needs no answer
            }
        }
    }

    /// Waits until there is something to do; false if that is to end.
    fn wait(&self) -> bool {
        let timeout = match self.due.first() {
            Some((at, ..)) => {
                // Rounded up: not to spin in the last millisecond. Longer than the system's longest, it looks again.
                let millis = at.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
                PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        let mut fds = vec![PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.listener.as_ref().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)));
        // An interruption is a reason to look. Other errors need a wrong argument.
        let _ = poll(&mut fds, timeout);
        !fds[0].any().unwrap_or(false)
    }

    fn answer(&mut self, caller: &mut UnixStream) -> io::Result<()> {
        caller.set_nonblocking(false)?;
        caller.set_write_timeout(Some(PATIENCE))?;
        let answer = match read_line(caller)?.parse() {
            Ok(Request::Status) => {
                Answer::Status { pid: process::id(), program: program(), device: self.device.status() }
            }
            Ok(Request::Inflict(script)) => match script.check(self.rails) {
                Ok(()) => {
                    self.schedule(&script.0);
                    Answer::Done
                }
                Err(why) => Answer::Refused(why),
            },
            Err(why) => Answer::Refused(why),
        };
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        caller.write_all(&line)
    }
}

/// A line, or what there is of it after so many bytes that it is too long anyway.
fn read_line(caller: &mut UnixStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    let mut chunk = [0; 512];
    while line.len() <= MAX_SCRIPT && !line.contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        // A time-out of zero would mean none.
        caller.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match caller.read(&mut chunk)? {
            0 => break,
            n => line.extend_from_slice(&chunk[..n]),
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// The command line, cut where it is long.
fn program() -> String {
    let words: Vec<_> = env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut line = words.join(" ");
    line.truncate(line.floor_char_boundary(MAX_PROGRAM));
    line
}
