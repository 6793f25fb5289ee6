//! Ports and addresses that one test has for itself.
//!
//! A reservation is a name among the abstract Unix sockets (unix(7)). Such names belong to a
//! network namespace, as ports and addresses do, and end with the process that made them.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// Ports below those that the kernel hands out by itself, 32768 to 60999 (ip(7)), so that a
/// connection of another process takes none of them.
const FIRST_PORT: u16 = 16384;
/// The number of ports. A port stays below 32768 when its [`RDMA_BIT`] is set.
const PORTS: u16 = 8192;
/// The bit in which an RDMA port differs from the TCP or UDP port that Mitra's librdmacm uses for
/// it (crates/libibverbs/src/rdmacm).
const RDMA_BIT: u16 = 1 << 13;
/// Networks are 127.100.0.0/24 to 127.131.255.0/24.
const FIRST_NETWORK: u8 = 100;
const NETWORKS: u16 = 8192;

/// A port that no other test has while this value lives.
#[derive(Debug)]
pub struct OwnPort {
    number: u16,
    _reservation: UnixListener,
}

impl OwnPort {
    /// Finds a port that is free for TCP and UDP, also as an RDMA port.
    ///
    /// # Panics
    ///
    /// Panics if no port is free.
    pub fn new() -> OwnPort {
        let is_free = |port: u16| {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
                && UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
        };
        let found = reserve("port", PORTS, |at| {
            let number = FIRST_PORT + at;
            (is_free(number) && is_free(number | RDMA_BIT)).then_some(number)
        });
        let (number, reservation) = found.unwrap_or_else(|| {
            panic!(
                "no port from {FIRST_PORT} to {} is free; `ss -tulpn` shows who has them",
                FIRST_PORT + PORTS - 1
            )
        });
        OwnPort { number, _reservation: reservation }
    }

    /// The port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Default for OwnPort {
    fn default() -> OwnPort {
        OwnPort::new()
    }
}

/// Loopback addresses that no other test has while this value lives.
#[derive(Debug)]
pub struct OwnNetwork {
    number: u16,
    _reservation: UnixListener,
}

impl OwnNetwork {
    /// Finds a network.
    ///
    /// # Panics
    ///
    /// Panics if no network is free.
    pub fn new() -> OwnNetwork {
        let found = reserve("network", NETWORKS, Some);
        let (number, reservation) =
            found.unwrap_or_else(|| panic!("tests have all {NETWORKS} networks of 127.100.0.0/11; end some"));
        OwnNetwork { number, _reservation: reservation }
    }

    /// An address of the network, which ends in `host`.
    pub fn address(&self, host: u8) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(127, FIRST_NETWORK + high, low, host)
    }
}

impl Default for OwnNetwork {
    fn default() -> OwnNetwork {
        OwnNetwork::new()
    }
}

/// Reserves the first number below `count` for which `choose` returns a value, beginning at a
/// number that depends on the process.
fn reserve(kind: &str, count: u16, choose: impl Fn(u16) -> Option<u16>) -> Option<(u16, UnixListener)> {
    let first = std::process::id() % u32::from(count);
    (0..u32::from(count)).find_map(|step| {
        let at = ((first + step) % u32::from(count)) as u16;
        let name = SocketAddr::from_abstract_name(format!("mitra-test-{kind}-{at}")).ok()?;
        let reservation = UnixListener::bind_addr(&name).ok()?;
        Some((choose(at)?, reservation))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_differ_and_end() {
        let (one, other) = (OwnPort::new(), OwnPort::new());
        assert_ne!(one.number(), other.number());
        let number = one.number();
        drop(one);
        let name =
            SocketAddr::from_abstract_name(format!("mitra-test-port-{}", number - FIRST_PORT)).unwrap();
        UnixListener::bind_addr(&name).expect("the reservation ended");
        let (one, other) = (OwnNetwork::new(), OwnNetwork::new());
        assert_ne!(one.address(1), other.address(1));
        TcpListener::bind((one.address(1), 7000)).expect("the address is local");
    }
}
