//! A queue pair: its state, and what its service makes of posts, packets and time.

use mitra_verbs::{
    Access, AsyncEvent, Drain, Gid, ModifyError, PdId, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn,
    RecvWr, Result, SavedResult, SendWr, Time, WcOpcode, WcStatus, check_modify,
};
use mitra_wire::{Packet, Psn, Transport};

use crate::Memory;
use crate::cq::completion;
use crate::emit::Out;
use crate::host::Host;
use crate::recv_queue::Receives;
use crate::requester::{Failed, Requester};
use crate::responder::{self, Fatal, Responder};

/// Packets that one side of a queue pair sends before the other side has its turn.
const TURN: usize = 16;

/// What all parts of a queue pair look at.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Common {
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInitAttr,
    /// Whose keys its receives name: the shared receive queue's domain may differ.
    pub(crate) recv_pd: PdId,
    pub(crate) state: QpState,
    /// Attributes as set.
    pub(crate) attr: QpAttr,
    /// Payload bytes per packet.
    pub(crate) mtu: usize,
    pub(crate) dest_gid: Gid,
    pub(crate) dest_qpn: Qpn,
}

impl Common {
    pub(crate) fn access(&self) -> Access {
        self.attr.access.unwrap_or_default()
    }

    pub(crate) fn max_rd_atomic(&self) -> u8 {
        self.attr.max_rd_atomic.unwrap_or_default()
    }

    pub(crate) fn max_dest_rd_atomic(&self) -> u8 {
        self.attr.max_dest_rd_atomic.unwrap_or_default()
    }

    pub(crate) fn min_rnr_timer(&self) -> u8 {
        self.attr.min_rnr_timer.unwrap_or_default()
    }

    pub(crate) fn timeout(&self) -> u8 {
        self.attr.timeout.unwrap_or_default()
    }

    pub(crate) fn retry_cnt(&self) -> u8 {
        self.attr.retry_cnt.unwrap_or_default()
    }

    pub(crate) fn rnr_retry(&self) -> u8 {
        self.attr.rnr_retry.unwrap_or_default()
    }
}

/// A queue pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Qp {
    pub(crate) common: Common,
    pub(crate) receives: Receives,
    requester: Requester,
    responder: Responder,
    drain: Drain,
    /// Whether a first packet was seen in RTR.
    established: bool,
    /// Whether the responder sends next, not the requester.
    responder_first: bool,
    /// Whether it is in the NIC's queue of those with something to send.
    pub(crate) queued: bool,
    /// Whether it is in the NIC's list of those that owe an acknowledgement.
    pub(crate) owing: bool,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, init: &QpInitAttr, recv_pd: PdId, receives: Receives) -> Qp {
        let common = Common {
            qpn,
            init: *init,
            recv_pd,
            state: QpState::Reset,
            attr: QpAttr::default(),
            mtu: 0,
            dest_gid: Gid([0; 16]),
            dest_qpn: Qpn::new(0),
        };
        Qp {
            common,
            receives,
            requester: Requester::new(),
            responder: Responder::new(Psn::new(0)),
            drain: Drain::None,
            established: false,
            responder_first: true,
            queued: false,
            owing: false,
        }
    }

    pub(crate) fn status(&self) -> QpStatus {
        QpStatus {
            state: self.common.state,
            init: self.common.init,
            attr: QpAttr { state: None, rq_psn: None, sq_psn: None, ..self.common.attr },
            rq_psn: self.responder.psn(),
            sq_psn: self.requester.sent(),
            drain: self.drain,
        }
    }

    pub(crate) fn saved_results(&self) -> Vec<SavedResult> {
        self.responder.saved()
    }

    /// Changes state and attributes.
    pub(crate) fn modify(&mut self, attr: &QpAttr, host: &mut Host) -> Result<()> {
        let from = self.common.state;
        let to = check_modify(self.common.init.qp_type, from, attr)?;
        check_limits(attr, host)?;
        let c = &mut self.common;
        merge(&mut c.attr, attr);
        if let Some(mtu) = attr.path_mtu {
            c.mtu = mtu.bytes();
        }
        if let Some(gid) = attr.dest_gid {
            c.dest_gid = gid;
        }
        if let Some(qpn) = attr.dest_qpn {
            c.dest_qpn = qpn;
        }
        match (from, to) {
            (_, QpState::Reset) => self.reset(host),
            (_, QpState::Err) => {
                self.fail(host, None, None);
                // A fence: nothing is answered any more, not even what was due.
                self.responder.silence();
            }
            (QpState::Init, QpState::Rtr) => {
                self.responder = Responder::new(attr.rq_psn.unwrap_or_default());
            }
            (QpState::Rtr, QpState::Rts) => {
                self.requester.start(&self.common, attr.sq_psn.unwrap_or_default());
            }
            _ => {}
        }
        if self.common.state != QpState::Err {
            self.common.state = to;
        }
        self.drain = match to {
            QpState::Sqd if from != to => Drain::Draining,
            QpState::Sqd => self.drain,
            _ => Drain::None,
        };
        self.check_drained(host);
        Ok(())
    }

    /// Empties it: nothing completes.
    fn reset(&mut self, host: &mut Host) {
        if let Receives::Own(queue) = &mut self.receives {
            queue.clear();
        }
        host.keys.release(self.common.qpn);
        let (queued, owing) = (self.queued, self.owing);
        let receives = self.receives.clone();
        let Common { qpn, init, recv_pd, .. } = &self.common;
        *self = Qp { queued, owing, ..Qp::new(*qpn, init, *recv_pd, receives) };
    }

    /// To ERR: the front send request ends with `send`, the receive being filled with `receive`, the others are
    /// flushed (IBTA volume 1, 10.3.1.7).
    pub(crate) fn fail(&mut self, host: &mut Host, send: Option<WcStatus>, receive: Option<WcStatus>) {
        let was = self.common.state;
        self.common.state = QpState::Err;
        self.drain = Drain::None;
        self.requester.fail(&self.common, host, send);
        let mut status = receive.unwrap_or(WcStatus::Flushed);
        if let Some(wr) = self.responder.take_inbound() {
            self.complete_receive(host, &wr, status);
            status = WcStatus::Flushed;
        }
        match &mut self.receives {
            Receives::Own(_) => self.flush_receives(host, status),
            Receives::Shared(_) if was != QpState::Err => {
                host.events.raise(AsyncEvent::LastWqeReached(self.common.qpn));
            }
            Receives::Shared(_) => {}
        }
    }

    fn flush_receives(&mut self, host: &mut Host, first: WcStatus) {
        let mut status = first;
        while let Receives::Own(queue) = &mut self.receives
            && let Some(wr) = queue.take()
        {
            self.complete_receive(host, &wr, status);
            status = WcStatus::Flushed;
        }
    }

    fn complete_receive(&self, host: &mut Host, wr: &RecvWr, status: WcStatus) {
        let wc = completion(wr.wr_id, status, WcOpcode::Recv, self.common.qpn);
        host.complete(self.common.init.recv_cq, wc, false);
    }

    fn check_drained(&mut self, host: &mut Host) {
        if self.drain == Drain::Draining && self.requester.drained() {
            self.drain = Drain::Drained;
            host.events.raise(AsyncEvent::SqDrained(self.common.qpn));
        }
    }

    /// Sends posted and not completed.
    pub(crate) fn sends(&self) -> usize {
        self.requester.len()
    }

    /// Queues a send that was found valid.
    pub(crate) fn push_send(&mut self, wr: SendWr) {
        self.requester.push(wr);
    }

    /// Posts in ERR complete at once.
    pub(crate) fn flush_posted(&mut self, host: &mut Host) {
        if self.common.state == QpState::Err {
            self.requester.fail(&self.common, host, None);
            self.flush_receives(host, WcStatus::Flushed);
        }
    }

    fn requester_failed(&mut self, host: &mut Host, Failed(status): Failed) {
        self.fail(host, Some(status), None);
        // Its own requester has failed: what the peer asked for is not answered any more either.
        self.responder.silence();
    }

    fn responder_failed(&mut self, host: &mut Host, Fatal { receive, code }: Fatal) {
        if receive.is_none() {
            host.events.raise(responder::event(code, self.common.qpn));
        }
        self.fail(host, None, receive);
    }

    /// A packet from `source` for this queue pair.
    pub(crate) fn handle_packet(
        &mut self,
        host: &mut Host,
        now: Time,
        source: Gid,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let c = &mut self.common;
        if !responder::receives_in(c.state) {
            host.counters.drop_qp_state += 1;
            return;
        }
        if source != c.dest_gid {
            host.counters.drop_foreign_source += 1;
            return;
        }
        if packet.transport != Transport::Rc {
            host.counters.drop_wrong_transport += 1;
            return;
        }
        if c.state == QpState::Rtr && !self.established {
            self.established = true;
            host.events.raise(AsyncEvent::CommunicationEstablished(c.qpn));
        }
        if packet.message.is_request() {
            let done = self.responder.handle_request(c, &mut self.receives, host, now, packet, memory);
            if let Err(fatal) = done {
                self.responder_failed(host, fatal);
            }
        } else if matches!(c.state, QpState::Rts | QpState::Sqd) {
            match self.requester.handle_response(c, host, now, packet, memory) {
                Ok(()) => self.check_drained(host),
                Err(failed) => self.requester_failed(host, failed),
            }
        } else {
            host.counters.drop_qp_state += 1;
        }
    }

    pub(crate) fn handle_timeout(&mut self, host: &mut Host, now: Time) {
        self.responder.handle_timeout(now);
        if let Err(failed) = self.requester.handle_timeout(&self.common, host, now) {
            self.requester_failed(host, failed);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.requester.deadline(), self.responder.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether an acknowledgement waits for an idle moment.
    pub(crate) fn owes(&self) -> bool {
        self.responder.owes()
    }

    pub(crate) fn flush_ack(&mut self) {
        self.responder.flush_ack();
    }

    /// Whether there is something to send now.
    pub(crate) fn can_send(&self, host: &Host) -> bool {
        self.responder.can_send() || self.requester.can_send(&self.common, host)
    }

    /// Where its next packet goes.
    pub(crate) fn next_destination(&self) -> Gid {
        self.common.dest_gid
    }

    /// Sends what it can and the batch takes, responder and requester in turns.
    pub(crate) fn transmit(
        &mut self,
        host: &mut Host,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
    ) {
        let mut idle = 0;
        while idle < 2 {
            let sent = if self.responder_first {
                self.responder.transmit(&self.common, host, memory, out, TURN).unwrap_or_else(|fatal| {
                    self.responder_failed(host, fatal);
                    1
                })
            } else {
                self.requester.transmit(&self.common, host, now, memory, out, TURN).unwrap_or_else(|failed| {
                    self.requester_failed(host, failed);
                    0
                })
            };
            idle = if sent == 0 { idle + 1 } else { 0 };
            self.responder_first = !self.responder_first;
        }
        self.check_drained(host);
    }
}

/// What a device can judge of a modification that the state table cannot.
fn check_limits(attr: &QpAttr, host: &Host) -> Result<(), ModifyError> {
    use mitra_verbs::Attribute as A;
    let most = host.config.limits.rd_atomic;
    let ranges = [
        (
            attr.path_mtu.is_some_and(|mtu| mtu > host.config.max_mtu),
            A::PathMtu,
            "at most the MTU of the port",
        ),
        (
            attr.max_rd_atomic.is_some_and(|n| n > most),
            A::MaxRdAtomic,
            "at most the limit `rd_atomic` of the device",
        ),
        (
            attr.max_dest_rd_atomic.is_some_and(|n| n > most),
            A::MaxDestRdAtomic,
            "at most the limit `rd_atomic` of the device",
        ),
    ];
    match ranges.into_iter().find(|(bad, ..)| *bad) {
        Some((_, attribute, rule)) => Err(ModifyError::OutOfRange { attribute, rule }),
        None => Ok(()),
    }
}

/// Sets what `new` sets.
fn merge(attr: &mut QpAttr, new: &QpAttr) {
    macro_rules! set {
        ($($field:ident)*) => { $( if new.$field.is_some() { attr.$field = new.$field; } )* };
    }
    set!(state pkey_index port access qkey dest_gid dest_qpn path_mtu rq_psn sq_psn max_rd_atomic
        max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry);
}

/// Whether this device offers the service.
pub(crate) fn supported(qp_type: QpType) -> bool {
    qp_type == QpType::Rc
}
