//! Ports of the RDMA port spaces, and the sockets that represent them.
//!
//! A port that a program binds is represented by a TCP socket. The kernel therefore allocates the
//! numbers and detects conflicts between processes. [`PortSpace::translate`] maps the RDMA port
//! number to a different socket port number, because programs such as UCX and iSER targets listen
//! on the same number in RDMA_PS_TCP and in plain TCP. An ordinary socket with the translated
//! number still conflicts.
//!
//! A port that the manager chooses for a requester takes no socket, because nobody connects to it.
//! Its number is unique in this process only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

pub use super::protocol::message::PortSpace;
use crate::common::close_on_fork::{CloseOnFork, close_on_fork};

/// The numbers of the ports that the manager chooses: the kernel's default for sockets
/// (`ip_local_port_range`).
pub const EPHEMERAL: std::ops::RangeInclusive<u16> = 32768..=60999;

impl PortSpace {
    /// Maps an RDMA port number to the number of its TCP port, and back, by flipping a bit. Numbers
    /// below the kernel's ephemeral range (from 32768) stay below the range. Privileged numbers
    /// (below 1024) are unchanged, and so are the numbers that would become privileged.
    fn translate(self, port: u16) -> u16 {
        let bit = match self {
            PortSpace::Tcp => 1 << 13,
            PortSpace::Udp => 1 << 14,
        };
        if port & !bit < 1024 { port } else { port ^ bit }
    }

    /// As [`translate`](Self::translate), in both directions.
    pub fn translate_address(self, mut address: SocketAddr) -> SocketAddr {
        address.set_port(self.translate(address.port()));
        address
    }
}

/// A port of an identifier.
#[derive(Debug)]
pub struct Port {
    pub space: PortSpace,
    /// The address and the RDMA port number.
    pub address: SocketAddr,
    /// Whether other identifiers may have the port, too (`RDMA_OPTION_ID_REUSEADDR`).
    pub is_shared: bool,
    v6_only: bool,
    socket: Option<ReservedPort>,
}

/// A non-blocking socket that is closed on `exec` and in the child of a `fork`.
#[derive(Debug)]
struct ReservedPort {
    _close_on_fork: CloseOnFork,
    socket: Socket,
}

impl Port {
    /// Reserves a port by a socket. For port 0 the kernel chooses a free port.
    ///
    /// RDMA port spaces have no TIME_WAIT, so closed TCP connections in TIME_WAIT must not keep a
    /// port in use. `reserve` therefore retries with `SO_REUSEADDR`. The retry still fails if
    /// another socket is bound to the port: the kernel lets two sockets share a port only if both
    /// set the option and neither listens. Sockets that listen set the option by
    /// [`listen`](Self::listen), and bound sockets only in the retry.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is in use, or the error of the failing system call.
    pub fn reserve(space: PortSpace, address: SocketAddr, reuse: bool, v6_only: bool) -> Result<Self, Errno> {
        let bind = |reuse: bool| {
            let port = non_blocking_stream(address)?;
            if address.is_ipv6() {
                port.set_only_v6(v6_only).map_err(errno_of)?;
            }
            port.set_reuse_address(reuse).map_err(errno_of)?;
            port.bind(&space.translate_address(address).into()).map_err(errno_of)?;
            Ok(port)
        };
        let socket = match bind(reuse) {
            Err(Errno::EADDRINUSE) if !reuse => bind(true),
            bound => bound,
        }?;
        let bound = socket.local_addr().map_err(errno_of)?.as_socket().ok_or(Errno::EAFNOSUPPORT)?;
        Ok(Self {
            space,
            address: space.translate_address(bound),
            is_shared: reuse,
            v6_only,
            socket: Some(ReservedPort { _close_on_fork: close_on_fork(socket.as_raw_fd())?, socket }),
        })
    }

    /// Creates a port that takes no socket.
    pub fn of_requester(space: PortSpace, address: SocketAddr) -> Self {
        Self { space, address, is_shared: false, v6_only: true, socket: None }
    }

    /// Lets the socket listen for the questions of requesters.
    ///
    /// # Errors
    /// `EINVAL` for a port without a socket, or the error of `listen`.
    pub fn listen(&mut self, backlog: i32) -> Result<(), Errno> {
        let socket = self.socket().ok_or(Errno::EINVAL)?;
        // If the option cannot be set, a restarted program cannot bind the port for a minute.
        let _ = socket.set_reuse_address(true);
        socket.listen(backlog).map_err(errno_of)?;
        self.is_shared = false;
        Ok(())
    }

    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref().map(|reserved| &reserved.socket)
    }

    /// Whether a port that is bound to all addresses is also bound to those of this family.
    pub fn accepts_family_of(&self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() || self.address.is_ipv6() && !self.v6_only
    }

    /// Checks the rules by which the kernel's `rdma_cm` lets two identifiers have one port number
    /// (`cma_check_port`).
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if one of the two addresses is unspecified, `EADDRINUSE` if they are equal.
    pub fn check_conflict(
        &self,
        space: PortSpace,
        address: SocketAddr,
        is_shared: bool,
        v6_only: bool,
    ) -> Result<(), Errno> {
        let own = self.address;
        let is_other_port = self.space != space || own.port() != address.port();
        let is_other_family = own.is_ipv4() != address.is_ipv4();
        if is_other_port || (self.is_shared && is_shared) || (is_other_family && (self.v6_only || v6_only)) {
            Ok(())
        } else if own.ip().is_unspecified() || address.ip().is_unspecified() {
            Err(Errno::EADDRNOTAVAIL)
        } else if own.ip() == address.ip() {
            Err(Errno::EADDRINUSE)
        } else {
            Ok(())
        }
    }
}

/// # Errors
/// The error of the failing system call.
pub fn non_blocking_stream(address: SocketAddr) -> Result<Socket, Errno> {
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(errno_of)?;
    socket.set_nonblocking(true).map_err(errno_of)?;
    Ok(socket)
}

/// # Errors
/// `EADDRNOTAVAIL` if no interface of this machine has the address.
pub fn check_local(ip: IpAddr) -> Result<(), Errno> {
    let address = SocketAddr::new(ip, 0);
    non_blocking_stream(address)?.bind(&address.into()).map_err(errno_of)
}

/// Returns the local address that the routing table selects for `to`. Sends no packet.
pub fn source_towards(to: SocketAddr) -> Result<IpAddr, Errno> {
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = std::net::UdpSocket::bind(SocketAddr::new(any, 0)).map_err(errno_of)?;
    // `connect` refuses port 0, and all other ports have the same route. 9 is the discard service.
    probe.connect(SocketAddr::new(to.ip(), 9)).map_err(errno_of)?;
    Ok(probe.local_addr().map_err(errno_of)?.ip())
}

/// Whether the address belongs to this machine.
pub fn is_local(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    ip.is_loopback() || source_towards(address).is_ok_and(|source| source.to_canonical() == ip)
}

/// Returns `EIO` for an error without an error number.
pub fn errno_of(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    #[test]
    fn second_bind_of_port_is_refused() {
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            let mut first = Port::reserve(space, loopback(0), false, false).unwrap();
            let address = first.address;
            assert_ne!(address.port(), 0);
            let second = Port::reserve(space, address, false, false);
            assert_eq!(second.err(), Some(Errno::EADDRINUSE), "bound");
            first.listen(1).unwrap();
            let second = Port::reserve(space, address, false, false);
            assert_eq!(second.err(), Some(Errno::EADDRINUSE), "listening");
            drop(first);
            Port::reserve(space, address, false, false).unwrap();
        }
    }

    #[test]
    fn port_with_connections_in_time_wait_can_be_bound() {
        let mut listener = Port::reserve(PortSpace::Tcp, loopback(0), false, false).unwrap();
        listener.listen(1).unwrap();
        let address = listener.address;
        let peer = std::net::TcpStream::connect(PortSpace::Tcp.translate_address(address)).unwrap();
        // The side that closes first enters TIME_WAIT, here the listener's.
        drop(listener.socket().unwrap().accept().unwrap());
        drop((peer, listener));
        Port::reserve(PortSpace::Tcp, address, false, false).unwrap();
    }

    #[test]
    fn port_spaces_conflict_neither_with_each_other_nor_with_plain_tcp() {
        // Another process may use the number, but hardly ten times in succession.
        let free = (0..10).any(|_| {
            let tcp = Port::reserve(PortSpace::Tcp, loopback(0), false, false).unwrap();
            let udp = Port::reserve(PortSpace::Udp, tcp.address, false, false);
            udp.is_ok() && std::net::TcpListener::bind(tcp.address).is_ok()
        });
        assert!(free);
    }

    #[test]
    fn port_translation_is_an_involution() {
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            for port in 0..=u16::MAX {
                let translated = space.translate(port);
                assert_eq!(space.translate(translated), port);
                assert_eq!(translated < 1024, port < 1024);
                assert_eq!(translated < 32768, port < 32768);
            }
        }
    }

    #[test]
    fn identifiers_share_a_port_by_the_rules_of_the_kernel() {
        let (local, any) = (loopback(5000), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 5000)));
        let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 5000));
        let mut port = Port::of_requester(PortSpace::Tcp, local);
        let check = |port: &Port, space, address, shared, v6_only| {
            port.check_conflict(space, address, shared, v6_only).err()
        };
        assert_eq!(check(&port, PortSpace::Tcp, local, false, false), Some(Errno::EADDRINUSE));
        assert_eq!(check(&port, PortSpace::Tcp, any, false, false), Some(Errno::EADDRNOTAVAIL));
        assert_eq!(check(&port, PortSpace::Tcp, any6, false, true), None, "another family");
        assert_eq!(check(&port, PortSpace::Udp, local, false, false), None, "another space");
        assert_eq!(check(&port, PortSpace::Tcp, loopback(5001), false, false), None, "another port");
        let other = SocketAddr::from(([127, 0, 0, 2], 5000));
        assert_eq!(check(&port, PortSpace::Tcp, other, false, false), None, "another address");
        assert_eq!(
            check(&port, PortSpace::Tcp, local, true, false),
            Some(Errno::EADDRINUSE),
            "only one shares"
        );
        port.is_shared = true;
        assert_eq!(check(&port, PortSpace::Tcp, local, true, false), None, "both share");
    }
}
