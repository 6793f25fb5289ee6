#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// A part of the program without an interface of its own (RELEASING.md).
#![allow(missing_docs)]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// The length of the longest message, in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;
/// The timeout of [`PeerConnection::receive`]. A process that sends nothing for this long is
/// considered stuck.
pub const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which [`PeerProcess::reported_error`] waits for each message.
const REPORT_TIMEOUT: Duration = Duration::from_millis(500);

/// The reason why a second process or the connection to it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer reported an error in place of a message.
    #[error("in the second process: {0}")]
    Reported(String),
    /// The peer sent nothing within the timeout.
    #[error("the other process sent nothing for {0:?}")]
    TimedOut(Duration),
    /// The peer ended: it closed the connection between two messages.
    #[error("the other process ended before it was done")]
    Closed,
    /// The connection ended in the middle of a message.
    #[error("the other process ended in the middle of a message")]
    Truncated(#[source] io::Error),
    /// A message is longer than [`MAX_MESSAGE`]; the value is its length in bytes.
    #[error("a message of {0} bytes is longer than {MAX_MESSAGE} bytes")]
    TooLong(usize),
    /// The peer sent a message of another type than the caller expects.
    #[error("the other process sent an unexpected message")]
    Unexpected(#[source] serde_json::Error),
    /// The message cannot be serialized.
    #[error("cannot serialize a message")]
    Serialize(#[source] serde_json::Error),
    /// The second process ended with this status.
    #[error("the second process ended with {0}")]
    Exited(ExitStatus),
    /// The caller of [`connect_to_parent`] was not started by [`PeerProcess::start`].
    #[error("`mitra peer` is started by other mitra commands only")]
    NotAPeer,
    /// A system call failed. The string names the failed operation.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// Connects the second process to the process that started it, whose id is `parent`.
///
/// The kernel kills the calling process when the thread that called [`PeerProcess::start`] ends.
///
/// # Errors
///
/// [`Error::NotAPeer`] if `parent` is not the id of the parent process; [`Error::System`] if
/// standard input cannot be duplicated or the death signal cannot be set.
pub fn connect_to_parent(parent: i32) -> Result<PeerConnection, Error> {
    set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| Error::System("cannot set the parent-death signal", error.into()))?;
    // If the parent ended before the call above, that call had no effect.
    if getppid() != Pid::from_raw(parent) {
        return Err(Error::NotAPeer);
    }
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|error| Error::System("cannot use standard input", error))?;
    Ok(PeerConnection(UnixStream::from(socket)))
}

/// A second process, owned by the process that started it. Dropping the value kills the process.
#[derive(Debug)]
pub struct PeerProcess {
    child: Child,
    /// The connection to the second process.
    pub connection: PeerConnection,
}

impl PeerProcess {
    /// Starts `mitra peer ROLE PARENT` from the running program's file. Standard output is
    /// discarded; standard error is inherited.
    ///
    /// The kernel kills the second process when the calling thread ends, so call this from a thread
    /// that lives as long as the value.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the socket pair or the process cannot be created.
    pub fn start(role: &str) -> Result<PeerProcess, Error> {
        let (here, there) =
            UnixStream::pair().map_err(|error| Error::System("cannot create a socket pair", error))?;
        // `/proc/self/exe` is the running program even if its file was replaced meanwhile.
        let child = Command::new("/proc/self/exe")
            .arg0("mitra")
            .args(["peer", role, &std::process::id().to_string()])
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| Error::System("cannot start the second process", error))?;
        Ok(PeerProcess { child, connection: PeerConnection(here) })
    }

    /// Returns the process ID of the second process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the error that the second process reported, if it reported one. Waits up to 500 ms
    /// for each message, and discards other messages.
    ///
    /// After an error in this process, the peer's error is often the cause.
    pub fn reported_error(&mut self) -> Option<Error> {
        loop {
            match self.connection.receive_within::<IgnoredAny>(Some(REPORT_TIMEOUT)) {
                Ok(_) => {}
                Err(error @ Error::Reported(_)) => return Some(error),
                Err(_) => return None,
            }
        }
    }

    /// Waits until the second process has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Exited`] if its exit status is not success; [`Error::System`] if the wait fails.
    pub fn wait(mut self) -> Result<(), Error> {
        let status = self.child.wait();
        let status = status.map_err(|error| Error::System("cannot wait for the second process", error))?;
        if status.success() { Ok(()) } else { Err(Error::Exited(status)) }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One end of the connection between the two processes.
///
/// A message is a 32-bit little-endian length and a `Result` in JSON, whose `Err` is an error that
/// the sender reports.
#[derive(Debug)]
pub struct PeerConnection(UnixStream);

impl PeerConnection {
    /// Sends a message.
    ///
    /// # Errors
    ///
    /// [`Error::Reported`], [`Error::Closed`] or [`Error::Truncated`] if the peer has ended;
    /// [`Error::Serialize`] or [`Error::TooLong`] if the message cannot be encoded.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Error> {
        match self.write(&Ok::<_, String>(message)) {
            // The peer has ended. Its last message is the error that it reported, if any.
            Err(Error::System(..)) => loop {
                self.receive::<IgnoredAny>()?;
            },
            written => written,
        }
    }

    /// Reports an error to the peer in place of a message.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the peer has ended; [`Error::TooLong`] if the text is too long.
    pub fn send_error(&mut self, error: &str) -> Result<(), Error> {
        self.write(&Err::<(), _>(error.to_owned()))
    }

    /// Waits up to [`RECEIVE_TIMEOUT`] for a message.
    ///
    /// # Errors
    ///
    /// See [`PeerConnection::receive_within`].
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.receive_within(Some(RECEIVE_TIMEOUT))
    }

    /// Waits up to `timeout` for a message; `None` waits without a bound.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]; [`Error::Reported`] if the peer sent an error; [`Error::Closed`] or
    /// [`Error::Truncated`] if the peer ended; [`Error::TooLong`] or [`Error::Unexpected`] if the
    /// message is not a `T`; [`Error::System`] if the timeout cannot be set.
    pub fn receive_within<T: DeserializeOwned>(&mut self, timeout: Option<Duration>) -> Result<T, Error> {
        self.0
            .set_read_timeout(timeout)
            .map_err(|error| Error::System("cannot set the timeout of a socket", error))?;
        let mut len = [0; 4];
        match (self.0.read_exact(&mut len), timeout) {
            (Ok(()), _) => {}
            (Err(error), Some(timeout)) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Error::TimedOut(timeout));
            }
            (Err(_), _) => return Err(Error::Closed),
        }
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_MESSAGE {
            return Err(Error::TooLong(len));
        }
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).map_err(Error::Truncated)?;
        let message: Result<T, String> = serde_json::from_slice(&bytes).map_err(Error::Unexpected)?;
        message.map_err(Error::Reported)
    }

    /// Returns whether a message waits or the peer has ended.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if `poll` fails.
    pub fn is_readable(&self) -> Result<bool, Error> {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, PollTimeout::ZERO)
            .map_err(|error| Error::System("cannot poll the socket of the other process", error.into()))?;
        Ok(ready > 0)
    }

    /// Returns a second handle of this connection, so that one thread can receive while another
    /// thread sends.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the socket cannot be duplicated.
    pub fn try_clone(&self) -> Result<PeerConnection, Error> {
        let socket = self.0.try_clone().map_err(|error| Error::System("cannot duplicate a socket", error))?;
        Ok(PeerConnection(socket))
    }

    fn write<T: Serialize>(&mut self, message: &Result<T, String>) -> Result<(), Error> {
        let bytes = serde_json::to_vec(message).map_err(Error::Serialize)?;
        if bytes.len() > MAX_MESSAGE {
            return Err(Error::TooLong(bytes.len()));
        }
        let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&bytes);
        self.0.write_all(&frame).map_err(|error| Error::System("cannot send to the other process", error))
    }
}

impl AsFd for PeerConnection {
    /// The descriptor is readable when a message waits or the peer has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> (PeerConnection, PeerConnection) {
        let (here, there) = UnixStream::pair().unwrap();
        (PeerConnection(here), PeerConnection(there))
    }

    #[test]
    fn messages_arrive_in_order() {
        let (mut here, mut there) = connected();
        here.send(&1_u32).unwrap();
        here.send(&"two").unwrap();
        assert!(there.is_readable().unwrap());
        assert_eq!(there.receive::<u32>().unwrap(), 1);
        assert_eq!(there.receive::<String>().unwrap(), "two");
        assert!(!there.is_readable().unwrap());
    }

    #[test]
    fn send_returns_the_error_of_a_peer_that_ended() {
        let (mut here, mut there) = connected();
        there.send(&7_u32).unwrap();
        there.send_error("no such device").unwrap();
        drop(there);
        let error = here.send(&()).unwrap_err();
        assert_eq!(error.to_string(), "in the second process: no such device");
        assert!(matches!(here.receive::<()>(), Err(Error::Closed)));
    }

    #[test]
    fn receive_times_out_on_a_silent_peer() {
        let (mut here, _there) = connected();
        let timeout = Duration::from_millis(1);
        assert!(matches!(here.receive_within::<()>(Some(timeout)), Err(Error::TimedOut(t)) if t == timeout));
    }

    #[test]
    fn malformed_messages_are_errors() {
        let (mut here, mut there) = connected();
        there.send(&"text").unwrap();
        assert!(matches!(here.receive::<u32>(), Err(Error::Unexpected(_))));
        there.0.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(matches!(here.receive::<u32>(), Err(Error::TooLong(_))));
    }
}
