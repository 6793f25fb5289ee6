//! The trace of a run. The trace hashes each record when it is added, keeps the last records in a
//! compact form, and formats them only on demand.

use core::fmt;
use std::collections::VecDeque;

use mitra_failover::rail_negotiation::MessageKind;
use mitra_verbs::Time;
use mitra_wire::{Packet, Transport};

use crate::timeline::{NoteKind, Subject};

/// The number of bytes of a datagram that a record keeps. All headers of a packet fit.
const HEAD_BYTES: usize = 48;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PacketHead {
    bytes: [u8; HEAD_BYTES],
    len: u32,
    icrc: [u8; 4],
}

impl PacketHead {
    pub(crate) fn of(datagram: &[u8]) -> PacketHead {
        let mut bytes = [0; HEAD_BYTES];
        let n = datagram.len().min(HEAD_BYTES);
        bytes[..n].copy_from_slice(&datagram[..n]);
        let icrc = datagram.last_chunk().copied().unwrap_or_default();
        PacketHead { bytes, len: datagram.len() as u32, icrc }
    }

    /// Passes the parsed packet to `f`. The record does not keep the whole payload, so zeros
    /// replace the rest.
    fn with_packet<T>(&self, f: impl FnOnce(Result<Packet<'_>, mitra_wire::ParseError>) -> T) -> T {
        let len = (self.len as usize).saturating_sub(mitra_wire::ICRC_LEN);
        let mut whole = vec![0; len];
        let n = len.min(HEAD_BYTES);
        whole[..n].copy_from_slice(&self.bytes[..n]);
        f(Packet::parse(&whole))
    }

    /// Returns `None` if the packet is not a control message of a virtual queue pair.
    pub(crate) fn control_message(&self) -> Option<MessageKind> {
        self.with_packet(|packet| {
            let packet = packet.ok().filter(|packet| matches!(packet.transport, Transport::Ud(_)))?;
            MessageKind::of_datagram(packet.payload)
        })
    }
}

impl fmt::Display for PacketHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_packet(|packet| match packet {
            Ok(packet) => packet.fmt(f),
            Err(e) => write!(f, "{} bytes that are not a valid packet: {e}", self.len),
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TraceEvent {
    /// An action of a NIC on a packet.
    Packet { action: &'static str, nic: u32, head: PacketHead },
    /// An event at a NIC, with two numbers that depend on the action.
    Nic { action: &'static str, nic: u32, a: u64, b: u64 },
    /// Any other record.
    Note { about: Subject, kind: NoteKind, text: String },
}

/// The trace of a world: each packet and event with its virtual time.
#[derive(Debug)]
pub struct Trace {
    records: VecDeque<(Time, TraceEvent)>,
    nic_names: Vec<String>,
    host_names: Vec<String>,
    hash: u64,
    count: u64,
    max_records: usize,
    print_live: bool,
}

impl Trace {
    /// Creates a trace that keeps its last `max_records` records. With `print_live`, it also prints
    /// each record immediately.
    pub(crate) fn new(max_records: usize, print_live: bool) -> Trace {
        Trace {
            records: VecDeque::new(),
            nic_names: Vec::new(),
            host_names: Vec::new(),
            hash: 0x9e37_79b9_7f4a_7c15,
            count: 0,
            max_records,
            print_live,
        }
    }

    /// Returns a hash over all records since the beginning, kept or not. Two runs of one seed have
    /// the same hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether the trace keeps or prints records.
    pub(crate) fn is_kept(&self) -> bool {
        self.max_records > 0 || self.print_live
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &(Time, TraceEvent)> {
        self.records.iter()
    }

    pub(crate) fn add_nic(&mut self, name: &str) {
        self.nic_names.push(name.to_owned());
    }

    pub(crate) fn add_host(&mut self, name: &str) {
        self.host_names.push(name.to_owned());
    }

    pub(crate) fn packet(&mut self, at: Time, action: &'static str, nic: usize, datagram: &[u8]) {
        let head = PacketHead::of(datagram);
        self.hash_word(at.as_nanos());
        self.hash_bytes(action.as_bytes());
        self.hash_word(nic as u64);
        self.hash_bytes(&head.bytes);
        self.hash_word(u64::from(head.len) << 32 | u64::from(u32::from_le_bytes(head.icrc)));
        self.record(at, TraceEvent::Packet { action, nic: nic as u32, head });
    }

    pub(crate) fn nic(&mut self, at: Time, action: &'static str, nic: usize, a: u64, b: u64) {
        self.hash_word(at.as_nanos());
        self.hash_bytes(action.as_bytes());
        for n in [nic as u64, a, b] {
            self.hash_word(n);
        }
        self.record(at, TraceEvent::Nic { action, nic: nic as u32, a, b });
    }

    pub(crate) fn note(&mut self, at: Time, about: Subject, kind: NoteKind, text: String) {
        self.hash_word(at.as_nanos());
        self.hash_bytes(text.as_bytes());
        self.hash_word(match about {
            Subject::World => u64::MAX,
            Subject::Host(host) => host as u64,
            Subject::Nic(nic) => 1 << 32 | nic as u64,
        });
        self.record(at, TraceEvent::Note { about, kind, text });
    }

    fn record(&mut self, at: Time, event: TraceEvent) {
        self.count += 1;
        if self.print_live {
            eprintln!("{}", self.format_record(at, &event));
        }
        if self.max_records > 0 {
            if self.records.len() == self.max_records {
                self.records.pop_front();
            }
            self.records.push_back((at, event));
        }
    }

    fn hash_word(&mut self, n: u64) {
        // A multiply-and-fold hash. The result depends on every bit and on the order of the words.
        let x = u128::from(self.hash ^ n) * 0x9fb2_1c65_1e98_df25;
        self.hash = (x as u64) ^ ((x >> 64) as u64) ^ 0x2545_f491_4f6c_dd1d;
    }

    fn hash_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash_word(u64::from_le_bytes(word));
        }
        self.hash_word(bytes.len() as u64);
    }

    fn format_record(&self, at: Time, event: &TraceEvent) -> String {
        let nanos = at.as_nanos();
        let time = format!("{:>9}.{:03}", nanos / 1_000, nanos % 1_000);
        let name = |nic: u32| self.nic_names.get(nic as usize).map_or("?", String::as_str);
        match event {
            TraceEvent::Packet { action, nic, head } => {
                format!("{time} {:<4} {action:<9} {head}", name(*nic))
            }
            TraceEvent::Nic { action, nic, a, b } => format!("{time} {:<4} {action} {a} {b}", name(*nic)),
            TraceEvent::Note { about, text, .. } => {
                let subject = match *about {
                    Subject::World => "",
                    Subject::Host(host) => self.host_names.get(host).map_or("?", String::as_str),
                    Subject::Nic(nic) => name(nic as u32),
                };
                format!("{time} {subject:<4} {text}")
            }
        }
    }

    /// Formats the last `n` of the kept records, with times in microseconds.
    pub fn tail(&self, n: usize) -> impl Iterator<Item = String> {
        let skip = self.records.len().saturating_sub(n);
        self.records.iter().skip(skip).map(|(at, event)| self.format_record(*at, event))
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
    fn packet_record_is_formatted_with_opcode_and_length() {
        let mut t = Trace::new(10, false);
        t.add_nic("a0");
        t.packet(Time::from_nanos(12_345), "sends", 0, &datagram(7, &[5; 999]));
        let lines: Vec<String> = t.tail(5).collect();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("12.345 a0"), "{}", lines[0]);
        assert!(lines[0].contains("WRITE_ONLY") && lines[0].contains("len 999"), "{}", lines[0]);
    }

    #[test]
    fn hash_covers_time_packet_and_icrc_of_unkept_records() {
        let hash = |at, psn, icrc: u8| {
            let mut t = Trace::new(0, false);
            let mut d = datagram(psn, &[5; 999]);
            *d.last_mut().unwrap() = icrc;
            t.packet(Time::from_nanos(at), "sends", 0, &d);
            t.note(Time::ZERO, Subject::World, NoteKind::Event, String::new());
            t.hash()
        };
        assert_eq!(hash(1, 2, 3), hash(1, 2, 3));
        assert_ne!(hash(1, 2, 3), hash(2, 2, 3));
        assert_ne!(hash(1, 2, 3), hash(1, 3, 3));
        assert_ne!(hash(1, 2, 3), hash(1, 2, 4));
    }
}
