//! Sockets of the netlink family `NETLINK_RDMA`, by which `rdma link` and `rdma dev` of iproute2
//! ask the kernel for devices.
//!
//! The override creates a pair of Unix sockets, and a thread answers at the socket that the program
//! does not get. A program sends to the kernel's address, which a connected socket of type
//! `SOCK_SEQPACKET` ignores (`unix_seqpacket_sendmsg` in net/unix/af_unix.c). The thread's socket
//! has a name with the length and the port of the kernel's address, because libmnl and libnl check
//! the sender of a message.

use core::ffi::c_int;
use core::ptr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use libc::{sockaddr, socklen_t};
use mitra_os_util::{random, thread};
use nix::errno::Errno;

use crate::common::cancellation;
use crate::common::close_on_fork::{CloseOnFork, close_on_fork};
use crate::common::errno::{minus_one, set_errno};
use crate::common::high_descriptor::moved_up;

mod messages;

next_functions! {
    next;
    socket: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    bind: unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;
    getsockname: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
}

pub(super) fn look_up() {
    next::look_up();
}

/// `struct sockaddr_nl`. The type in the crate libc hides a field.
#[repr(C)]
#[derive(Clone, Copy)]
struct Address {
    family: u16,
    padding: u16,
    port: u32,
    groups: u32,
}

const ADDRESS_LEN: socklen_t = size_of::<Address>() as socklen_t;
/// The address of the threads' sockets, except for `groups`.
const KERNEL: Address = Address { family: libc::AF_UNIX as u16, padding: 0, port: 0, groups: 0 };
/// The maximum length of a request in bytes. A request names at most a device and a port.
const MAX_REQUEST: usize = 4096;

/// # Safety
/// The rules of socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if (domain, protocol) == (libc::AF_NETLINK, libc::NETLINK_RDMA) {
        return match cancellation::held_off(|| open(kind)) {
            Ok(socket) => socket.into_raw_fd(),
            Err(error) => minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        };
    }
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    next::socket.get().map_or_else(|| minus_one(libc::ENOSYS), |next| unsafe { next(domain, kind, protocol) })
}

/// Returns the program's socket.
fn open(kind: c_int) -> io::Result<OwnedFd> {
    let mut pair = [0; 2];
    // SAFETY: `pair` has room for two descriptors, which are new and unknown to other code.
    let [programs, own] = unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        if libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) < 0 {
            return Err(io::Error::last_os_error());
        }
        pair.map(|fd| OwnedFd::from_raw_fd(fd))
    };
    // SAFETY: the descriptor is open, and the commands take an integer.
    unsafe {
        if kind & libc::SOCK_CLOEXEC == 0 {
            libc::fcntl(programs.as_raw_fd(), libc::F_SETFD, 0);
        }
        libc::fcntl(programs.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | kind & libc::SOCK_NONBLOCK);
    }
    name_as_kernel(&own)?;
    let own = moved_up(own);
    // The child of a fork has no thread that answers. The child gets no copy of the thread's
    // socket, so the program's socket ends when the parent ends.
    let own = Answering { _close_on_fork: close_on_fork(own.as_raw_fd())?, socket: own.into() };
    thread::spawn("mitra-netlink", move || answer(own))?;
    Ok(programs)
}

/// Gives a socket an abstract name that programs take for the address of the kernel: as long as
/// `struct sockaddr_nl`, and with port 0.
fn name_as_kernel(own: &OwnedFd) -> io::Result<()> {
    let mut name = KERNEL;
    // A name must be unique in the network namespace.
    name.groups = random::random_u64()? as u32;
    // SAFETY: the pointer and the length describe `name`.
    match unsafe { libc::bind(own.as_raw_fd(), (&raw const name).cast(), ADDRESS_LEN) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The socket at which a thread answers. The order of the fields ends the registration before the
/// socket is closed.
struct Answering {
    _close_on_fork: CloseOnFork,
    socket: UnixDatagram,
}

/// Answers the requests of a program until the program closes its socket.
fn answer(own: Answering) {
    let own = &own.socket;
    let mut request = [0; MAX_REQUEST];
    while let Ok(1..) = own.recv(&mut request).inspect(|&len| {
        for message in messages::answers(&request[..len]) {
            let _ = own.send(&message); // The program may have closed its socket.
        }
    }) {}
}

/// Returns whether a descriptor is a socket that [`open`] has returned.
fn is_of_a_pair(fd: c_int) -> bool {
    let (mut peer, mut len) = (KERNEL, ADDRESS_LEN);
    let before = Errno::last_raw();
    // SAFETY: the call writes at most `len` bytes to `peer`.
    let known = unsafe { libc::getpeername(fd, (&raw mut peer).cast(), &raw mut len) } == 0;
    set_errno(before);
    let of_kernel = (KERNEL.family, KERNEL.padding, KERNEL.port);
    known && len == ADDRESS_LEN && (peer.family, peer.padding, peer.port) == of_kernel
}

/// The netlink address that the program chooses has no effect, because only the thread sends to the
/// socket.
///
/// # Safety
/// The rules of bind(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some(next) = next::bind.get() else { return minus_one(libc::ENOSYS) };
    // SAFETY: the caller upholds the rules. The address was readable, because the kernel read it
    // before the failure with EINVAL.
    unsafe {
        let result = next(fd, address, len);
        let is_invalid = result < 0 && *libc::__errno_location() == libc::EINVAL;
        let is_netlink = || i32::from((*address).sa_family) == libc::AF_NETLINK;
        if is_invalid && len >= ADDRESS_LEN && is_netlink() && is_of_a_pair(fd) { 0 } else { result }
    }
}

/// # Safety
/// The rules of getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if !is_of_a_pair(fd) {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        return next::getsockname
            .get()
            .map_or_else(|| minus_one(libc::ENOSYS), |next| unsafe { next(fd, address, len) });
    }
    // The program's Unix socket has no name.
    let own = Address { family: libc::AF_NETLINK as u16, port: std::process::id(), ..KERNEL };
    // SAFETY: `address` has room for `*len` bytes (getsockname(2)).
    unsafe {
        let copied = ADDRESS_LEN.min(*len) as usize;
        ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), address.cast(), copied);
        *len = ADDRESS_LEN;
    }
    0
}
