//! How two NICs of one host find each other: abstract Unix sockets (`unix(7)`), whose names exist
//! in one network namespace, as its IP addresses do.
//!
//! A NIC listens under its address. A NIC that wants to send connects there, and passes the memfd
//! of a ring with its own address and a secret. From then on it wakes the receiver by sending a
//! byte, as the receiver wakes it. The connection closes when either process ends.
//!
//! A connection is used between processes of one user only. The process that connects must be the
//! one that listens under the address that it states: the receiver connects there with a secret of
//! its own, which the other process returns over the first connection. Process identifiers would
//! prove nothing between two containers, which have process identifier namespaces of their own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use mitra_os_util::close_on_fork::CloseOnFork;
use mitra_verbs::Gid;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

/// The first bytes of a hello. The last is the version of the ring's format.
const MAGIC: [u8; 4] = *b"MSR\x02";
/// A hello: [`MAGIC`], the address of the sender, and its secret.
const HELLO_LEN: usize = MAGIC.len() + 16 + SECRET_LEN;
const SECRET_LEN: usize = 16;
/// The largest number of connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// The identifier of users that a user namespace does not map, unless an administrator has changed
/// it.
const OVERFLOW_USER: u32 = 65534;

/// The process at the other end of a connection. All processes of other process identifier
/// namespaces have the number 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(i32);

/// What a NIC tells only the process that listens under a peer's address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secret([u8; SECRET_LEN]);

impl Secret {
    /// # Errors
    /// The system has no random bytes.
    pub(crate) fn new() -> io::Result<Secret> {
        let mut bytes = [0; SECRET_LEN];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Secret(bytes))
    }
}

/// What a connection passes to a receiver.
pub(crate) struct Hello {
    /// The address that the sender states.
    pub(crate) peer: Gid,
    pub(crate) secret: Secret,
    /// The memfd of the ring.
    pub(crate) memory: OwnedFd,
}

/// A message of the other end, after the hello.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    WakeUp,
    /// The secret of this end.
    Proof(Secret),
}

/// The result of [`accept`].
pub(crate) enum Accepted {
    /// A connection of a process of the same user.
    Connection(Connection),
    OfOtherUser(OwnedFd),
    Nothing,
}

/// One end of a connection.
pub(crate) struct Connection {
    /// A child of `fork` would hide from the other end that this process has ended.
    _close_on_fork: Option<CloseOnFork>,
    socket: Arc<OwnedFd>,
    pub(crate) peer: Process,
}

/// What a read of a connection has found.
#[derive(Debug)]
pub(crate) enum Found<T> {
    Some(T),
    /// Nothing yet.
    Nothing,
    /// The other end has closed the connection, or sent what no correct end sends.
    Closed,
}

fn name(address: Gid) -> io::Result<SocketAddrUnix> {
    let mut name = b"mitra-softnic/".to_vec();
    name.extend(address.0);
    Ok(SocketAddrUnix::new_abstract_name(&name)?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Listens for connections to the NIC at an address.
///
/// # Errors
/// A system call fails: for example, another process listens under this address.
pub(crate) fn listen(address: Gid) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name(address)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts a connection.
///
/// # Errors
/// The system has no descriptor or memory left.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Accepted> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => Ok(match process_of_same_user(&socket) {
            Ok(peer) => Accepted::Connection(Connection::new(socket, peer)),
            Err(_) => Accepted::OfOtherUser(socket),
        }),
        // The listener stays readable if further connections wait.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(Accepted::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Returns the process at the other end of a socket.
///
/// # Errors
/// The process belongs to another user, or the system call fails.
fn process_of_same_user(socket: &OwnedFd) -> io::Result<Process> {
    let peer = getsockopt(socket, PeerCredentials)?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid() != own || is_ambiguous(own) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(Process(peer.pid()))
}

/// Returns the descriptors that are readable now.
pub(crate) fn readable(descriptors: &[Arc<OwnedFd>]) -> Vec<Arc<OwnedFd>> {
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)).collect();
    // After an error, the next look finds the events.
    let _ = poll(&mut polled, PollTimeout::ZERO);
    let found = polled.iter().zip(descriptors).filter(|(polled, _)| polled.any().unwrap_or(false));
    found.map(|(_, descriptor)| Arc::clone(descriptor)).collect()
}

impl Connection {
    /// Connects to the NIC at an address.
    ///
    /// # Errors
    /// No NIC of this user on this host has the address and accepts connections, or a system call
    /// fails.
    pub(crate) fn open(address: Gid) -> io::Result<Connection> {
        let socket = socket()?;
        rustix::net::connect(&socket, &name(address)?)?;
        let peer = process_of_same_user(&socket)?;
        Ok(Connection::new(socket, peer))
    }

    fn new(socket: OwnedFd, peer: Process) -> Connection {
        let _close_on_fork = CloseOnFork::new(socket.as_raw_fd());
        Connection { _close_on_fork, socket: Arc::new(socket), peer }
    }

    /// Returns the descriptor, which is readable when the other end has sent a hello or a wake-up,
    /// or has closed the connection.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Returns whether a descriptor is that of the connection.
    pub(crate) fn has_descriptor(&self, descriptor: &Arc<OwnedFd>) -> bool {
        Arc::ptr_eq(&self.socket, descriptor)
    }

    /// Passes the memfd of a ring to the other end, in the name of the NIC at `own`.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn send_hello(&self, own: Gid, secret: Secret, memory: &OwnedFd) -> io::Result<()> {
        let hello = [&MAGIC[..], &own.0, &secret.0].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [memory.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&hello)], &mut control, flags)?;
        Ok(())
    }

    /// Receives a hello.
    pub(crate) fn receive_hello(&self) -> Found<Hello> {
        let mut hello = [0; HELLO_LEN + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut hello)], &mut control, flags);
        let len = match received {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Found::Nothing,
            Err(_) => return Found::Closed,
        };
        let memory = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let (Some(memory), HELLO_LEN) = (memory, len) else { return Found::Closed };
        let Some((address, rest)) =
            hello[..len].strip_prefix(&MAGIC).and_then(|rest| rest.split_first_chunk())
        else {
            return Found::Closed;
        };
        match <[u8; SECRET_LEN]>::try_from(rest) {
            Ok(secret) => Found::Some(Hello { peer: Gid(*address), secret: Secret(secret), memory }),
            Err(_) => Found::Closed,
        }
    }

    /// Returns the secret of the other end to it, as the proof that this process received it.
    ///
    /// # Errors
    /// The connection is closed, or full.
    pub(crate) fn send_proof(&self, secret: Secret) -> io::Result<()> {
        rustix::net::send(&self.socket, &secret.0, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Wakes the other end.
    ///
    /// # Errors
    /// The connection is closed, or the system has no memory left.
    pub(crate) fn wake_peer(&self) -> io::Result<()> {
        match rustix::net::send(&self.socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            // A full socket wakes the other end as well.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Closes the connection at both ends, also while another thread sleeps on it.
    pub(crate) fn shut_down(&self) {
        // An error means that the connection is closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Receives the next message. A descriptor with further messages stays readable.
    pub(crate) fn receive(&self) -> Found<Message> {
        let mut bytes = [0; SECRET_LEN];
        match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Found::Closed,
            Ok((SECRET_LEN, _)) => Found::Some(Message::Proof(Secret(bytes))),
            Ok(_) => Found::Some(Message::WakeUp),
            Err(Errno::AGAIN | Errno::INTR) => Found::Nothing,
            Err(_) => Found::Closed,
        }
    }
}

/// Returns whether a user of this identifier may be another one. The system shows each user that
/// the user namespace of this process does not map by one identifier.
fn is_ambiguous(user: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(OVERFLOW_USER);
    user == overflow && !maps_all_users(&read("/proc/self/uid_map"))
}

/// Returns whether a user namespace maps all identifiers to themselves, as the initial one does
/// (`user_namespaces(7)`).
fn maps_all_users(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_initial_user_namespace_maps_all_users() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n", "65534 65534 1\n", "0 0 65536\n65536 65536 4294901759\n"] {
            assert!(!maps_all_users(map), "{map}");
        }
    }
}
