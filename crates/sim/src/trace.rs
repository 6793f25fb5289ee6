//! What happened, when: kept compact, hashed as it comes, written out only for who asks.

use core::fmt;
use std::collections::VecDeque;

use mitra_verbs::Time;
use mitra_wire::Packet;

/// Room for BTH, DETH, RETH and immediate data, or BTH and AtomicETH.
const HEAD: usize = 48;

/// The enough of a datagram to print it: its first bytes and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD],
    len: u32,
    icrc: [u8; 4],
}

impl Head {
    pub(crate) fn of(datagram: &[u8]) -> Head {
        let mut bytes = [0; HEAD];
        let n = datagram.len().min(HEAD);
        bytes[..n].copy_from_slice(&datagram[..n]);
        let icrc = datagram.last_chunk().copied().unwrap_or_default();
        Head { bytes, len: datagram.len() as u32, icrc }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The payload is only counted, so zeros stand for it.
        let len = (self.len as usize).saturating_sub(mitra_wire::ICRC_LEN);
        let mut whole = vec![0; len];
        let n = len.min(HEAD);
        whole[..n].copy_from_slice(&self.bytes[..n]);
        match Packet::parse(&whole) {
            Ok(packet) => packet.fmt(f),
            Err(e) => write!(f, "{} bytes that are no packet: {e}", self.len),
        }
    }
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// To a packet, at a NIC.
    Packet { did: &'static str, nic: u32, head: Head },
    /// To a NIC, with two numbers.
    Nic { did: &'static str, nic: u32, a: u64, b: u64 },
    /// Anything rarer.
    Note(String),
}

/// What happened in a world: each packet and event with its virtual time.
#[derive(Debug)]
pub struct Trace {
    records: VecDeque<(Time, What)>,
    names: Vec<String>,
    hash: u64,
    count: u64,
    keep: usize,
    live: bool,
}

impl Trace {
    /// A trace that remembers its last `keep` records, and prints each as it comes if `live`.
    pub(crate) fn new(keep: usize, live: bool) -> Trace {
        Trace {
            records: VecDeque::new(),
            names: Vec::new(),
            hash: 0x9e37_79b9_7f4a_7c15,
            count: 0,
            keep,
            live,
        }
    }

    /// A hash over all records since the beginning, kept or not: equal in two runs of the same seed.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many records there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn name(&mut self, nic: usize, name: &str) {
        if self.names.len() <= nic {
            self.names.resize(nic + 1, String::new());
        }
        name.clone_into(&mut self.names[nic]);
    }

    pub(crate) fn packet(&mut self, at: Time, did: &'static str, nic: usize, datagram: &[u8]) {
        let head = Head::of(datagram);
        self.mix(at.as_nanos());
        self.mix_bytes(did.as_bytes());
        self.mix(nic as u64);
        self.mix_bytes(&head.bytes);
        self.mix(u64::from(head.len) << 32 | u64::from(u32::from_le_bytes(head.icrc)));
        self.keep(at, What::Packet { did, nic: nic as u32, head });
    }

    pub(crate) fn nic(&mut self, at: Time, did: &'static str, nic: usize, a: u64, b: u64) {
        self.mix(at.as_nanos());
        self.mix_bytes(did.as_bytes());
        for n in [nic as u64, a, b] {
            self.mix(n);
        }
        self.keep(at, What::Nic { did, nic: nic as u32, a, b });
    }

    pub(crate) fn note(&mut self, at: Time, text: String) {
        self.mix(at.as_nanos());
        self.mix_bytes(text.as_bytes());
        self.keep(at, What::Note(text));
    }

    fn keep(&mut self, at: Time, what: What) {
        self.count += 1;
        if self.live {
            eprintln!("{}", self.line(at, &what));
        }
        if self.keep > 0 {
            if self.records.len() == self.keep {
                self.records.pop_front();
            }
            self.records.push_back((at, what));
        }
    }

    fn mix(&mut self, n: u64) {
        // One step of a multiply-and-fold hash: order matters, every bit counts.
        let x = u128::from(self.hash ^ n) * 0x9fb2_1c65_1e98_df25;
        self.hash = (x as u64) ^ ((x >> 64) as u64) ^ 0x2545_f491_4f6c_dd1d;
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        self.mix(bytes.len() as u64);
    }

    fn line(&self, at: Time, what: &What) -> String {
        let nanos = at.as_nanos();
        let time = format!("{:>9}.{:03}", nanos / 1_000, nanos % 1_000);
        let name = |nic: u32| self.names.get(nic as usize).map_or("?", String::as_str);
        match what {
            What::Packet { did, nic, head } => format!("{time} {:<4} {did:<9} {head}", name(*nic)),
            What::Nic { did, nic, a, b } => format!("{time} {:<4} {did} {a} {b}", name(*nic)),
            What::Note(text) => format!("{time}      {text}"),
        }
    }

    /// The last `n` records that are kept, a line each; times in microseconds.
    pub fn tail(&self, n: usize) -> impl Iterator<Item = String> {
        let skip = self.records.len().saturating_sub(n);
        self.records.iter().skip(skip).map(|(at, what)| self.line(*at, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mitra_wire::{Message, Psn, Qpn, Reth, Transport};

    fn datagram(psn: u32, payload: &[u8]) -> Vec<u8> {
        let reth = Reth { va: 0x1000, rkey: 0xa05, len: payload.len() as u32 };
        let mut out = Vec::new();
        Packet::new(Transport::Rc, Qpn::new(9), Psn::new(psn), Message::WriteOnly(reth), payload)
            .emit_to(&mut out);
        out.extend_from_slice(&[1, 2, 3, 4]);
        out
    }

    #[test]
    fn a_line_says_what_the_packet_was() {
        let mut t = Trace::new(10, false);
        t.name(0, "a0");
        t.packet(Time::from_nanos(12_345), "sends", 0, &datagram(7, &[5; 999]));
        let lines: Vec<String> = t.tail(5).collect();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("12.345 a0"), "{}", lines[0]);
        assert!(lines[0].contains("WRITE_ONLY") && lines[0].contains("len 999"), "{}", lines[0]);
    }

    #[test]
    fn the_hash_sees_every_difference_even_what_is_not_kept() {
        let hash = |at, psn, icrc: u8| {
            let mut t = Trace::new(0, false);
            let mut d = datagram(psn, &[5; 999]);
            *d.last_mut().unwrap() = icrc;
            t.packet(Time::from_nanos(at), "sends", 0, &d);
            t.note(Time::ZERO, String::new());
            t.hash()
        };
        assert_eq!(hash(1, 2, 3), hash(1, 2, 3));
        assert_ne!(hash(1, 2, 3), hash(2, 2, 3));
        assert_ne!(hash(1, 2, 3), hash(1, 3, 3));
        assert_ne!(hash(1, 2, 3), hash(1, 2, 4));
    }
}
