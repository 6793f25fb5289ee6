//! The layout of a ring in shared memory, in which NICs of one host exchange packets.

/// The bytes in front of a packet.
pub const HEADER_LEN: usize = 8;

/// The multiple of bytes at which records begin: a cache line, so an end that writes a record does
/// not share a line with the end that reads the record before.
pub const ALIGNMENT: usize = 64;

/// Returns the bytes that a record with a packet of `len` bytes takes.
pub const fn record_len(len: usize) -> usize {
    (HEADER_LEN + len).next_multiple_of(ALIGNMENT)
}
