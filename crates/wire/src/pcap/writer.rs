use core::net::SocketAddr;
use std::io::{self, Write};

use super::{file_header, record_header};
use crate::frame;

/// A writer of a classic pcap file of Ethernet frames with timestamps in nanoseconds.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// A field, so that [`datagram`](Self::datagram) reuses the allocation.
    frame: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes the header of the file to `out`.
    ///
    /// # Errors
    /// The error of writing to `out`.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(&file_header())?;
        Ok(Writer { out, frame: Vec::new() })
    }

    /// Writes a frame with Ethernet, IP and UDP headers ([`frame::encode`]) that contains
    /// `datagram`, a RoCEv2 packet with its ICRC. `ts_ns` is the time in nanoseconds since the Unix
    /// epoch. `ident` is the identification in an IPv4 header.
    ///
    /// # Errors
    /// The error of writing to `out`. The file may then end in an incomplete record.
    pub fn datagram(
        &mut self,
        ts_ns: u64,
        from: SocketAddr,
        to: SocketAddr,
        ident: u16,
        datagram: &[u8],
    ) -> io::Result<()> {
        let mut frame = core::mem::take(&mut self.frame);
        frame.clear();
        frame::encode(from, to, ident, datagram, &mut frame);
        let written = self.frame(ts_ns, &frame);
        self.frame = frame;
        written
    }

    /// Writes an Ethernet frame. `ts_ns` is the time in nanoseconds since the Unix epoch.
    ///
    /// # Errors
    /// The error of writing to `out`. The file may then end in an incomplete record.
    pub fn frame(&mut self, ts_ns: u64, frame: &[u8]) -> io::Result<()> {
        self.out.write_all(&record_header(ts_ns, frame.len()))?;
        self.out.write_all(frame)
    }

    /// Flushes `out`.
    ///
    /// # Errors
    /// The error of flushing `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
