//! Sending without acknowledgements: UC and UD. A request is done when its last packet has left.

use std::collections::VecDeque;

use mitra_verbs::{Gid, Psn, QpState, SendFlags, SendWr, WcStatus};
use mitra_wire::{Deth, Packet, Qpn, Transport};

use crate::Memory;
use crate::cq::completion;
use crate::emit::Out;
use crate::host::Host;
use crate::qp::Common;
use crate::requester::{Failed, data_message, execute_local};
use crate::sges;

/// A posted send.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Request {
    wr: SendWr,
    /// Where a datagram goes: its address handle as it was when posted.
    destination: Gid,
}

/// The send queue of an unreliable service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Sender {
    queue: VecDeque<Request>,
    /// Packets of the front request that have left.
    sent: u32,
    /// The PSN of the next packet.
    psn: Psn,
}

impl Sender {
    pub(crate) fn new(psn: Psn) -> Sender {
        Sender { queue: VecDeque::new(), sent: 0, psn }
    }

    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// Posted and not completed.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn push(&mut self, wr: SendWr, destination: Gid) {
        self.queue.push_back(Request { wr, destination });
    }

    /// Whether no message is half sent.
    pub(crate) fn drained(&self) -> bool {
        self.sent == 0
    }

    pub(crate) fn can_send(&self, c: &Common) -> bool {
        match c.state {
            QpState::Rts => !self.queue.is_empty(),
            QpState::Sqd => self.sent > 0,
            _ => false,
        }
    }

    /// Where the next packet goes.
    pub(crate) fn next_destination(&self, c: &Common) -> Gid {
        self.queue.front().map_or(c.dest_gid, |request| request.destination)
    }

    /// Takes everything out: the status of the front request is `first`, the others are flushed.
    pub(crate) fn fail(&mut self, c: &Common, host: &mut Host, first: Option<WcStatus>) {
        let mut status = first.unwrap_or(WcStatus::Flushed);
        while let Some(request) = self.queue.pop_front() {
            complete(c, host, &request.wr, status);
            status = WcStatus::Flushed;
        }
        self.sent = 0;
    }

    /// Sends packets to `destination` while that is possible, at most `most`, and says how many.
    pub(crate) fn transmit(
        &mut self,
        c: &Common,
        host: &mut Host,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
        most: usize,
    ) -> Result<usize, Failed> {
        let mut n = 0;
        while n < most && self.can_send(c) && out.has_room(c.mtu) {
            let Some(Request { wr, destination }) = self.queue.front() else { break };
            if *destination != out.destination() {
                break;
            }
            // UC has these as RC does (IBTA volume 1, table 38).
            if let Some(done) = execute_local(c, host, &wr.op) {
                done.map_err(Failed)?;
                self.retire(c, host);
                continue;
            }
            let len = wr.data.len() as usize;
            let packets = len.div_ceil(c.mtu).max(1) as u32;
            let (index, last) = (self.sent, self.sent + 1 == packets);
            let offset = index as usize * c.mtu;
            let payload = (len - offset).min(c.mtu);
            let (transport, dest_qp) = address(c, wr);
            let message = data_message(&wr.op, index, packets, len as u32);
            let packet = Packet {
                solicited: last && wr.flags.contains(SendFlags::SOLICITED),
                mig_req: true,
                ..Packet::new(transport, dest_qp, self.psn, message, &[])
            };
            out.packet(&packet, payload, |bytes| {
                sges::gather(&host.keys, c.init.pd, &wr.data, offset as u64, bytes, memory)
            })
            .map_err(|_| Failed(WcStatus::LocalProtection))?;
            n += 1;
            self.psn = self.psn.next();
            self.sent += 1;
            if last {
                self.retire(c, host);
            }
        }
        Ok(n)
    }

    /// The front request is done.
    fn retire(&mut self, c: &Common, host: &mut Host) {
        self.sent = 0;
        if let Some(Request { wr, .. }) = self.queue.pop_front()
            && (c.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED))
        {
            complete(c, host, &wr, WcStatus::Success);
        }
    }
}

/// The transport header and the queue pair that a send is for.
fn address(c: &Common, wr: &SendWr) -> (Transport, Qpn) {
    match wr.ud {
        Some(to) if c.init.qp_type.is_datagram() => {
            // A Q_Key with its top bit set means the sender's own (IBTA volume 1, 10.2.5).
            let own = to.qkey & 1 << 31 != 0;
            let qkey = if own { c.attr.qkey.unwrap_or_default() } else { to.qkey };
            (Transport::Ud(Deth { qkey, src_qp: c.qpn }), to.qpn)
        }
        _ => (Transport::Uc, c.dest_qpn),
    }
}

fn complete(c: &Common, host: &mut Host, wr: &SendWr, status: WcStatus) {
    let mut wc = completion(wr.wr_id, status, wr.op.wc_opcode(), c.qpn);
    wc.byte_len = wr.data.len() as u32;
    host.complete(c.init.send_cq, wc, false);
}
