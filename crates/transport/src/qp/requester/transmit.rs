//! Sending request packets.

use mitra_mutants::Mutant;
use mitra_verbs::{QpState, QpType, SendFlags, SendOp, Time, WcStatus};
use mitra_wire::{AtomicEth, Message, Packet, Reth, Transport};

use super::send_window::max_read_chunk;
use super::{Cursor, OutstandingFetch, Requester, SendFailed};
use crate::batch_writer::BatchWriter;
use crate::nic::shared_state::SharedState;
use crate::packet_of_message::data_message;
use crate::qp::attributes::QpAttributes;
use crate::qp::local_ops::execute_local;
use crate::qp::send_validation::execution_error;
use crate::{Memory, scatter_gather};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Started {
    /// The request has PSNs and packets to send.
    Packets,
    /// The request was a local operation and is completed.
    Completed,
}

impl Requester {
    pub(crate) fn can_send(&self, attrs: &QpAttributes, nic: &SharedState) -> bool {
        if self.rnr_until.is_some()
            || self.local_error.is_some_and(|(position, _)| position <= self.cursor.request)
        {
            return false;
        }
        let Some(request) = self.request(self.cursor.request) else { return false };
        let is_new = self.cursor.request == self.next_start;
        match attrs.state {
            QpState::Rts => {}
            // In SQD, started requests continue and no request is started (IBTA volume 1, 10.3.1).
            QpState::Sqd if !is_new => {}
            _ => return false,
        }
        // A fenced request waits for earlier READs and atomics (IBTA volume 1, 10.8.3).
        let is_fenced = request.wr.flags.contains(SendFlags::FENCE) && !Mutant::FenceIgnored.is_on();
        if is_fenced && self.cursor.packet == 0 && !self.fetches.is_empty() {
            return false;
        }
        let max_fetches = usize::from(attrs.max_rd_atomic()) + usize::from(Mutant::FetchesOffByOne.is_on());
        match request.wr.op {
            SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => self.cursor.request == self.head,
            // The request fails as soon as the NIC begins to execute it.
            _ if attrs.max_rd_atomic() == 0 && request.wr.op.is_read_or_atomic() => true,
            SendOp::Read(_) => self.fetches.len() < max_fetches && self.has_read_room(attrs, nic, request),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.fetches.len() < max_fetches,
            _ => self.has_send_room(attrs, nic),
        }
    }

    /// Appends up to `max_packets` packets to the batch and returns their number.
    pub(crate) fn transmit(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut BatchWriter<'_>,
        max_packets: usize,
    ) -> Result<usize, SendFailed> {
        let mut n = 0;
        while n < max_packets && self.can_send(attrs, nic) && out.has_room(attrs.mtu) {
            match self.send_next(attrs, nic, now, memory, out) {
                Ok(sent) => n += usize::from(sent),
                Err(status) if self.cursor.request == self.head => return Err(SendFailed(status)),
                Err(status) => self.local_error = Some((self.cursor.request, status)),
            }
        }
        Ok(n)
    }

    /// Appends the packet at the cursor to the batch. Returns false for a local operation, which
    /// has no packet.
    fn send_next(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut BatchWriter<'_>,
    ) -> Result<bool, WcStatus> {
        if self.cursor.request == self.next_start && self.start_request(attrs, nic)? == Started::Completed {
            return Ok(false);
        }
        let Cursor { request: position, packet: index } = self.cursor;
        let request = &self.queue[(position - self.head) as usize];
        let psn = request.psn.add(index);
        let (packets, len) = (request.packets, request.len);
        let last = index + 1 == packets;
        let mut psn_count = 1;
        let mut payload = 0;
        let mut ack_req = last;
        let message = match request.wr.op {
            SendOp::Read(remote) => {
                psn_count = self.read_packets(attrs, nic, request);
                ack_req = true;
                let offset = index * attrs.mtu as u32;
                let len = (len - offset).min(psn_count.saturating_mul(attrs.mtu as u32));
                let resumed_at = if Mutant::ReadResumedAtStart.is_on() { 0 } else { offset };
                let va = remote.addr.wrapping_add(resumed_at.into());
                Message::ReadRequest(Reth { va, rkey: remote.rkey.0, len })
            }
            SendOp::CompareSwap { remote, compare, swap } => Message::CompareSwap(AtomicEth {
                va: remote.addr,
                rkey: remote.rkey.0,
                swap_add: swap,
                compare,
            }),
            SendOp::FetchAdd { remote, add } => Message::FetchAdd(AtomicEth {
                va: remote.addr,
                rkey: remote.rkey.0,
                swap_add: add,
                compare: 0,
            }),
            ref op => {
                payload = (len as usize - index as usize * attrs.mtu).min(attrs.mtu);
                data_message(op, index, packets, len)
            }
        };
        let transport = match attrs.init.qp_type {
            QpType::XrcSend => Transport::Xrc(request.wr.remote_srq),
            _ => Transport::Rc,
        };
        let end = Cursor { request: position, packet: index + psn_count };
        let cost = self.cost_at(end, attrs.mtu);
        // At least one acknowledgement request per quarter of the window keeps the window moving.
        let unrequested = cost.saturating_sub(self.ack_requested_cost);
        ack_req |= unrequested >= u64::from(nic.config.tuning.send_window / 4);
        let packet = Packet {
            solicited: last && message.has_payload() && request.wr.flags.contains(SendFlags::SOLICITED),
            mig_req: true,
            ack_req,
            ..Packet::new(transport, attrs.dest_qpn, psn, message, &[])
        };
        if message.has_payload() {
            let offset = u64::from(index) * attrs.mtu as u64;
            out.append(&packet, payload, |bytes| {
                scatter_gather::gather(&nic.keys, attrs.init.pd, &request.wr.data, offset, bytes, memory)
            })
            .map_err(|_| WcStatus::LocalProtection)?;
        } else {
            out.append_headers(&packet);
        }
        if request.wr.op.is_read_or_atomic() {
            self.fetches.push_back(OutstandingFetch { psn, end: psn.add(psn_count) });
        }
        if ack_req {
            self.ack_requested_cost = cost;
        }
        self.cursor = if end.packet == packets { Cursor { request: position + 1, packet: 0 } } else { end };
        if psn == self.first_unsent_psn {
            self.first_unsent_psn = psn.add(psn_count);
        } else {
            nic.counters.retransmitted_packets += 1;
        }
        if self.retransmit_at.is_none() {
            self.retransmit_at = attrs.local_ack_timeout().map(|timeout| now + timeout);
        }
        Ok(true)
    }

    /// Starts the request at the cursor: executes a local operation, or gives any other request its
    /// PSNs.
    fn start_request(&mut self, attrs: &QpAttributes, nic: &mut SharedState) -> Result<Started, WcStatus> {
        let (psn, cost_before) = (self.next_psn, self.total_cost);
        let request = &mut self.queue[(self.next_start - self.head) as usize];
        if let Some(status) = execution_error(attrs, &request.wr) {
            return Err(status);
        }
        let Some(result) = execute_local(attrs, nic, &request.wr.op) else {
            request.packets =
                if request.wr.op.is_atomic() { 1 } else { request.len.div_ceil(attrs.mtu as u32).max(1) };
            request.read_chunk = max_read_chunk(attrs, nic);
            request.psn = psn;
            request.cost_before = cost_before;
            self.next_psn = psn.add(request.packets);
            self.total_cost += request.cost_of(request.packets, attrs.mtu);
            self.next_start += 1;
            return Ok(Started::Packets);
        };
        result?;
        self.next_start += 1;
        self.cursor.request += 1;
        self.complete_front(attrs, nic);
        Ok(Started::Completed)
    }
}
