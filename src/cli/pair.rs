//! The second process of a command: this program started again, and messages to it and from it.
//!
//! The two talk over a pair of connected Unix sockets of which the second process has one as its standard input: no port,
//! no name, nobody else to let in. It dies with the first (`PR_SET_PDEATHSIG`), however that ends.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// The longest message.
const MAX_MESSAGE: usize = 64 << 20;
/// How long a message may take that says nothing else: the other process is stuck, not busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The second process of another `mitra` command: started by it, not by people
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What it is to be
    role: Role,
    /// The process that started it
    parent: i32,
}

/// What the second process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Role {
    /// The other end of `mitra bench`.
    Bench,
}

/// What `mitra peer` does: becomes the second process.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to die with the first process")?;
    // It may have died before it was asked.
    ensure!(getppid() == Pid::from_raw(args.parent), "`mitra peer` is started by other mitra commands only");
    let socket = io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?;
    let mut link = Link(UnixStream::from(socket));
    let done = match args.role {
        Role::Bench => super::bench::peer(&mut link),
    };
    if let Err(error) = done {
        // The first process tells the user. If it has gone, there is nobody to tell.
        let _ = link.write(&Err::<(), _>(format!("{error:#}")));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The second process, as the first sees it. It is ended when this is dropped.
pub(crate) struct Pair {
    child: Child,
    /// Messages to it and from it.
    pub(crate) link: Link,
}

impl Pair {
    /// Starts it. The thread that calls this must live as long as the second process shall.
    pub(crate) fn start(role: Role) -> anyhow::Result<Pair> {
        let (here, there) = UnixStream::pair().context("cannot make a socket pair")?;
        let role = clap::ValueEnum::to_possible_value(&role).expect("every role has a name");
        // The program that runs, also when its file was replaced meanwhile.
        let child = Command::new("/proc/self/exe")
            .arg0("mitra")
            .args(["peer", role.get_name(), &std::process::id().to_string()])
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the second process")?;
        Ok(Pair { child, link: Link(here) })
    }

    /// What went wrong here, with what went wrong at the other end, which may be why. It is a [`Failed`].
    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        const MOMENT: Duration = Duration::from_millis(500);
        loop {
            match self.link.receive_within::<serde_json::Value>(MOMENT) {
                Ok(_) => {}
                Err(theirs) if theirs.is::<Theirs>() => return error.context(theirs).context(Failed),
                Err(_) => return error.context(Failed),
            }
        }
    }

    /// Waits until it has ended, once it was told to.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let status = self.child.wait().context("cannot wait for the second process")?;
        ensure!(status.success(), "the second process ended with {status}");
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Both fail only if it has ended and was waited for, which is what they are for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Marks an error of what two processes did, not of what they were asked to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the run failed")
    }
}

/// An error of the other process.
#[derive(Debug)]
struct Theirs(String);

impl fmt::Display for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in the second process: {}", self.0)
    }
}

impl std::error::Error for Theirs {}

/// One end of the connection between the two processes.
pub(crate) struct Link(UnixStream);

impl Link {
    /// Sends a message. If the other process failed instead, its error is this one's.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> anyhow::Result<()> {
        match self.write(&Ok::<_, String>(message)) {
            // It has ended. The last that it said is why.
            Err(error) if error.is::<io::Error>() => loop {
                self.receive::<IgnoredAny>()?;
            },
            written => written,
        }
    }

    /// Waits for a message, [`PATIENCE`] long. If the other process failed instead, its error is this one's.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        self.receive_within(PATIENCE)
    }

    /// Waits for a message, so long.
    pub(crate) fn receive_within<T: DeserializeOwned>(&mut self, patience: Duration) -> anyhow::Result<T> {
        self.0.set_read_timeout(Some(patience))?;
        let mut len = [0; 4];
        match self.0.read_exact(&mut len) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("the other process says nothing for {patience:?}")
            }
            Err(_) => bail!("the other process has ended before it was done"),
        }
        let len = u32::from_le_bytes(len) as usize;
        ensure!(len <= MAX_MESSAGE, "the other process sends a message of {len} bytes");
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).context("the other process ended in the middle of a message")?;
        let message: Result<T, String> =
            serde_json::from_slice(&bytes).context("the other process sends what was not expected")?;
        message.map_err(|error| Theirs(error).into())
    }

    /// Whether a message waits, or the other process has ended.
    pub(crate) fn is_readable(&self) -> anyhow::Result<bool> {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
    }

    fn write<T: Serialize>(&mut self, message: &Result<T, String>) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        ensure!(bytes.len() <= MAX_MESSAGE, "a message of {} bytes is too long", bytes.len());
        let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&bytes);
        Ok(self.0.write_all(&frame)?)
    }
}
