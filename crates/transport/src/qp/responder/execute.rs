//! Execution of requests, and the answers to duplicate requests.

use mitra_mutants::Mutant;
use mitra_verbs::{Access, AtomicScope, Key, PdId, Psn, SavedResult, Time};
use mitra_wire::{AtomicEth, Message, NakCode, Packet, Reth};

use super::Responder;
use super::response_queue::{Response, ResponseData};
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::SharedState;
use crate::packet_of_message;
use crate::qp::attributes::QpAttributes;
use crate::qp::reassembly::{MAX_MESSAGE, Refusal};
use crate::{AtomicOp, Memory};

impl Responder {
    /// Executes the request with the expected PSN and returns the number of its PSNs.
    ///
    /// A refused request has accessed no memory, unless the memory itself failed during the access.
    pub(super) fn execute(
        &mut self,
        attrs: &QpAttributes,
        receives: &mut RecvSource,
        nic: &mut SharedState,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<u32, Refusal> {
        self.reassembly.check_packet(attrs, packet)?;
        match packet.message {
            Message::ReadRequest(reth) => return self.execute_read(attrs, nic, reth),
            Message::CompareSwap(eth) => {
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_add };
                return self.execute_atomic(attrs, nic, eth, op, memory);
            }
            Message::FetchAdd(eth) => {
                return self.execute_atomic(
                    attrs,
                    nic,
                    eth,
                    AtomicOp::FetchAdd { add: eth.swap_add },
                    memory,
                );
            }
            _ => self.reassembly.execute(attrs, receives, nic, packet, memory)?,
        }
        let last = packet_of_message::position(&packet.message).last;
        if last {
            self.count_message(nic);
        }
        if mitra_wire::opcode::completes_receive(packet.message.operation()) {
            self.answers.on_message();
        }
        self.acks.on_packet(&nic.config.tuning, now, last, packet.payload.len(), packet.ack_req);
        Ok(1)
    }

    fn count_message(&mut self, nic: &mut SharedState) {
        self.msn = (self.msn + 1) & 0xff_ffff;
        nic.counters.messages_executed += 1;
    }

    /// Checks a READ request and returns the number of its response packets.
    fn check_read(&self, attrs: &QpAttributes, nic: &SharedState, reth: Reth) -> Result<u32, Refusal> {
        if !attrs.access().contains(Access::REMOTE_READ) || reth.len > MAX_MESSAGE {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        if reth.len > 0 {
            let (key, len) = (Key(reth.rkey), reth.len.into());
            nic.keys
                .check_remote(attrs.qpn, attrs.init.pd, key, reth.va, len, Access::REMOTE_READ)
                .map_err(|_| Refusal::Nak(NakCode::RemoteAccess))?;
        }
        Ok(reth.len.div_ceil(attrs.mtu as u32).max(1))
    }

    fn execute_read(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        reth: Reth,
    ) -> Result<u32, Refusal> {
        let packets = self.check_read(attrs, nic, reth)?;
        let max_fetches = attrs.max_dest_rd_atomic();
        if !self.responses.has_room(max_fetches) && !Mutant::ReadWithoutRoom.is_on() {
            // The requester has more READs and atomics outstanding than agreed (IBTA volume 1,
            // 9.7.4).
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        if !Mutant::ReadNotCounted.is_on() {
            self.count_message(nic);
        }
        self.responses.push(
            read_response(attrs.init.pd, self.expected_psn, packets, self.msn, reth, false),
            max_fetches,
        );
        self.record_fetch(max_fetches);
        self.acks.clear();
        Ok(packets)
    }

    /// Records an executed READ or atomic. By sending this request, the requester shows that it has
    /// the responses to all READs and atomics except the last `max_fetches`.
    fn record_fetch(&mut self, max_fetches: u8) {
        while self.recent_fetches.len() >= usize::from(max_fetches.max(1)) {
            self.recent_fetches.pop_front();
        }
        self.recent_fetches.push_back(self.executed_psns);
    }

    fn execute_atomic(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        eth: AtomicEth,
        op: AtomicOp,
        memory: &mut dyn Memory,
    ) -> Result<u32, Refusal> {
        if !attrs.access().contains(Access::REMOTE_ATOMIC)
            || nic.config.capabilities.atomic_scope == AtomicScope::None
            || !eth.va.is_multiple_of(8)
        {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        let span = nic
            .keys
            .check_remote(attrs.qpn, attrs.init.pd, Key(eth.rkey), eth.va, 8, Access::REMOTE_ATOMIC)
            .map_err(|_| Refusal::Nak(NakCode::RemoteAccess))?;
        let max_fetches = attrs.max_dest_rd_atomic();
        if !self.responses.has_room(max_fetches) && !Mutant::AtomicWithoutRoom.is_on() {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        let value = memory
            .atomic(span.region, span.offset, op)
            .map_err(|_| Refusal::Nak(NakCode::RemoteOperational))?;
        let psn = self.expected_psn;
        self.count_message(nic);
        self.responses.push(atomic_response(psn, self.msn, value, false), max_fetches);
        self.record_fetch(max_fetches);
        let saved = if Mutant::OneResultSaved.is_on() { 1 } else { max_fetches };
        self.saved_atomics.save(self.executed_psns, SavedResult { psn, value }, saved);
        self.acks.clear();
        Ok(1)
    }

    /// Answers a request whose PSN was executed before (IBTA volume 1, 9.7.5): a READ is executed
    /// again, an atomic gets its saved result, a SEND or WRITE is acknowledged again.
    pub(super) fn handle_duplicate(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        packet: &Packet<'_>,
    ) {
        nic.counters.duplicate_requests += 1;
        let (psn, max_fetches) = (packet.psn, attrs.max_dest_rd_atomic());
        let psns_since = self.expected_psn.distance(psn);
        let response = match packet.message {
            Message::ReadRequest(reth) => {
                let packets = reth.len.div_ceil(attrs.mtu as u32).max(1);
                // The access rights may have changed since the original. If the requester may still
                // lack the response, the READ is queued anyway and gets a NAK in its turn.
                // Otherwise the request is a late copy, and the responder drops it. The
                // specification requires the responder to drop the request in both cases
                // (docs/rxe.md).
                let fetch_position = self.executed_psns.checked_sub(psns_since.into());
                let may_lack_response =
                    self.recent_fetches.front().is_some_and(|&first| fetch_position >= Some(first));
                let is_last = packets == psns_since && Mutant::LastReadUnanswered.is_on();
                if packets > psns_since
                    || is_last
                    || (!may_lack_response && self.check_read(attrs, nic, reth).is_err())
                {
                    nic.counters.drop_duplicate += 1;
                    return;
                }
                let (reth, packets) = match Mutant::ReadCopyShortened.is_on() {
                    true => (Reth { len: reth.len.min(attrs.mtu as u32), ..reth }, 1),
                    false => (reth, packets),
                };
                read_response(attrs.init.pd, psn, packets, self.msn, reth, true)
            }
            Message::CompareSwap(_) | Message::FetchAdd(_) => {
                let Some(value) = self.saved_atomics.find(self.executed_psns, psn) else {
                    nic.counters.drop_duplicate += 1;
                    return;
                };
                atomic_response(psn, self.msn, value, true)
            }
            // The request that was executed at this PSN was a READ or an atomic, so this SEND or
            // WRITE is no copy of it.
            _ if u64::from(psns_since) <= self.executed_psns - self.ackable_psns => {
                nic.counters.drop_duplicate += 1;
                return;
            }
            _ => {
                // The acknowledgement covers all executed SENDs and WRITEs.
                if !Mutant::CopyUnanswered.is_on() {
                    self.acks.request_now();
                }
                return;
            }
        };
        if !self.responses.push_duplicate(response, max_fetches) {
            nic.counters.drop_duplicate += 1;
        }
    }
}

/// Returns whether a mutant executes a duplicate again before it is answered.
pub(super) fn executes_duplicate(message: &Message) -> bool {
    match message {
        Message::CompareSwap(_) | Message::FetchAdd(_) => Mutant::DuplicateAtomicExecuted.is_on(),
        Message::WriteOnly(_) => Mutant::DuplicateWritePlaced.is_on(),
        Message::SendOnly | Message::SendOnlyImm(_) => Mutant::DuplicateSendDelivered.is_on(),
        _ => false,
    }
}

fn read_response(pd: PdId, psn: Psn, packets: u32, msn: u32, reth: Reth, duplicate: bool) -> Response {
    let data = ResponseData::Read { pd, va: reth.va, key: Key(reth.rkey), left: reth.len, first: true };
    Response { psn, end: psn.add(packets), msn, duplicate, data }
}

fn atomic_response(psn: Psn, msn: u32, value: u64, duplicate: bool) -> Response {
    Response { psn, end: psn.next(), msn, duplicate, data: ResponseData::Atomic { value } }
}
