//! Requests of a reliable connection from node 0 to node 1, as sends and as packets.

use mitra_verbs::*;
use mitra_wire::{Message, Packet, Reth, Syndrome, Transport};

use super::NicPair;

pub fn write_at(p: &NicPair, wr_id: u64, remote: RemoteAddr, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(remote), Data::sge(p.sge(0, 0, len)))
}

/// Returns the last NAK that node 1 has sent.
pub fn last_nak(p: &NicPair) -> Option<Syndrome> {
    let mut syndromes = p.sent.iter().filter(|s| s.from == 1).filter_map(|s| {
        match Packet::parse(&s.bytes).unwrap().message {
            Message::Ack(aeth) if !matches!(aeth.syndrome, Syndrome::Ack { .. }) => Some(aeth.syndrome),
            _ => None,
        }
    });
    syndromes.next_back()
}

pub fn fetch_add(p: &NicPair, wr_id: u64, remote: RemoteAddr) -> SendWr {
    SendWr::new(wr_id, SendOp::FetchAdd { remote, add: 1 }, Data::sge(p.sge(0, 0, 8)))
}

pub fn read_at(p: &NicPair, wr_id: u64, remote: RemoteAddr, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Read(remote), Data::sge(p.sge(0, 0, len)))
}

/// `psn_ahead` counts from the PSN that node 1 expects.
pub fn request(p: &NicPair, psn_ahead: u32, message: Message, payload: &'static [u8]) -> Packet<'static> {
    let psn = p.status(1).rq_psn.add(psn_ahead);
    Packet { ack_req: true, ..Packet::new(Transport::Rc, p.nodes[1].qp, psn, message, payload) }
}

pub fn reth(p: &NicPair, len: u32) -> Reth {
    let remote = p.remote(0);
    Reth { va: remote.addr, rkey: remote.rkey.0, len }
}
