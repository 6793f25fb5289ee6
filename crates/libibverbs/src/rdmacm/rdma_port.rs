//! Sockets that represent ports of the RDMA port spaces.
//!
//! A TCP port represents a port of RDMA_PS_TCP, and a UDP port represents a port of RDMA_PS_UDP.
//! The kernel therefore allocates the numbers and detects conflicts between processes.
//! [`translate_port`] maps the RDMA port number to a different socket port number, because programs
//! such as UCX and iSER targets listen on the same number in RDMA_PS_TCP and in plain TCP. An
//! ordinary socket with the translated number still conflicts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::time::Duration;

use nix::errno::Errno;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::common::close_on_fork::{CloseOnFork, close_on_fork};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortSpace {
    /// RDMA_PS_TCP: connected queue pairs.
    #[default]
    Tcp,
    /// RDMA_PS_UDP: datagram queue pairs.
    Udp,
}

/// A non-blocking socket that is closed on `exec` and in the child of a `fork`. The addresses in
/// its methods carry RDMA port numbers.
#[derive(Debug)]
pub struct Port {
    _close_on_fork: CloseOnFork,
    socket: Socket,
}

impl Deref for Port {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl Port {
    pub fn new(socket: Socket) -> Result<Self, Errno> {
        socket.set_nonblocking(true).map_err(errno_of)?;
        Ok(Self { _close_on_fork: close_on_fork(std::os::fd::AsRawFd::as_raw_fd(&socket))?, socket })
    }

    /// Creates a socket bound to `address`. For port 0 the kernel chooses a free port.
    ///
    /// RDMA port spaces have no TIME_WAIT, so closed TCP connections in TIME_WAIT must not keep a
    /// port in use. `bind` therefore retries with `SO_REUSEADDR`. The retry still fails if another
    /// socket is bound to the port: the kernel lets two sockets share a port only if both set the
    /// option and neither listens. Sockets that listen or connect set the option by
    /// [`share`](Self::share), and bound sockets only in the retry.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is in use, or the error of the failing system call.
    pub fn bind(space: PortSpace, address: SocketAddr, reuse: bool, v6_only: bool) -> Result<Self, Errno> {
        let bind = |reuse: bool| {
            let (kind, protocol) = match space {
                PortSpace::Tcp => (Type::STREAM, Protocol::TCP),
                PortSpace::Udp => (Type::DGRAM, Protocol::UDP),
            };
            let socket = Socket::new(Domain::for_address(address), kind, Some(protocol));
            let port = Self::new(socket.map_err(errno_of)?)?;
            if address.is_ipv6() {
                port.set_only_v6(v6_only).map_err(errno_of)?;
            }
            port.set_reuse_address(reuse).map_err(errno_of)?;
            port.socket.bind(&translate_address(address).into()).map_err(errno_of)?;
            Ok(port)
        };
        match bind(reuse) {
            Err(Errno::EADDRINUSE) if space == PortSpace::Tcp && !reuse => bind(true),
            bound => bound,
        }
    }

    /// Allows another socket to bind the port while this socket does not listen.
    pub fn share(&self) {
        // A failure is ignored. A restarted program then cannot bind the port for a minute.
        let _ = self.set_reuse_address(true);
    }

    /// Enables TCP keep-alive and disables Nagle's algorithm. The failure of the peer's host is
    /// detected within about a minute: the system sends 9 probes by default.
    pub fn keep_alive(&self) {
        let every = Duration::from_secs(5);
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(every);
        // If this call fails, a failure of the peer's host is not detected.
        let _ = self.set_tcp_keepalive(&keepalive);
        let _ = self.set_tcp_nodelay(true);
    }

    pub fn address(&self) -> Result<SocketAddr, Errno> {
        rdma_address(self.local_addr())
    }

    /// # Errors
    /// `ENOTCONN` before the socket is connected.
    pub fn peer(&self) -> Result<SocketAddr, Errno> {
        rdma_address(self.peer_addr())
    }

    /// # Errors
    /// `EINPROGRESS` while the connection is being established, or the error of `connect`.
    pub fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        self.socket.connect(&translate_address(peer).into()).map_err(errno_of)
    }
}

fn rdma_address(socket: std::io::Result<SockAddr>) -> Result<SocketAddr, Errno> {
    socket.map_err(errno_of)?.as_socket().map(translate_address).ok_or(Errno::EAFNOSUPPORT)
}

/// Maps an RDMA port number to the number of its TCP or UDP port, and back, by flipping bit 13.
/// Numbers below the kernel's ephemeral range (from 32768) stay below the range. Privileged numbers
/// (below 1024) are unchanged, and so are the numbers that would become privileged.
fn translate_port(port: u16) -> u16 {
    const BIT: u16 = 1 << 13;
    if port & !BIT < 1024 { port } else { port ^ BIT }
}

/// As [`translate_port`], in both directions.
pub fn translate_address(mut address: SocketAddr) -> SocketAddr {
    address.set_port(translate_port(address.port()));
    address
}

/// Returns the local address that the routing table selects for `to`. Sends no packet.
pub fn source_towards(to: SocketAddr) -> Result<IpAddr, Errno> {
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = std::net::UdpSocket::bind(SocketAddr::new(any, 0)).map_err(errno_of)?;
    // `connect` refuses port 0, and all other ports have the same route. 9 is the discard service.
    probe.connect(SocketAddr::new(to.ip(), 9)).map_err(errno_of)?;
    Ok(probe.local_addr().map_err(errno_of)?.ip())
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
            let first = Port::bind(space, loopback(0), false, false).unwrap();
            let address = first.address().unwrap();
            assert_ne!(address.port(), 0);
            let second = Port::bind(space, address, false, false);
            assert_eq!(second.err(), Some(Errno::EADDRINUSE), "bound");
            if space == PortSpace::Tcp {
                first.share();
                first.listen(1).unwrap();
                let second = Port::bind(space, address, false, false);
                assert_eq!(second.err(), Some(Errno::EADDRINUSE), "listening");
            }
            drop(first);
            Port::bind(space, address, false, false).unwrap();
        }
    }

    #[test]
    fn port_with_connections_in_time_wait_can_be_bound() {
        let listener = Port::bind(PortSpace::Tcp, loopback(0), false, false).unwrap();
        listener.share();
        listener.listen(1).unwrap();
        let address = listener.address().unwrap();
        let peer = std::net::TcpStream::connect(translate_address(address)).unwrap();
        listener.set_nonblocking(false).unwrap();
        // The side that closes first enters TIME_WAIT, here the listener's.
        drop(listener.accept().unwrap());
        drop((peer, listener));
        Port::bind(PortSpace::Tcp, address, false, false).unwrap();
    }

    #[test]
    fn port_spaces_conflict_neither_with_each_other_nor_with_plain_tcp() {
        // Another process may use the number, but hardly ten times in succession.
        let free = (0..10).any(|_| {
            let tcp = Port::bind(PortSpace::Tcp, loopback(0), false, false).unwrap();
            let address = tcp.address().unwrap();
            let udp = Port::bind(PortSpace::Udp, address, false, false);
            udp.is_ok() && std::net::TcpListener::bind(address).is_ok()
        });
        assert!(free);
    }

    #[test]
    fn port_translation_is_an_involution() {
        for port in 0..=u16::MAX {
            let translated = translate_port(port);
            assert_eq!(translate_port(translated), port);
            assert_eq!(translated < 1024, port < 1024);
            assert_eq!(translated < 32768, port < 32768);
        }
    }
}
