//! A process with a deadline.

use std::fmt;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::{command, guard};

/// The deadline of [`TestProcess::start`], which ends a process that hangs. The deadline is longer
/// than any test takes on a slow machine.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// The deadline for `cargo build` and the like.
pub const BUILD_DEADLINE: Duration = Duration::from_secs(600);
/// The time after the deadline in which the pipes must close. Only a process that left the group
/// can hold them open.
const PIPES_CLOSE: Duration = Duration::from_secs(5);
/// The number of bytes that a message shows of each stream, from the end of the stream.
const SHOWN: usize = 10_000;

/// A process that passed its deadline. The message names the command and the deadline, and shows
/// what the process printed into pipes.
pub struct Expired(String);

impl fmt::Display for Expired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same as `Display`, for `unwrap`.
impl fmt::Debug for Expired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Expired {}

/// A started process, the leader of a process group of its own.
///
/// At the deadline the group is killed, so that reads and waits of the test end; then
/// [`TestProcess::wait`] and the drop panic.
#[derive(Debug)]
pub struct TestProcess {
    /// Standard input, if the command pipes it.
    pub stdin: Option<ChildStdin>,
    /// Standard output, if the command pipes it.
    pub stdout: Option<ChildStdout>,
    /// Standard error, if the command pipes it.
    pub stderr: Option<ChildStderr>,
    line: String,
    end: Instant,
    deadline: Duration,
    expired: Arc<AtomicBool>,
    watchdog: Option<(Sender<()>, JoinHandle<()>)>,
    /// Reaped by the drop only. Until then the numbers of the process and its group are not reused,
    /// so a signal cannot hit another process.
    child: Child,
}

/// Runs a command to its end and returns its output, like [`Command::output`].
///
/// # Panics
///
/// Panics if the command cannot be started or passes [`DEADLINE`].
pub fn output(command: &mut Command) -> Output {
    output_within(command, DEADLINE)
}

/// Like [`output`], with another deadline.
///
/// # Panics
///
/// Panics if the command cannot be started or passes the deadline.
pub fn output_within(command: &mut Command, deadline: Duration) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    TestProcess::start_within(command, deadline).output().unwrap_or_else(|expired| panic!("{expired}"))
}

impl TestProcess {
    /// Starts a command, which [`command`](crate::command()) should have made.
    ///
    /// # Panics
    ///
    /// Panics if the command cannot be started.
    pub fn start(command: &mut Command) -> TestProcess {
        TestProcess::start_within(command, DEADLINE)
    }

    /// Like [`TestProcess::start`], with another deadline.
    ///
    /// # Panics
    ///
    /// Panics if the command cannot be started.
    pub fn start_within(command: &mut Command, deadline: Duration) -> TestProcess {
        command::require_program(command);
        let line = command::line(command);
        let child = command.process_group(0).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("cannot start {line}: {error}"));
        guard::add(child.id());
        let expired = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = channel();
        let (group, set) = (group_of(&child), Arc::clone(&expired));
        let watchdog = std::thread::spawn(move || {
            if stopped.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                set.store(true, Ordering::SeqCst);
                let _ = killpg(group, Signal::SIGKILL); // it fails if all have just ended
            }
        });
        TestProcess {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            line,
            end: Instant::now() + deadline,
            deadline,
            expired,
            watchdog: Some((stop, watchdog)),
            child,
        }
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process, but not to its descendants. A process that has ended receives
    /// nothing.
    pub fn signal(&self, signal: Signal) {
        // The process was not reaped, so it exists, and it is a child of this one.
        kill(group_of(&self.child), signal).expect("a child of this process");
    }

    /// Returns how the process ended, if it has.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.ended(WaitPidFlag::WNOHANG)
    }

    /// Waits until the process has ended. Like [`std::process::Child::wait`] it closes standard
    /// input first.
    ///
    /// # Panics
    ///
    /// Panics if the process passed its deadline.
    pub fn wait(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        let status = self.ended(WaitPidFlag::empty()).expect("the wait was not limited");
        if self.expired.swap(false, Ordering::SeqCst) {
            panic!("{}", self.message(None));
        }
        status
    }

    /// Waits until the process has ended. Returns its output on the pipes that the test has not
    /// taken.
    ///
    /// # Errors
    ///
    /// Fails if the process passed its deadline.
    pub fn output(mut self) -> Result<Output, Expired> {
        drop(self.stdin.take());
        let mut output = Output { status: ExitStatus::default(), stdout: Vec::new(), stderr: Vec::new() };
        let are_closed = self.read_pipes(&mut output);
        if are_closed {
            output.status = self.ended(WaitPidFlag::empty()).expect("the wait was not limited");
        }
        if self.expired.swap(false, Ordering::SeqCst) || !are_closed {
            return Err(Expired(self.message(Some(&output))));
        }
        Ok(output)
    }

    /// Returns how the process ended and leaves it to be reaped by the drop.
    fn ended(&self, flags: WaitPidFlag) -> Option<ExitStatus> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | flags;
        loop {
            // <sys/wait.h>: a wait status has the exit code in bits 8 to 15, or else the signal in bits 0 to
            // 6 and bit 7 for a core dump.
            let raw = match waitid(Id::Pid(group_of(&self.child)), flags) {
                Ok(WaitStatus::Exited(_, code)) => code << 8,
                Ok(WaitStatus::Signaled(_, signal, dumped)) => signal as i32 | i32::from(dumped) << 7,
                Ok(_) => return None,
                Err(Errno::EINTR) => continue,
                Err(error) => panic!("cannot wait for {}: {error}", self.line),
            };
            return Some(ExitStatus::from_raw(raw));
        }
    }

    /// Reads both streams until they are closed, and returns whether they are.
    fn read_pipes(&mut self, output: &mut Output) -> bool {
        let last = self.end + PIPES_CLOSE;
        while self.stdout.is_some() || self.stderr.is_some() {
            let fds = [self.stdout.as_ref().map(AsFd::as_fd), self.stderr.as_ref().map(AsFd::as_fd)];
            let mut fds: Vec<_> =
                fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let left = last.saturating_duration_since(Instant::now());
            match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if Instant::now() >= last => return false,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => panic!("cannot poll the pipes of {}: {error}", self.line),
            }
            let is_ready = |fd: &PollFd| fd.any().unwrap_or(true);
            let mut ready = fds.iter().map(is_ready).collect::<Vec<_>>().into_iter();
            if self.stdout.is_some() && ready.next() == Some(true) {
                read_some(&mut self.stdout, &mut output.stdout);
            }
            if self.stderr.is_some() && ready.next() == Some(true) {
                read_some(&mut self.stderr, &mut output.stderr);
            }
        }
        true
    }

    fn message(&mut self, output: Option<&Output>) -> String {
        let deadline = self.deadline;
        let mut text = format!("{} did not end within {deadline:?}, and was killed", self.line);
        let mut rest = Output { status: ExitStatus::default(), stdout: Vec::new(), stderr: Vec::new() };
        let output = output.unwrap_or_else(|| {
            self.read_pipes(&mut rest);
            &rest
        });
        for (name, bytes) in [("output", &output.stdout), ("errors", &output.stderr)] {
            let shown = &bytes[bytes.len().saturating_sub(SHOWN)..];
            if !shown.is_empty() {
                text += &format!("\n--- standard {name}\n{}", String::from_utf8_lossy(shown));
            }
        }
        text
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        if let Some((stop, watchdog)) = self.watchdog.take() {
            drop(stop);
            let _ = watchdog.join(); // it does not panic
        }
        let group = group_of(&self.child);
        let _ = killpg(group, Signal::SIGKILL); // it fails if all have ended
        guard::remove(self.child.id());
        let has_expired = self.expired.load(Ordering::SeqCst);
        let message = has_expired.then(|| self.message(None));
        let _ = self.child.wait(); // it cannot fail for a child that nobody else reaps
        match message {
            Some(message) if std::thread::panicking() => eprintln!("{message}"),
            Some(message) => panic!("{message}"),
            None => {}
        }
    }
}

fn group_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

/// Reads the available data, and closes the stream at its end.
fn read_some(stream: &mut Option<impl Read>, into: &mut Vec<u8>) {
    let mut chunk = [0; 65536];
    let Some(open) = stream else { return };
    match open.read(&mut chunk) {
        Ok(0) | Err(_) => *stream = None,
        Ok(len) => into.extend_from_slice(&chunk[..len]),
    }
}

#[cfg(test)]
mod tests;
