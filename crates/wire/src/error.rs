//! The error of [`Packet::parse`](crate::Packet::parse).

use thiserror::Error;

/// Why [`Packet::parse`](crate::Packet::parse) refused a buffer. The transport checks keys,
/// partitions and sequence numbers, and the parser does not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The buffer ends within a header that the opcode requires.
    #[error("truncated: {have} bytes, the headers of this opcode need {need}")]
    Truncated {
        /// The length of the buffer in bytes.
        have: usize,
        /// The length of the headers in bytes, up to and including the header in which the buffer
        /// ends.
        need: usize,
    },
    /// The opcode does not exist, does not exist for this transport (IBTA 9.2), or belongs to a
    /// transport that Mitra does not support (reliable datagram).
    #[error("unknown opcode 0x{0:02x}")]
    UnknownOpcode(u8),
    /// The transport header version is not 0 (IBTA 9.2).
    #[error("transport header version {0}, expected 0")]
    BadVersion(u8),
    /// The length of the buffer is not a multiple of four. The headers and the padded payload of a
    /// packet are multiples of four bytes (IBTA 9.2).
    #[error("{0} bytes, not a multiple of four")]
    BadLength(usize),
    /// The pad count exceeds the number of bytes after the headers, or is not 0 although the opcode
    /// has no payload.
    #[error("pad count {pad} with {available} bytes after the headers")]
    BadPad {
        /// The pad count of the BTH, 1 to 3.
        pad: u8,
        /// The number of bytes after the headers.
        available: usize,
    },
    /// Bytes follow the headers of an opcode that has no payload.
    #[error("{0} bytes after the headers of an opcode without payload")]
    UnexpectedPayload(usize),
}
