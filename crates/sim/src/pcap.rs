//! What is on the cables, as a capture file to look at in Wireshark.

use core::net::SocketAddr;
use std::fs::File;
use std::io::{BufWriter, Write};

use mitra_verbs::Time;
use mitra_wire::{frame, pcap};

/// An open capture file. Errors end it: a simulation does not fail for want of disk.
pub(crate) struct Pcap {
    file: Option<BufWriter<File>>,
    frame: Vec<u8>,
}

impl Pcap {
    /// Creates the file that `MITRA_SIM_PCAP` names, if it names one; `{seed}` in it is replaced.
    pub(crate) fn from_env(seed: u64) -> Option<Pcap> {
        let name = std::env::var("MITRA_SIM_PCAP").ok()?.replace("{seed}", &seed.to_string());
        match File::create(&name) {
            Ok(file) => Some(Pcap::new(file)),
            Err(e) => {
                eprintln!("MITRA_SIM_PCAP={name}: {e}; nothing is captured");
                None
            }
        }
    }

    fn new(file: File) -> Pcap {
        let mut pcap = Pcap { file: Some(BufWriter::new(file)), frame: Vec::new() };
        pcap.put(&pcap::file_header());
        pcap
    }

    pub(crate) fn write(&mut self, at: Time, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        let mut frame = core::mem::take(&mut self.frame);
        frame.clear();
        frame::encode(from, to, 0, datagram, &mut frame);
        self.put(&pcap::record(at.as_nanos(), frame.len()));
        self.put(&frame);
        self.frame = frame;
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(file) = &mut self.file
            && let Err(e) = file.write_all(bytes)
        {
            eprintln!("the capture ends here: {e}");
            self.file = None;
        }
    }
}
