//! The capture of a NIC's packets in a pcap file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use mitra_wire::pcap::Writer;

/// A pcap capture of the NIC's packets. A write error ends the capture and does not affect the NIC.
pub(crate) struct Capture {
    writer: Option<Writer<BufWriter<File>>>,
}

impl Capture {
    pub(crate) fn create(path: &Path) -> io::Result<Capture> {
        Ok(Capture { writer: Some(Writer::new(BufWriter::new(File::create(path)?))?) })
    }

    /// Writes a datagram, which includes its ICRC, with the current time.
    pub(crate) fn packet(&mut self, from: SocketAddr, to: SocketAddr, ident: u16, datagram: &[u8]) {
        let Some(writer) = &mut self.writer else { return };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if writer.datagram(since_epoch.as_nanos() as u64, from, to, ident, datagram).is_err() {
            self.writer = None;
        }
    }

    pub(crate) fn flush(&mut self) {
        if self.writer.as_mut().is_some_and(|writer| writer.flush().is_err()) {
            self.writer = None;
        }
    }
}
