//! The send window: the bound on the unacknowledged data of a requester.
//!
//! Each packet of a SEND or WRITE has a *cost* in bytes, which is its payload length plus
//! [`PACKET_COST`]. The window bounds the cost of the unacknowledged packets. READs have a second
//! window of the same size, which counts the bytes of the requested responses.

use mitra_mutants::Mutant;
use mitra_verbs::Psn;

use super::{Cursor, OutstandingFetch, Request, Requester};
use crate::nic::shared_state::SharedState;
use crate::qp::attributes::QpAttributes;

/// The cost of a packet in bytes in addition to its payload, because a small packet uses receive
/// buffer memory too.
pub(super) const PACKET_COST: u64 = 256;

impl Request {
    pub(super) fn cost_of(&self, packets: u32, mtu: usize) -> u64 {
        if self.wr.op.is_read_or_atomic() {
            return 0;
        }
        let bytes = (u64::from(packets) * mtu as u64).min(self.len.into());
        bytes + u64::from(packets) * PACKET_COST
    }
}

impl Requester {
    /// Returns the window cost of all packets before `cursor`.
    pub(super) fn cost_at(&self, cursor: Cursor, mtu: usize) -> u64 {
        match self.request(cursor.request) {
            Some(request) if cursor.request < self.next_start => {
                request.cost_before + request.cost_of(cursor.packet, mtu)
            }
            _ => self.total_cost,
        }
    }

    pub(super) fn has_send_room(&self, attrs: &QpAttributes, nic: &SharedState) -> bool {
        let sent = self.cost_at(self.cursor, attrs.mtu);
        let in_flight = sent.saturating_sub(self.cost_at(self.oldest_unacked(), attrs.mtu));
        // One packet may always be in flight, so that a small window does not stop the requester.
        in_flight == 0
            || in_flight + attrs.mtu as u64 + PACKET_COST <= u64::from(nic.config.tuning.send_window)
    }

    pub(super) fn has_read_room(&self, attrs: &QpAttributes, nic: &SharedState, request: &Request) -> bool {
        let requested = u64::from(self.read_packets(attrs, nic, request)) * attrs.mtu as u64;
        self.fetches.is_empty()
            || self.read_bytes_in_flight(attrs.mtu) + requested <= u64::from(nic.config.tuning.send_window)
    }

    /// Returns the requested READ bytes that have not arrived.
    fn read_bytes_in_flight(&self, mtu: usize) -> u64 {
        let unacked = self.oldest_unacked_psn();
        let from = |psn: Psn| if unacked.is_after(psn) { unacked } else { psn };
        let packets = |fetch: &OutstandingFetch| fetch.end.distance(from(fetch.psn));
        self.fetches.iter().map(packets).map(u64::from).sum::<u64>() * mtu as u64
    }

    /// Returns the number of response packets that the READ request packet at the cursor asks for.
    ///
    /// A requester cannot hold back responses, so it splits a READ into chunks that fit the window.
    /// A retransmitted request packet ends where the original one ended, even if `max_rd_atomic`
    /// has changed since: a duplicate READ may request only a part of the original one (IBTA volume
    /// 1, 9.7.5).
    pub(super) fn read_packets(&self, attrs: &QpAttributes, nic: &SharedState, request: &Request) -> u32 {
        let is_new = self.cursor.request >= self.next_start;
        let chunk = if is_new { max_read_chunk(attrs, nic) } else { request.read_chunk };
        let packet = self.cursor.packet;
        let left = request.len.div_ceil(attrs.mtu as u32).max(1) - packet;
        let done = if Mutant::ReadChunkMoved.is_on() { 0 } else { packet % chunk };
        left.min(chunk - done)
    }
}

pub(super) fn max_read_chunk(attrs: &QpAttributes, nic: &SharedState) -> u32 {
    let window = nic.config.tuning.send_window / u32::from(attrs.max_rd_atomic().clamp(1, 4));
    (window / attrs.mtu as u32).max(1)
}
