//! Which ports have a listener.

use std::fs;
use std::path::Path;

/// The bits in which a port of RDMA_PS_TCP or RDMA_PS_UDP differs from the TCP port that Mitra's
/// librdmacm uses for it (crates/libibverbs/src/rdmacm).
const RDMA_BITS: [u16; 2] = [1 << 13, 1 << 14];

/// Returns whether a process listens at this TCP, UDP or RDMA port. Reading /proc does not disturb
/// the listener.
pub(crate) fn is_listening(port: u16) -> bool {
    is_listening_in("self", port)
}

/// Like [`is_listening`], in the network namespace of a process, which `self` or its ID names.
pub(crate) fn is_listening_in(process: &str, port: u16) -> bool {
    // proc(5), include/net/tcp_states.h: 0A is LISTEN; an unconnected UDP socket has state 07,
    // CLOSE.
    let tables = [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")];
    tables.into_iter().any(|(table, state)| {
        let table =
            fs::read_to_string(Path::new("/proc").join(process).join("net").join(table)).unwrap_or_default();
        table.lines().any(|line| {
            // The columns are sl, local_address, rem_address, st, ...; an address is hex:port.
            let columns: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, st, ..] = columns[..] else { return false };
            let local = local.rsplit(':').next().and_then(|hex| u16::from_str_radix(hex, 16).ok());
            let is_port = |local: u16| local == port || RDMA_BITS.contains(&(local ^ port));
            st == state && local.is_some_and(is_port)
        })
    })
}
