//! Sockets in the RDMA port spaces.
//!
//! A port of RDMA_PS_TCP stands for a TCP port and one of RDMA_PS_UDP for a UDP port, so that the kernel allocates them, keeps
//! them apart, and finds clashes between processes. Not for those of the same number: many a program (UCX, iSER targets)
//! listens on one number in RDMA and in plain TCP. So [`other_number`] lies between, and what can clash is an ordinary socket
//! that happens to have that other number.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::time::Duration;

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::fork::Held;

/// Whose port numbers an identifier uses, and with them the transport service of its QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// RDMA_PS_TCP: connections.
    Tcp,
    /// RDMA_PS_UDP: datagram services.
    Udp,
}

/// A non-blocking socket that neither an executed program nor a fork's child keeps.
#[derive(Debug)]
pub struct Port {
    _held: Held,
    socket: Socket,
}

impl Deref for Port {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl Port {
    /// Takes a socket in.
    pub fn new(socket: Socket) -> Result<Self, Errno> {
        socket.set_nonblocking(true).map_err(errno_of)?;
        Ok(Self { _held: Held::new(std::os::fd::AsRawFd::as_raw_fd(&socket))?, socket })
    }

    /// Binds to `address`; port 0 becomes a free one.
    ///
    /// A port that somebody is bound to is refused, one that a closed connection left in TIME_WAIT is not: that is
    /// TCP's caution, which RDMA's port spaces do not know. So `SO_REUSEADDR` is used only where binding plainly failed, and
    /// [`share`](Self::share)d by those who listen or are connected, which the kernel then tells from those who are only bound.
    pub fn bind(space: Space, address: SocketAddr, reuse: bool, v6_only: bool) -> Result<Self, Errno> {
        let bind = |reuse: bool| {
            let port = Self::new(
                match space {
                    Space::Tcp => {
                        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
                    }
                    Space::Udp => Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)),
                }
                .map_err(errno_of)?,
            )?;
            if address.is_ipv6() {
                port.set_only_v6(v6_only).map_err(errno_of)?;
            }
            port.set_reuse_address(reuse).map_err(errno_of)?;
            port.socket.bind(&renumbered(address).into()).map_err(errno_of)?;
            Ok(port)
        };
        match bind(reuse) {
            Err(Errno::EADDRINUSE) if space == Space::Tcp && !reuse => bind(true),
            bound => bound,
        }
    }

    /// Lets the port be bound again once nobody listens on it.
    pub fn share(&self) {
        // Without it, a restarted program waits a minute: no reason to fail now.
        let _ = self.set_reuse_address(true);
    }

    /// Finds out within a minute that the peer's machine is gone: ten probes, unless the system says otherwise.
    pub fn keep_alive(&self) {
        let every = Duration::from_secs(5);
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(every);
        // Where that fails, only a peer whose machine vanishes goes unnoticed.
        let _ = self.set_tcp_keepalive(&keepalive);
        let _ = self.set_tcp_nodelay(true);
    }

    /// The local address.
    pub fn address(&self) -> Result<SocketAddr, Errno> {
        let address = self.local_addr().map_err(errno_of)?.as_socket();
        address.map(renumbered).ok_or(Errno::EAFNOSUPPORT)
    }

    /// The peer's address, once there is a peer.
    pub fn peer(&self) -> Result<SocketAddr, Errno> {
        let address = self.peer_addr().map_err(errno_of)?.as_socket();
        address.map(renumbered).ok_or(Errno::EAFNOSUPPORT)
    }

    /// Connects, or begins to (`EINPROGRESS`).
    pub fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        self.socket.connect(&renumbered(peer).into()).map_err(errno_of)
    }
}

/// The number of the ordinary port that stands for an RDMA port, and the other way round: bit 13 flipped. That keeps the
/// numbers below the kernel's ephemeral ones (32768) below them. Privileged numbers (below 1024) stay, and those that
/// would become privileged.
fn other_number(port: u16) -> u16 {
    const BIT: u16 = 1 << 13;
    if port & !BIT < 1024 { port } else { port ^ BIT }
}

/// An address with the [`other_number`].
pub fn renumbered(mut address: SocketAddr) -> SocketAddr {
    address.set_port(other_number(address.port()));
    address
}

/// From which address the routing tables reach `to`; no packet is sent.
pub fn source_towards(to: SocketAddr) -> Result<IpAddr, Errno> {
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = std::net::UdpSocket::bind(SocketAddr::new(any, 0)).map_err(errno_of)?;
    // Any port but 0 will do.
    probe.connect(SocketAddr::new(to.ip(), 9)).map_err(errno_of)?;
    Ok(probe.local_addr().map_err(errno_of)?.ip())
}

/// The error number of an I/O error.
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
    fn a_port_is_allocated_and_its_second_user_refused() {
        for space in [Space::Tcp, Space::Udp] {
            let first = Port::bind(space, loopback(0), false, false).unwrap();
            let address = first.address().unwrap();
            assert_ne!(address.port(), 0);
            let second = Port::bind(space, address, false, false);
            assert_eq!(second.err(), Some(Errno::EADDRINUSE), "bound");
            if space == Space::Tcp {
                first.share();
                first.listen(1).unwrap();
                let second = Port::bind(space, address, false, false);
                assert_eq!(second.err(), Some(Errno::EADDRINUSE), "listening");
            }
            drop(first);
            Port::bind(space, address, false, false).unwrap();
        }
    }

    /// A restarted server finds its port, though its old connections linger in TIME_WAIT.
    #[test]
    fn a_port_with_old_connections_can_be_bound_again() {
        let listener = Port::bind(Space::Tcp, loopback(0), false, false).unwrap();
        listener.share();
        listener.listen(1).unwrap();
        let address = listener.address().unwrap();
        let peer = std::net::TcpStream::connect(renumbered(address)).unwrap();
        listener.set_nonblocking(false).unwrap();
        // The side that closes first is the one that lingers.
        drop(listener.accept().unwrap());
        drop((peer, listener));
        Port::bind(Space::Tcp, address, false, false).unwrap();
    }

    #[test]
    fn the_two_spaces_do_not_clash_nor_with_plain_tcp() {
        // Somebody else may have the number; not each time.
        let free = (0..10).any(|_| {
            let tcp = Port::bind(Space::Tcp, loopback(0), false, false).unwrap();
            let address = tcp.address().unwrap();
            let udp = Port::bind(Space::Udp, address, false, false);
            udp.is_ok() && std::net::TcpListener::bind(address).is_ok()
        });
        assert!(free);
    }

    #[test]
    fn every_port_has_one_other_number() {
        for port in 0..=u16::MAX {
            let other = other_number(port);
            assert_eq!(other_number(other), port);
            assert_eq!(other < 1024, port < 1024);
            assert_eq!(other < 32768, port < 32768);
        }
    }
}
