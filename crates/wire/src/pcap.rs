//! Capture files: headers and a writer for classic pcap with nanosecond timestamps, and a reader
//! for pcap and pcapng.
//!
//! The module opens no file. The caller passes the bytes of a capture to the reader, and an
//! [`io::Write`](std::io::Write) to the writer.

mod ng;
mod reader;
mod writer;

pub use reader::{FileError, Reader, Record, Records, Step, records};
pub use writer::Writer;

/// The length of a classic pcap file's header ([`file_header`]), in bytes.
pub const FILE_HEADER_LEN: usize = 24;
/// The length of a classic pcap record's header ([`record_header`]), in bytes.
pub const RECORD_HEADER_LEN: usize = 16;

const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const ETHERNET: u32 = 1;
const SNAPLEN: u32 = 262_144;

/// Returns the header of a classic pcap file of Ethernet frames with nanosecond timestamps,
/// little-endian.
pub const fn file_header() -> [u8; FILE_HEADER_LEN] {
    const fn with_u32(mut out: [u8; FILE_HEADER_LEN], at: usize, value: u32) -> [u8; FILE_HEADER_LEN] {
        let bytes = value.to_le_bytes();
        let mut i = 0;
        while i < 4 {
            out[at + i] = bytes[i];
            i += 1;
        }
        out
    }
    let out = with_u32([0; FILE_HEADER_LEN], 0, MAGIC_NANOS);
    // The major version 2 and the minor version 4, of 16 bits each.
    let out = with_u32(out, 4, 4 << 16 | 2);
    let out = with_u32(out, 16, SNAPLEN);
    with_u32(out, 20, ETHERNET)
}

/// Returns the header that precedes a frame in a file with [`file_header`]. The frame has
/// `frame_len` bytes and was captured completely, `ts_ns` nanoseconds after the Unix epoch.
pub fn record_header(ts_ns: u64, frame_len: usize) -> [u8; RECORD_HEADER_LEN] {
    let mut out = [0; RECORD_HEADER_LEN];
    let len = (frame_len as u32).to_le_bytes();
    out[0..4].copy_from_slice(&((ts_ns / 1_000_000_000) as u32).to_le_bytes());
    out[4..8].copy_from_slice(&((ts_ns % 1_000_000_000) as u32).to_le_bytes());
    out[8..12].copy_from_slice(&len);
    out[12..16].copy_from_slice(&len);
    out
}
