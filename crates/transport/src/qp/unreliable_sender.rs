//! The sender of the unreliable services, UC and UD. A send completes when its last packet is in
//! the batch for the driver.

use std::collections::VecDeque;

use mitra_verbs::{Psn, QpState, SendFlags, SendWr, Wc, WcStatus};
use mitra_wire::{Deth, Packet, Qpn, Transport};

use crate::batch_writer::BatchWriter;
use crate::nic::shared_state::SharedState;
use crate::packet_of_message::data_message;
use crate::qp::attributes::QpAttributes;
use crate::qp::local_ops::execute_local;
use crate::qp::requester::SendFailed;
use crate::qp::send_validation::{Destination, execution_error};
use crate::scatter_gather;
use crate::{IpPath, Memory};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Request {
    wr: SendWr,
    /// The destination: the peer of a UC queue pair, or the address handle of a datagram at the
    /// time of the post.
    destination: Destination,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct UnreliableSender {
    queue: VecDeque<Request>,
    /// The number of packets of the front request that are sent.
    sent_packets: u32,
    next_psn: Psn,
}

impl UnreliableSender {
    pub(crate) fn new(psn: Psn) -> UnreliableSender {
        UnreliableSender { queue: VecDeque::new(), sent_packets: 0, next_psn: psn }
    }

    pub(crate) fn next_psn(&self) -> Psn {
        self.next_psn
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn push(&mut self, wr: SendWr, destination: Destination) {
        self.queue.push_back(Request { wr, destination });
    }

    /// Returns whether no message is partly sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.sent_packets == 0
    }

    pub(crate) fn can_send(&self, attrs: &QpAttributes) -> bool {
        match attrs.state {
            QpState::Rts => !self.queue.is_empty(),
            QpState::Sqd => self.sent_packets > 0,
            _ => false,
        }
    }

    pub(crate) fn next_destination(&self, attrs: &QpAttributes) -> IpPath {
        self.queue.front().map_or(attrs.dest_gid.into(), |request| request.destination.path)
    }

    /// Completes all sends: the oldest with the status `first`, the others as flushed.
    pub(crate) fn fail(&mut self, attrs: &QpAttributes, nic: &mut SharedState, first: Option<WcStatus>) {
        let mut status = first.unwrap_or(WcStatus::Flushed);
        while let Some(request) = self.queue.pop_front() {
            complete(attrs, nic, &request.wr, status);
            status = WcStatus::Flushed;
        }
        self.sent_packets = 0;
    }

    /// Appends up to `max_packets` packets for the batch's destination to the batch, and returns
    /// their number.
    pub(crate) fn transmit(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        memory: &mut dyn Memory,
        out: &mut BatchWriter<'_>,
        max_packets: usize,
    ) -> Result<usize, SendFailed> {
        let mut n = 0;
        while n < max_packets && self.can_send(attrs) && out.has_room(attrs.mtu) {
            let Some(Request { wr, destination }) = self.queue.front() else { break };
            if destination.path != out.destination() {
                break;
            }
            // UC supports the local operations as RC does (IBTA volume 1, table 38).
            if let Some(result) = execute_local(attrs, nic, &wr.op) {
                result.map_err(SendFailed)?;
                self.complete_front(attrs, nic);
                continue;
            }
            if !destination.is_in_domain {
                return Err(SendFailed(WcStatus::LocalQpOperation));
            }
            if let Some(status) = execution_error(attrs, wr) {
                return Err(SendFailed(status));
            }
            let len = wr.data.len() as usize;
            if attrs.init.qp_type.is_datagram() && len > attrs.mtu {
                // Such a message is not sent, and is no error (IBTA volume 1, C10-93.1.1).
                self.complete_front(attrs, nic);
                continue;
            }
            let packets = len.div_ceil(attrs.mtu).max(1) as u32;
            let (index, last) = (self.sent_packets, self.sent_packets + 1 == packets);
            let offset = index as usize * attrs.mtu;
            let payload = (len - offset).min(attrs.mtu);
            let (transport, dest_qp) = transport_and_dest_qp(attrs, wr);
            let message = data_message(&wr.op, index, packets, len as u32);
            let packet = Packet {
                solicited: last && wr.flags.contains(SendFlags::SOLICITED),
                mig_req: true,
                ..Packet::new(transport, dest_qp, self.next_psn, message, &[])
            };
            out.append(&packet, payload, |bytes| {
                scatter_gather::gather(&nic.keys, attrs.init.pd, &wr.data, offset as u64, bytes, memory)
            })
            .map_err(|_| SendFailed(WcStatus::LocalProtection))?;
            n += 1;
            self.next_psn = self.next_psn.next();
            self.sent_packets += 1;
            if last {
                self.complete_front(attrs, nic);
            }
        }
        Ok(n)
    }

    fn complete_front(&mut self, attrs: &QpAttributes, nic: &mut SharedState) {
        self.sent_packets = 0;
        if let Some(Request { wr, .. }) = self.queue.pop_front()
            && (attrs.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED))
        {
            complete(attrs, nic, &wr, WcStatus::Success);
        }
    }
}

fn transport_and_dest_qp(attrs: &QpAttributes, wr: &SendWr) -> (Transport, Qpn) {
    match wr.ud {
        Some(to) if attrs.init.qp_type.is_datagram() => {
            // A Q_Key with the top bit set stands for the Q_Key of the sending queue pair (IBTA
            // volume 1, 10.2.5).
            let uses_own_qkey = to.qkey & 1 << 31 != 0;
            let qkey = if uses_own_qkey { attrs.modified.qkey.unwrap_or_default() } else { to.qkey };
            (Transport::Ud(Deth { qkey, src_qp: attrs.qpn }), to.qpn)
        }
        _ => (Transport::Uc, attrs.dest_qpn),
    }
}

fn complete(attrs: &QpAttributes, nic: &mut SharedState, wr: &SendWr, status: WcStatus) {
    let mut wc = Wc::new(wr.wr_id, status, wr.op.wc_opcode(), attrs.qpn);
    wc.byte_len = wr.data.len() as u32;
    nic.complete(attrs.init.send_cq, wc, false);
}
