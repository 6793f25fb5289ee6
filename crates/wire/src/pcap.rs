//! Capture files: headers and a writer for classic pcap with nanosecond timestamps, and a reader for pcap and pcapng.
//!
//! The module opens no file. The caller provides the bytes.

mod ng;
mod reader;
mod writer;

pub use reader::{FileError, Reader, Record, Records, Step, records};
pub use writer::Writer;

/// Bytes of [`file_header`].
pub const FILE_HEADER_LEN: usize = 24;
/// Bytes of [`record`].
pub const RECORD_HEADER_LEN: usize = 16;

const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const ETHERNET: u32 = 1;
const SNAPLEN: u32 = 262_144;

/// Returns the header of a classic pcap file of Ethernet frames with nanosecond timestamps, little-endian.
pub const fn file_header() -> [u8; FILE_HEADER_LEN] {
    const fn word(mut out: [u8; FILE_HEADER_LEN], at: usize, value: u32) -> [u8; FILE_HEADER_LEN] {
        let bytes = value.to_le_bytes();
        let mut i = 0;
        while i < 4 {
            out[at + i] = bytes[i];
            i += 1;
        }
        out
    }
    let out = word([0; FILE_HEADER_LEN], 0, MAGIC_NANOS);
    // Version 2.4: two 16-bit numbers.
    let out = word(out, 4, 4 << 16 | 2);
    let out = word(out, 16, SNAPLEN);
    word(out, 20, ETHERNET)
}

/// Returns the record header of a frame of `frame_len` bytes that was captured completely, at `ts_ns` nanoseconds since the Unix
/// epoch.
pub fn record(ts_ns: u64, frame_len: usize) -> [u8; RECORD_HEADER_LEN] {
    let mut out = [0; RECORD_HEADER_LEN];
    let len = (frame_len as u32).to_le_bytes();
    out[0..4].copy_from_slice(&((ts_ns / 1_000_000_000) as u32).to_le_bytes());
    out[4..8].copy_from_slice(&((ts_ns % 1_000_000_000) as u32).to_le_bytes());
    out[8..12].copy_from_slice(&len);
    out[12..16].copy_from_slice(&len);
    out
}
