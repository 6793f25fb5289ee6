//! Changes of network interfaces and their addresses, as the kernel announces them to everyone
//! (`rtnetlink(7)`).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// The length of `struct nlmsghdr` in bytes.
const HEADER: usize = 16;
/// Links, IPv4 addresses and IPv6 addresses.
const GROUPS: u32 = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;

/// The announcements of the process's network namespace.
#[derive(Debug)]
pub(crate) struct InterfaceEvents(OwnedFd);

/// What [`InterfaceEvents::take`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    None,
    /// One of the given interfaces may have changed.
    Possible,
}

impl InterfaceEvents {
    /// Subscribes. Returns `None` where that is not allowed, for instance in a sandbox.
    pub(crate) fn open() -> Option<InterfaceEvents> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute).ok()?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS)).ok()?;
        Some(InterfaceEvents(socket))
    }

    /// Takes all announcements. `interfaces` are the indices of those that matter; if there are
    /// none, all matter.
    pub(crate) fn take(&self, interfaces: &[u32]) -> Change {
        let mut change = Change::None;
        let mut buffer = [0; 8192];
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) if concerns(&buffer[..length], interfaces) => change = Change::Possible,
                // The kernel has dropped announcements.
                Err(Errno::ENOBUFS) => change = Change::Possible,
                Ok(0) | Err(_) => return change,
                Ok(_) => {}
            }
        }
    }
}

impl AsFd for InterfaceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether one of some messages is about one of the interfaces.
fn concerns(mut messages: &[u8], interfaces: &[u32]) -> bool {
    while let Some((header, _)) = messages.split_first_chunk::<HEADER>() {
        let [l0, l1, l2, l3, k0, k1, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(body) = messages.get(HEADER..length) else { return false };
        let is_known = matches!(
            u16::from_ne_bytes([k0, k1]),
            libc::RTM_NEWLINK | libc::RTM_DELLINK | libc::RTM_NEWADDR | libc::RTM_DELADDR
        );
        // `ifi_index` of `struct ifinfomsg`, or `ifa_index` of `struct ifaddrmsg`
        let index = body.get(4..8).and_then(|index| index.first_chunk()).copied().map(u32::from_ne_bytes);
        if is_known && index.is_some_and(|index| interfaces.is_empty() || interfaces.contains(&index)) {
            return true;
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, index: u32) -> Vec<u8> {
        let mut message = 32u32.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 14]);
        message.extend(index.to_ne_bytes());
        message.extend([0; 8]);
        message
    }

    #[test]
    fn only_messages_about_the_interfaces_matter() {
        let first = message(libc::RTM_NEWNEIGH, 3);
        let both = [&first[..], &message(libc::RTM_DELADDR, 3)].concat();
        assert!(!concerns(&first, &[3]));
        assert!(concerns(&both, &[2, 3]));
        assert!(!concerns(&both, &[2]));
        assert!(concerns(&both, &[]));
        assert!(!concerns(&[], &[]));
    }

    #[test]
    fn malformed_messages_are_passed_over() {
        let whole = message(libc::RTM_NEWLINK, 3);
        for length in 0..whole.len() {
            assert!(!concerns(&whole[..length], &[]));
        }
        // A length that is less than that of the header would be read for ever.
        assert!(!concerns(&[0; 64], &[]));
    }
}
