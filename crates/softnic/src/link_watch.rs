//! Follows the state of the interface that has a NIC's address.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

/// The changes of which the kernel informs: of interfaces, and of their addresses.
const GROUPS: libc::c_int = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// A socket that is readable after a change of this network namespace's interfaces (`rtnetlink(7)`).
pub(crate) struct LinkWatch(OwnedFd);

impl LinkWatch {
    /// # Errors
    /// The error of the operating system, for instance in a sandbox that has no netlink.
    pub(crate) fn open() -> nix::Result<LinkWatch> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS as u32))?;
        Ok(LinkWatch(fd))
    }

    /// Removes the messages from the socket. What they say is not needed: the caller then reads the present
    /// state. `ENOBUFS` says that messages were lost, because the socket was full.
    pub(crate) fn clear(&self) {
        let mut buffer = [0; 8192];
        while matches!(
            recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT),
            Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS)
        ) {}
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
