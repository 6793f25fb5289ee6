//! A queue pair: its state, and what its service makes of posts, packets and time.

use mitra_verbs::{
    Access, AsyncEvent, Gid, ModifyError, PdId, QpAttr, QpAttribute, QpInitAttr, QpState, QpStatus, QpType,
    Qpn, RecvWr, Result, SavedResult, SendWr, SqDrain, Time, WcOpcode, WcStatus, check_modify,
};
use mitra_wire::{Packet, Psn, Transport};

use crate::Memory;
use crate::cq::completion;
use crate::emit::Out;
use crate::host::{Host, Route};
use crate::recv_queue::Receives;
use crate::requester::{Failed, Requester};
use crate::responder::{self, Fatal, Responder};
use crate::unreliable::Sender;
use crate::{uc, ud};

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

/// What sends and receives on a queue pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Service {
    Rc {
        requester: Requester,
        /// Boxed, so that the other services are not as large.
        responder: Box<Responder>,
        /// Whether the responder sends next, not the requester.
        responder_first: bool,
    },
    Uc {
        sender: Sender,
        receiver: uc::Receiver,
    },
    Ud {
        sender: Sender,
    },
}

impl Service {
    fn new(qp_type: QpType) -> Service {
        let zero = Psn::new(0);
        match qp_type {
            QpType::Rc => Service::Rc {
                requester: Requester::new(),
                responder: Box::new(Responder::new(zero)),
                responder_first: true,
            },
            QpType::Uc => Service::Uc { sender: Sender::new(zero), receiver: uc::Receiver::new(zero) },
            QpType::Ud | QpType::Gsi => Service::Ud { sender: Sender::new(zero) },
        }
    }
}

/// A queue pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Qp {
    pub(crate) common: Common,
    pub(crate) receives: Receives,
    service: Service,
    drain: SqDrain,
    /// Whether a first packet was seen in RTR.
    established: bool,
    /// Whether it is in the NIC's queue of those with something to send.
    pub(crate) queued: bool,
    /// Whether it is in the NIC's list of those that owe an acknowledgement.
    pub(crate) owing: bool,
    /// Whether it is in the NIC's list of those that held one back.
    pub(crate) patient: bool,
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
            service: Service::new(init.qp_type),
            drain: SqDrain::NotInSqd,
            established: false,
            queued: false,
            owing: false,
            patient: false,
        }
    }

    pub(crate) fn status(&self) -> QpStatus {
        let (rq_psn, sq_psn) = match &self.service {
            Service::Rc { requester, responder, .. } => (responder.psn(), requester.sent()),
            Service::Uc { sender, receiver } => (receiver.psn(), sender.psn()),
            Service::Ud { sender } => (Psn::new(0), sender.psn()),
        };
        QpStatus {
            state: self.common.state,
            init: self.common.init,
            attr: QpAttr { state: None, rq_psn: None, sq_psn: None, ..self.common.attr },
            rq_psn,
            sq_psn,
            sq_drain: self.drain,
        }
    }

    pub(crate) fn saved_results(&self) -> Vec<SavedResult> {
        match &self.service {
            Service::Rc { responder, .. } => responder.saved(),
            _ => Vec::new(),
        }
    }

    /// Changes state and attributes.
    pub(crate) fn modify(&mut self, attr: &QpAttr, host: &mut Host) -> Result<()> {
        let from = self.common.state;
        let to = check_modify(self.common.init.qp_type, from, attr)?;
        check_limits(attr, host)?;
        if attr.max_rd_atomic == Some(0)
            && matches!(&self.service, Service::Rc { requester, .. } if requester.has_fetches())
        {
            let rule = "at least 1 while READs or atomics are posted";
            return Err(ModifyError::OutOfRange { attribute: QpAttribute::MaxRdAtomic, rule }.into());
        }
        let c = &mut self.common;
        c.attr.update(attr);
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
                self.silence();
            }
            (QpState::Init, QpState::Rtr) => self.start_receiving(attr, host),
            (QpState::Rtr, QpState::Rts) => self.start_sending(attr),
            _ => {}
        }
        self.common.state = to;
        self.drain = match to {
            QpState::Sqd if from != to => SqDrain::Draining,
            QpState::Sqd => self.drain,
            _ => SqDrain::NotInSqd,
        };
        self.check_drained(host);
        Ok(())
    }

    fn start_receiving(&mut self, attr: &QpAttr, host: &Host) {
        let psn = attr.rq_psn.unwrap_or_default();
        match &mut self.service {
            Service::Rc { responder, .. } => **responder = Responder::new(psn),
            Service::Uc { receiver, .. } => *receiver = uc::Receiver::new(psn),
            // A datagram may be as long as the port allows.
            Service::Ud { .. } => self.common.mtu = host.config.max_mtu.bytes(),
        }
    }

    fn start_sending(&mut self, attr: &QpAttr) {
        let psn = attr.sq_psn.unwrap_or_default();
        match &mut self.service {
            Service::Rc { requester, .. } => requester.start(&self.common, psn),
            Service::Uc { sender, .. } | Service::Ud { sender } => *sender = Sender::new(psn),
        }
    }

    /// Empties it: nothing completes.
    fn reset(&mut self, host: &mut Host) {
        if let Receives::Own(queue) = &mut self.receives {
            queue.clear();
        }
        host.keys.release(self.common.qpn);
        let (queued, owing, patient) = (self.queued, self.owing, self.patient);
        let receives = self.receives.clone();
        let Common { qpn, init, recv_pd, .. } = &self.common;
        *self = Qp { queued, owing, patient, ..Qp::new(*qpn, init, *recv_pd, receives) };
    }

    /// To ERR: the front send request ends with `send`, the receive being filled with `receive`, the others are
    /// flushed (IBTA volume 1, 10.3.1).
    pub(crate) fn fail(&mut self, host: &mut Host, send: Option<WcStatus>, receive: Option<WcStatus>) {
        let was = self.common.state;
        self.common.state = QpState::Err;
        self.drain = SqDrain::NotInSqd;
        self.fail_sends(host, send);
        let mut status = receive.unwrap_or(WcStatus::Flushed);
        let unfinished = match &mut self.service {
            Service::Rc { responder, .. } => {
                responder.stop();
                responder.take_receive()
            }
            Service::Uc { receiver, .. } => receiver.take_receive(),
            Service::Ud { .. } => None,
        };
        if let Some(wr) = unfinished {
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

    fn fail_sends(&mut self, host: &mut Host, first: Option<WcStatus>) {
        match &mut self.service {
            Service::Rc { requester, .. } => requester.fail(&self.common, host, first),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.fail(&self.common, host, first),
        }
    }

    /// Nothing is answered any more.
    fn silence(&mut self) {
        if let Service::Rc { responder, .. } = &mut self.service {
            responder.silence();
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
        let drained = match &self.service {
            Service::Rc { requester, .. } => requester.drained(),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.drained(),
        };
        if self.drain == SqDrain::Draining && drained {
            self.drain = SqDrain::Drained;
            host.events.raise(AsyncEvent::SqDrained(self.common.qpn));
        }
    }

    /// Sends posted and not completed.
    pub(crate) fn sends(&self) -> usize {
        match &self.service {
            Service::Rc { requester, .. } => requester.len(),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.len(),
        }
    }

    /// Queues a send that was found valid; `destination` is where a datagram goes.
    pub(crate) fn push_send(&mut self, wr: SendWr, destination: Option<Gid>) {
        let destination = destination.unwrap_or(self.common.dest_gid);
        match &mut self.service {
            Service::Rc { requester, .. } => requester.push(wr),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.push(wr, destination),
        }
    }

    /// Posts in ERR complete at once; in SQE, sends do.
    pub(crate) fn flush_posted(&mut self, host: &mut Host) {
        if matches!(self.common.state, QpState::Err | QpState::Sqe) {
            self.fail_sends(host, None);
        }
        if self.common.state == QpState::Err {
            self.flush_receives(host, WcStatus::Flushed);
        }
    }

    fn sender_failed(&mut self, host: &mut Host, Failed(status): Failed) {
        match &mut self.service {
            Service::Rc { .. } => self.fail(host, Some(status), None),
            Service::Uc { .. } | Service::Ud { .. } => {
                self.fail_sends(host, Some(status));
                self.common.state = QpState::Sqe;
                self.drain = SqDrain::NotInSqd;
            }
        }
    }

    fn responder_failed(&mut self, host: &mut Host, Fatal { receive, code }: Fatal) {
        if receive.is_none() {
            host.events.raise(responder::event(code, self.common.qpn));
        }
        self.fail(host, None, receive);
    }

    /// A packet for this queue pair.
    pub(crate) fn handle_packet(
        &mut self,
        host: &mut Host,
        now: Time,
        route: Route,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let c = &self.common;
        if !matches!(c.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            host.counters.drop_qp_state += 1;
            return;
        }
        if route.source != c.dest_gid && !c.init.qp_type.is_datagram() {
            host.counters.drop_foreign_source += 1;
            return;
        }
        let receives = &mut self.receives;
        let broken = match (&mut self.service, packet.transport) {
            (Service::Rc { responder, .. }, Transport::Rc) if packet.message.is_request() => {
                let done = responder.handle_request(c, receives, host, now, packet, memory);
                if let Err(fatal) = done {
                    self.responder_failed(host, fatal);
                }
                None
            }
            (Service::Rc { requester, .. }, Transport::Rc) => {
                if c.state == QpState::Rtr {
                    host.counters.drop_qp_state += 1;
                    return;
                }
                match requester.handle_response(c, host, now, packet, memory) {
                    Ok(()) => self.check_drained(host),
                    Err(failed) => self.sender_failed(host, failed),
                }
                None
            }
            (Service::Uc { receiver, .. }, Transport::Uc) => {
                receiver.handle(c, receives, host, packet, memory).err().map(Some)
            }
            (Service::Ud { .. }, Transport::Ud(deth)) => {
                ud::handle(c, receives, host, route, deth, packet, memory).err().map(|ud::Broken| None)
            }
            _ => {
                host.counters.drop_wrong_transport += 1;
                return;
            }
        };
        if let Some(receive) = broken {
            self.fail(host, None, receive);
        }
        if self.common.state == QpState::Rtr && !self.established {
            self.established = true;
            host.events.raise(AsyncEvent::CommunicationEstablished(self.common.qpn));
        }
    }

    pub(crate) fn handle_timeout(&mut self, host: &mut Host, now: Time) {
        if let Service::Rc { requester, responder, .. } = &mut self.service {
            responder.handle_timeout(host, now);
            if let Err(failed) = requester.handle_timeout(&self.common, host, now) {
                self.sender_failed(host, failed);
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let Service::Rc { requester, responder, .. } = &self.service else { return None };
        match (requester.deadline(), responder.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether an acknowledgement waits for an idle moment.
    pub(crate) fn owes(&self) -> bool {
        matches!(&self.service, Service::Rc { responder, .. } if responder.owes())
    }

    /// Says whether an acknowledgement is held back.
    pub(crate) fn handle_idle(&mut self, host: &Host, now: Time) -> bool {
        match &mut self.service {
            Service::Rc { responder, .. } => responder.handle_idle(host, now),
            _ => false,
        }
    }

    /// Before it sends: an acknowledgement that it owes goes along behind a request, in the same system call where a driver
    /// can, unless it is held back. Says whether it is.
    pub(crate) fn take_along(&mut self, host: &Host, now: Time) -> bool {
        let Service::Rc { requester, responder, responder_first } = &mut self.service else { return false };
        let waits = requester.can_send(&self.common, host) && responder.handle_idle(host, now);
        // The longer one first: the kernel takes a run whose last datagram alone is shorter.
        *responder_first &= !responder.only_acknowledges();
        waits
    }

    pub(crate) fn flush_acks(&mut self) {
        if let Service::Rc { responder, .. } = &mut self.service {
            responder.flush_acks();
        }
    }

    /// Whether there is something to send now.
    pub(crate) fn can_send(&self, host: &Host) -> bool {
        match &self.service {
            Service::Rc { requester, responder, .. } => {
                responder.can_send() || requester.can_send(&self.common, host)
            }
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.can_send(&self.common),
        }
    }

    /// Where its next packet goes.
    pub(crate) fn next_destination(&self) -> Gid {
        match &self.service {
            Service::Ud { sender } => sender.next_destination(&self.common),
            _ => self.common.dest_gid,
        }
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
            let c = &self.common;
            let sent = match &mut self.service {
                Service::Rc { responder, responder_first: first @ true, .. } => {
                    *first = false;
                    responder.transmit(c, host, now, memory, out, TURN).unwrap_or_else(|fatal| {
                        self.responder_failed(host, fatal);
                        1
                    })
                }
                Service::Rc { requester, responder_first: first @ false, .. } => {
                    *first = true;
                    requester.transmit(c, host, now, memory, out, TURN).unwrap_or_else(|failed| {
                        self.sender_failed(host, failed);
                        0
                    })
                }
                Service::Uc { sender, .. } | Service::Ud { sender } => {
                    sender.transmit(c, host, memory, out, TURN).unwrap_or_else(|failed| {
                        self.sender_failed(host, failed);
                        0
                    })
                }
            };
            idle = if sent == 0 { idle + 1 } else { 0 };
        }
        self.check_drained(host);
    }
}

/// What a device can judge of a modification that the state table cannot.
fn check_limits(attr: &QpAttr, host: &Host) -> Result<(), ModifyError> {
    use QpAttribute as A;
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
