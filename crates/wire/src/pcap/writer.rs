use core::net::SocketAddr;
use std::io::{self, Write};

use super::{file_header, record};
use crate::frame;

/// Writes datagrams as frames of a classic pcap file with times in nanoseconds.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// The frame under construction, kept for its allocation.
    frame: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Starts a file with its header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(&file_header())?;
        Ok(Writer { out, frame: Vec::new() })
    }

    /// Writes a datagram (a RoCEv2 packet with its ICRC) in a frame with UDP, IP and Ethernet headers. `ts_ns` counts from
    /// the Unix epoch; `ident` is the identification field of an IPv4 header.
    ///
    /// # Errors
    /// Those of `out`. The file then ends in a record that is cut short.
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

    /// Writes an Ethernet frame. `ts_ns` counts from the Unix epoch.
    ///
    /// # Errors
    /// Those of `out`. The file then ends in a record that is cut short.
    pub fn frame(&mut self, ts_ns: u64, frame: &[u8]) -> io::Result<()> {
        self.out.write_all(&record(ts_ns, frame.len()))?;
        self.out.write_all(frame)
    }

    /// Flushes `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
