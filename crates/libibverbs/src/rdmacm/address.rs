//! IP addresses between C and Rust.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use nix::errno::Errno;
use socket2::SockAddr;

/// Reads an address of a program; `None` of a null pointer.
///
/// # Safety
/// `address` is null or points to an address as long as its family says.
pub unsafe fn read(address: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract the family can be read, and then as much as the family says.
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
            // AF_IB is for InfiniBand.
            _ => return Err(Errno::EAFNOSUPPORT),
        }
    };
    Ok(Some(address))
}

/// The address as C stores it.
pub fn stored(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: both structures are plain integers, valid for any bytes, and zero is what is not written below.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let address = SockAddr::from(address);
    let length = (address.len() as usize).min(size_of::<sockaddr_storage>());
    // SAFETY: `address` is `length` bytes long, `storage` at least.
    unsafe {
        let from = address.as_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(from, (&raw mut storage).cast(), length);
    }
    storage
}

/// Where a GID table has an IP address: IPv4 in its mapped form (RoCE v2).
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for address in ["127.0.0.1:80", "[fe80::1%3]:65535", "[::]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let stored = stored(address);
            // SAFETY: a `sockaddr_storage` is longer than any address.
            let read = unsafe { read((&raw const stored).cast()) };
            assert_eq!(read, Ok(Some(address)));
        }
    }

    #[test]
    fn another_family_is_refused() {
        let mut storage = stored("127.0.0.1:1".parse().unwrap());
        storage.ss_family = 27;
        // SAFETY: as above; null is allowed.
        unsafe {
            assert_eq!(read((&raw const storage).cast()), Err(Errno::EAFNOSUPPORT));
            assert_eq!(read(std::ptr::null()), Ok(None));
        }
    }
}
