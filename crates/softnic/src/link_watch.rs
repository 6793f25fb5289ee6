//! Follows the state of the interface that has a NIC's address.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// The kernel reports changes of interfaces and of their addresses.
const GROUPS: libc::c_int = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// The length of the header of a message (`struct nlmsghdr`), in bytes.
const HEADER: usize = 16;

/// A socket that is readable after a change of this network namespace's interfaces
/// (`rtnetlink(7)`).
pub(crate) struct LinkWatch {
    socket: OwnedFd,
    /// The index of the interface that makes the NIC's port active. `None` while no interface does:
    /// any change may then concern the NIC. A thread holds the lock while it reads the state, so
    /// that no thread replaces a newer state by an older one.
    interface: Mutex<Option<u32>>,
}

impl LinkWatch {
    /// # Errors
    /// The error of the operating system, for instance in a sandbox that has no netlink.
    pub(crate) fn open() -> nix::Result<LinkWatch> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS as u32))?;
        Ok(LinkWatch { socket, interface: Mutex::default() })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<u32>> {
        self.interface.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the messages from the socket. Returns whether a message may concern `interface`. If
    /// `interface` is `None`, every message may. The caller then reads the present state. `ENOBUFS`
    /// means that the socket was full and messages were lost.
    pub(crate) fn take_changes(&self, interface: Option<u32>) -> bool {
        let (mut buffer, mut concerns) = ([0; 8192], false);
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => concerns |= interface.is_none_or(|index| name(&buffer[..length], index)),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => concerns = true,
                Err(_) => return concerns,
            }
        }
    }
}

/// Returns whether a message names the interface, or has an unexpected format.
fn name(mut messages: &[u8], interface: u32) -> bool {
    while !messages.is_empty() {
        let Some((header, _)) = messages.split_first_chunk::<HEADER>() else { return true };
        let [l0, l1, l2, l3, k0, k1, ..] = *header;
        let (length, kind) = (u32::from_ne_bytes([l0, l1, l2, l3]) as usize, u16::from_ne_bytes([k0, k1]));
        let Some(body) = messages.get(HEADER..length) else { return true };
        // The index of the interface is at this place of `ifinfomsg` and of `ifaddrmsg`.
        let index = match kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR => body.get(4..8),
            _ => None,
        };
        if index.is_none_or(|index| index == interface.to_ne_bytes()) {
            return true;
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, interface: u32) -> Vec<u8> {
        let mut bytes = (HEADER as u32 + 9).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; HEADER - 6 + 4]);
        bytes.extend(interface.to_ne_bytes());
        bytes.extend([0; 4]); // an attribute of one byte, and the padding of the message
        bytes
    }

    #[test]
    fn only_changes_of_the_interface_concern_a_nic() {
        let other = [message(libc::RTM_NEWLINK, 3), message(libc::RTM_DELADDR, 300)].concat();
        assert!(!name(&other, 2));
        for kind in [libc::RTM_NEWLINK, libc::RTM_DELLINK, libc::RTM_NEWADDR, libc::RTM_DELADDR] {
            assert!(name(&[other.clone(), message(kind, 2)].concat(), 2));
        }
    }

    #[test]
    fn malformed_messages_concern_every_nic() {
        let bytes = message(libc::RTM_NEWLINK, 3);
        assert!(name(&message(libc::RTM_NEWROUTE, 3), 2));
        for length in 1..HEADER + 9 {
            assert!(name(&bytes[..length], 2), "{length} bytes");
        }
        assert!(name(&[0; 64], 2), "a length of 0");
    }
}
