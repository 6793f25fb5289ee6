//! Conversions between `struct sockaddr` and [`SocketAddr`].

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use nix::errno::Errno;
use socket2::SockAddr;

/// Returns `None` for a null pointer.
///
/// # Errors
/// `EAFNOSUPPORT` if the family is neither AF_INET nor AF_INET6.
///
/// # Safety
/// `address` is null or points to an address of the length that its family requires.
pub unsafe fn read_sockaddr(address: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract the family and the structure of the family are readable. The reads
    // need no alignment.
    let address = unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let port = u16::from_be(v4.sin_port);
                SocketAddr::new(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into(), port)
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()
            }
            // Also AF_IB, InfiniBand's own address family.
            _ => return Err(Errno::EAFNOSUPPORT),
        }
    };
    Ok(Some(address))
}

pub fn to_sockaddr_storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: the storage of a `SockAddr` is a `sockaddr_storage` (socket2, `SockAddrStorage`).
    unsafe { *SockAddr::from(address).as_storage().view_as() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for address in ["127.0.0.1:80", "[fe80::1%3]:65535", "[::]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let stored = to_sockaddr_storage(address);
            // SAFETY: `sockaddr_storage` has room for an address of any family.
            let read = unsafe { read_sockaddr((&raw const stored).cast()) };
            assert_eq!(read, Ok(Some(address)));
        }
    }

    #[test]
    fn other_address_families_are_refused() {
        let mut storage = to_sockaddr_storage("127.0.0.1:1".parse().unwrap());
        storage.ss_family = 27;
        // SAFETY: `sockaddr_storage` has room for an address of any family, and null is allowed.
        unsafe {
            assert_eq!(read_sockaddr((&raw const storage).cast()), Err(Errno::EAFNOSUPPORT));
            assert_eq!(read_sockaddr(std::ptr::null()), Ok(None));
        }
    }
}
