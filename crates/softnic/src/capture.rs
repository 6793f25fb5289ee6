//! Every packet that crosses the rail, into a pcap file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use mitra_wire::{frame, pcap};

/// A capture file being written. It never stands in the way: what cannot be written ends the capture.
pub(crate) struct Capture {
    file: Option<BufWriter<File>>,
    frame: Vec<u8>,
}

impl Capture {
    pub(crate) fn create(path: &Path) -> io::Result<Capture> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&pcap::file_header())?;
        Ok(Capture { file: Some(file), frame: Vec::new() })
    }

    /// Writes a datagram with its ICRC.
    pub(crate) fn packet(&mut self, from: SocketAddr, to: SocketAddr, ident: u16, datagram: &[u8]) {
        let Some(file) = &mut self.file else { return };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.frame.clear();
        frame::encode(from, to, ident, datagram, &mut self.frame);
        let record = pcap::record(since_epoch.as_nanos() as u64, self.frame.len());
        if file.write_all(&record).and_then(|()| file.write_all(&self.frame)).is_err() {
            self.file = None;
        }
    }

    /// Brings the file up to date.
    pub(crate) fn flush(&mut self) {
        if self.file.as_mut().is_some_and(|file| file.flush().is_err()) {
            self.file = None;
        }
    }
}
