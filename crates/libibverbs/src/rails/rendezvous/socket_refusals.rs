//! The datagrams of a socket that the host of the receiver has refused, because no socket there has
//! the port: the process that had it has ended.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, setsockopt, sockopt,
};

/// The ICMP type and code of "port unreachable", over IPv4 (RFC 792) and IPv6 (RFC 4443).
const PORT_UNREACHABLE_V4: (u8, u8) = (3, 3);
const PORT_UNREACHABLE_V6: (u8, u8) = (1, 4);
/// The space for the control messages of a socket error: `struct sock_extended_err` and an address,
/// in bytes, rounded up.
const CONTROL_SPACE: usize = 256;
/// The number of receivers whose refusals are counted. More are forgotten together.
const MAX_RECEIVERS: usize = 1 << 12;

/// The numbers of refused datagrams, by address and port. They count from 1, and only grow.
#[derive(Default)]
pub(super) struct SocketRefusals(HashMap<SocketAddr, u64>);

impl SocketRefusals {
    /// Lets the system report refusals to a socket.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn enable(socket: &UdpSocket, is_ipv4: bool) -> nix::Result<()> {
        match is_ipv4 {
            true => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
            false => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
        }
    }

    pub(super) fn count(&self, receiver: SocketAddr) -> u64 {
        self.0.get(&receiver).copied().unwrap_or(0)
    }

    /// Counts the refusals that the system has reported, of receivers that matter. To be called
    /// after a send or a receive has failed: it fails once for each report, and transfers nothing.
    pub(super) fn take(&mut self, socket: &UdpSocket, matters: impl Fn(SocketAddr) -> bool) {
        let mut control = [0; CONTROL_SPACE];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let fd = socket.as_raw_fd();
        while let Ok(message) = recvmsg::<SockaddrStorage>(fd, &mut [], Some(&mut control), flags) {
            let receiver = message.address.as_ref().and_then(socket_address);
            let Ok(mut reports) = message.cmsgs() else { continue };
            // The report of a router on the way says nothing about the process.
            let is_of_receiver =
                |report| refused_by(&report).is_some_and(|host| receiver.map(|to| to.ip()) == Some(host));
            if let (Some(receiver), true) = (receiver, reports.any(is_of_receiver))
                && matters(receiver)
            {
                if self.0.len() >= MAX_RECEIVERS && !self.0.contains_key(&receiver) {
                    self.0.clear();
                }
                *self.0.entry(receiver).or_default() += 1;
            }
        }
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|address| SocketAddr::new(address.ip().into(), address.port()));
    v4.or_else(|| {
        address.as_sockaddr_in6().map(|address| SocketAddr::new(address.ip().into(), address.port()))
    })
}

/// Returns the host that says that the port is not in use.
fn refused_by(report: &ControlMessageOwned) -> Option<IpAddr> {
    let (error, port_unreachable, host) = match report {
        ControlMessageOwned::Ipv4RecvErr(error, host) => {
            (error, PORT_UNREACHABLE_V4, IpAddr::from(SockaddrIn::from((*host)?).ip()))
        }
        ControlMessageOwned::Ipv6RecvErr(error, host) => {
            (error, PORT_UNREACHABLE_V6, IpAddr::from(SockaddrIn6::from((*host)?).ip()))
        }
        _ => return None,
    };
    let is_icmp = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(&error.ee_origin);
    (is_icmp && (error.ee_type, error.ee_code) == port_unreachable).then_some(host)
}
