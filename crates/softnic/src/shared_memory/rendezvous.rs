//! How two NICs of one host find each other: abstract Unix sockets (`unix(7)`), whose names exist
//! in one network namespace, as its IP addresses do.
//!
//! A NIC listens under its address. A NIC that wants to send connects there, and passes the memfd
//! of a ring with its own address. From then on it wakes the receiver by sending a byte. The
//! connection closes when either process ends.
//!
//! A connection is used between processes of one user only. The process that connects must be the
//! one that listens under the address that it states.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mitra_verbs::Gid;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::memory::MappedRing;

/// The first bytes of a hello. The last is the version of the ring's format.
const MAGIC: [u8; 4] = *b"MSR\x01";
/// A hello: [`MAGIC`] and the address of the sender.
const HELLO_LEN: usize = MAGIC.len() + 16;
/// The largest number of connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// The largest number of connections of other users that one call closes.
const MAX_REFUSALS: u32 = 64;
/// The bytes that one call takes from a connection. A correct peer sends one before it waits.
const MAX_WAKE_UPS: u32 = 64;

/// The process at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(i32);

/// One end of a connection.
pub(crate) struct Connection {
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

/// Accepts a connection of a process of the same user. Closes up to [`MAX_REFUSALS`] of others.
/// Returns `None` if no connection waits.
///
/// # Errors
/// The system has no descriptor or memory left.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<Connection>> {
    for _ in 0..MAX_REFUSALS {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => {
                if let Ok(connection) = Connection::of_same_user(socket) {
                    return Ok(Some(connection));
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
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
        Connection::of_same_user(socket)
    }

    fn of_same_user(socket: OwnedFd) -> io::Result<Connection> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        // A process of another process identifier namespace has the identifier 0.
        if peer.uid() != rustix::process::geteuid().as_raw() || peer.pid() <= 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Connection { socket: Arc::new(socket), peer: Process(peer.pid()) })
    }

    /// Returns the descriptor, which is readable when the other end has sent a hello or a wake-up,
    /// or has closed the connection.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Passes a ring to the other end, in the name of the NIC at `own`.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn send_hello(&self, own: Gid, ring: &MappedRing) -> io::Result<()> {
        let Some(memory) = ring.as_fd() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut hello = [0; HELLO_LEN];
        hello[..MAGIC.len()].copy_from_slice(&MAGIC);
        hello[MAGIC.len()..].copy_from_slice(&own.0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [memory];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&hello)], &mut control, flags)?;
        Ok(())
    }

    /// Receives the address of the connecting NIC, and the memfd of its ring.
    pub(crate) fn receive_hello(&self) -> Found<(Gid, OwnedFd)> {
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
        let address = hello[..len].strip_prefix(&MAGIC).and_then(|rest| <[u8; 16]>::try_from(rest).ok());
        match (address, memory) {
            (Some(address), Some(memory)) => Found::Some((Gid(address), memory)),
            _ => Found::Closed,
        }
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

    /// Returns whether the other end has the connection open.
    pub(crate) fn is_open(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match rustix::net::recv(&self.socket, &mut [0; 1][..], flags) {
            Ok((len, _)) => len > 0,
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Closes the connection at both ends, also while another thread sleeps on it.
    pub(crate) fn shut_down(&self) {
        // An error means that the connection is closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Takes the wake-ups since the last call. Returns whether the connection is open.
    pub(crate) fn take_wake_ups(&self) -> bool {
        let mut bytes = [0; 8];
        for _ in 0..MAX_WAKE_UPS {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return error == Errno::AGAIN,
            }
        }
        true
    }
}
