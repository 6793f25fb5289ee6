//! Captures the packets of a run in a pcap file.

use core::net::SocketAddr;
use std::fs::File;
use std::io::{self, BufWriter};

use mitra_verbs::Time;
use mitra_wire::pcap::Writer;

/// An open capture file. A write error ends the capture, never the simulation.
pub(crate) struct Pcap {
    writer: Option<Writer<BufWriter<File>>>,
}

impl Pcap {
    /// Creates the file that the environment variable `MITRA_SIM_PCAP` names, with the seed for
    /// `{seed}`. Returns `None` if the variable is not set or the file cannot be created.
    pub(crate) fn from_env(seed: u64) -> Option<Pcap> {
        let name = std::env::var("MITRA_SIM_PCAP").ok()?.replace("{seed}", &seed.to_string());
        match File::create(&name).and_then(|file| Writer::new(BufWriter::new(file))) {
            Ok(writer) => Some(Pcap { writer: Some(writer) }),
            Err(e) => {
                eprintln!("MITRA_SIM_PCAP={name}: {e}; no packets are captured");
                None
            }
        }
    }

    pub(crate) fn write(&mut self, at: Time, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        let written =
            self.writer.as_mut().map(|writer| writer.datagram(at.as_nanos(), from, to, 0, datagram));
        if let Some(Err(e)) = written {
            self.end(&e);
        }
    }

    fn end(&mut self, error: &io::Error) {
        eprintln!("the capture ends here: {error}");
        self.writer = None;
    }
}
