//! The queue of due responses to READs and atomics. Memory is read when a response packet is sent.

use std::collections::VecDeque;

use mitra_verbs::{Access, Key, PdId, Psn};
use mitra_wire::{Aeth, Message, NakCode, Packet, Syndrome};

use crate::Memory;
use crate::batch_writer::BatchWriter;
use crate::nic::shared_state::SharedState;
use crate::qp::attributes::QpAttributes;

/// A response of which at least one packet is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Response {
    /// The PSN of the next packet.
    pub(super) psn: Psn,
    /// The PSN after the last packet.
    pub(super) end: Psn,
    pub(super) msn: u32,
    /// Whether the request was a duplicate. The requester may have the original response already.
    pub(super) duplicate: bool,
    pub(super) data: ResponseData,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ResponseData {
    /// The `left` unsent bytes of a READ, from the address `va` on. `pd` is the protection domain
    /// of the request. `first` is whether the next packet is the first of the response.
    Read { pd: PdId, va: u64, key: Key, left: u32, first: bool },
    /// The old value of the word of an atomic.
    Atomic { value: u64 },
}

/// The due responses in PSN order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct ResponseQueue {
    queue: VecDeque<Response>,
}

impl ResponseQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Returns whether fewer than `max_fetches` responses to original requests are due.
    ///
    /// Responses to duplicates are not counted. The requester may have received the original
    /// response, and the request is then not outstanding.
    pub(super) fn has_room(&self, max_fetches: u8) -> bool {
        self.queue.iter().filter(|r| !r.duplicate).count() < usize::from(max_fetches)
    }

    /// Appends the response to a new request, after `has_room` has returned true. Removes responses
    /// to duplicates if the queue has `max_fetches` responses.
    pub(super) fn push(&mut self, response: Response, max_fetches: u8) {
        while self.queue.len() >= usize::from(max_fetches) {
            let Some(index) = self.queue.iter().position(|r| r.duplicate) else { break };
            self.queue.remove(index);
        }
        self.queue.push_back(response);
    }

    /// Inserts the response to a duplicate request. Removes the responses that overlap it, because
    /// the requester asks again for everything that it lacks. Returns false and drops the response
    /// if `max_fetches` other responses are due.
    pub(super) fn push_duplicate(&mut self, response: Response, max_fetches: u8) -> bool {
        let is_disjoint = |r: &Response| !r.end.is_after(response.psn) || !response.end.is_after(r.psn);
        self.queue.retain(is_disjoint);
        if self.queue.len() >= usize::from(max_fetches) {
            return false;
        }
        let index = self.queue.iter().position(|r| r.psn.is_after(response.psn)).unwrap_or(self.queue.len());
        self.queue.insert(index, response);
        true
    }

    /// Appends up to `max_packets` packets to the batch while `credit` is not used up, and returns
    /// their number. Each packet reduces `credit` by its payload length. The last packet may exceed
    /// the credit.
    ///
    /// # Errors
    /// The PSN and the NAK code of a response whose memory may no longer be read.
    pub(super) fn transmit(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        memory: &mut dyn Memory,
        out: &mut BatchWriter<'_>,
        max_packets: usize,
        credit: &mut u32,
    ) -> Result<usize, (Psn, NakCode)> {
        let mut n = 0;
        while let Some(response) = self.queue.front_mut()
            && n < max_packets
            && *credit > 0
            && out.has_room(attrs.mtu)
        {
            match response.send_packet(attrs, nic, memory, out) {
                Ok(bytes) => {
                    n += 1;
                    *credit = credit.saturating_sub(bytes);
                }
                // A requester that lacks this response fails on the NAK. A requester that has the
                // response ignores the NAK as stale. The responder cannot distinguish the two
                // cases, so the queue pair continues.
                Err(code) if response.duplicate => {
                    let aeth = Aeth { syndrome: Syndrome::Nak(code), msn: response.msn };
                    out.append_headers(&response.packet(attrs, Message::Ack(aeth)));
                    n += 1;
                    nic.counters.fatal_naks_sent += 1;
                    response.end = response.psn.next();
                }
                Err(code) => return Err((response.psn, code)),
            }
            response.psn = response.psn.next();
            if response.psn == response.end {
                self.queue.pop_front();
            }
        }
        Ok(n)
    }
}

impl Response {
    fn packet(&self, attrs: &QpAttributes, message: Message) -> Packet<'static> {
        let transport = attrs.response_transport();
        Packet { mig_req: true, ..Packet::new(transport, attrs.dest_qpn, self.psn, message, &[]) }
    }

    /// Appends the next packet to the batch and returns its payload length. The caller advances the
    /// PSN.
    fn send_packet(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        memory: &mut dyn Memory,
        out: &mut BatchWriter<'_>,
    ) -> Result<u32, NakCode> {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        let last = self.psn.next() == self.end;
        match self.data {
            ResponseData::Atomic { value } => {
                out.append_headers(&self.packet(attrs, Message::AtomicAck(aeth, value)));
                Ok(0)
            }
            ResponseData::Read { pd, va, key, left, first } => {
                let n = (left as usize).min(attrs.mtu);
                let message = match (first, last) {
                    (true, true) => Message::ReadOnly(aeth),
                    (true, false) => Message::ReadFirst(aeth),
                    (false, false) => Message::ReadMiddle,
                    (false, true) => Message::ReadLast(aeth),
                };
                out.append(&self.packet(attrs, message), n, |bytes| {
                    if n == 0 {
                        return Ok(());
                    }
                    // The consumer may have revoked the rights after the request was accepted.
                    if !attrs.access().contains(Access::REMOTE_READ) {
                        return Err(NakCode::RemoteAccess);
                    }
                    let span = nic
                        .keys
                        .check_remote(attrs.qpn, pd, key, va, n as u64, Access::REMOTE_READ)
                        .map_err(|_| NakCode::RemoteAccess)?;
                    memory.fetch(span.region, span.offset, bytes).map_err(|_| NakCode::RemoteOperational)
                })?;
                let (va, left) = (va.wrapping_add(n as u64), left - n as u32);
                self.data = ResponseData::Read { pd, va, key, left, first: false };
                Ok(n as u32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(psn: u32, packets: u32, duplicate: bool) -> Response {
        let psn = Psn::new(psn);
        Response { psn, end: psn.add(packets), msn: 0, duplicate, data: ResponseData::Atomic { value: 0 } }
    }

    fn psns(queue: &ResponseQueue) -> Vec<u32> {
        queue.queue.iter().map(|r| r.psn.value()).collect()
    }

    #[test]
    fn response_to_a_copy_replaces_only_what_it_overlaps() {
        let mut queue = ResponseQueue::default();
        for psn in [10, 20, 30] {
            queue.push(response(psn, 10, false), 4);
        }
        assert!(queue.push_duplicate(response(5, 5, true), 4), "it ends where the first one begins");
        assert_eq!(psns(&queue), [5, 10, 20, 30]);
        assert!(queue.push_duplicate(response(25, 10, true), 4));
        assert_eq!(psns(&queue), [5, 10, 25]);
    }

    #[test]
    fn new_response_removes_one_to_a_copy_only_if_the_queue_is_full() {
        let mut queue = ResponseQueue::default();
        queue.push_duplicate(response(10, 1, true), 2);
        queue.push(response(20, 1, false), 2);
        assert_eq!(psns(&queue), [10, 20]);
        queue.push(response(21, 1, false), 2);
        assert_eq!(psns(&queue), [20, 21]);
    }
}
