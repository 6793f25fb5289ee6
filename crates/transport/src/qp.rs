//! A queue pair: its state, and the transport service that handles its posts, packets and timers.

pub(crate) mod attributes;
mod local_ops;
mod modify;
pub(crate) mod pending_send;
pub(crate) mod reassembly;
mod requester;
mod responder;
pub(crate) mod send_validation;
mod uc_receiver;
pub(crate) mod ud_receiver;
mod unreliable_sender;
mod xrc;

use mitra_mutants::Mutant;
use mitra_verbs::{
    AsyncEvent, Gid, PdId, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, SavedResult, SendWr,
    SqDrain, Time, Wc, WcOpcode, WcStatus,
};
use mitra_wire::{Packet, Psn, Transport};

use crate::batch_writer::BatchWriter;
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::{Route, SharedState};
use crate::packet_of_message::takes_receive;
use crate::{IpPath, Memory};
use attributes::QpAttributes;
use requester::{Requester, SendFailed};
use responder::{FatalError, Responder};
use send_validation::Destination;
use uc_receiver::UcReceiver;
use unreliable_sender::UnreliableSender;

/// An upper bound on the packets that the requester, the responder or another sender sends in one
/// turn.
const PACKETS_PER_TURN: usize = 16;

/// The sending and receiving state machines of a transport service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Service {
    Rc {
        requester: Requester,
        /// Boxed because the responder is much larger than the state of the other services.
        responder: Box<Responder>,
        /// Whether the responder has the next turn to send.
        responder_first: bool,
    },
    Uc {
        sender: UnreliableSender,
        receiver: UcReceiver,
    },
    Ud {
        sender: UnreliableSender,
    },
}

impl Service {
    fn new(qp_type: QpType) -> Service {
        let zero = Psn::new(0);
        match qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv(_) => Service::Rc {
                requester: Requester::new(),
                responder: Box::new(Responder::new(zero)),
                responder_first: true,
            },
            QpType::Uc => {
                Service::Uc { sender: UnreliableSender::new(zero), receiver: UcReceiver::new(zero) }
            }
            QpType::Ud | QpType::Gsi => Service::Ud { sender: UnreliableSender::new(zero) },
        }
    }
}

/// The queues of a queue pair in ERR that are to be flushed later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Unflushed {
    /// The requester still handles responses.
    sends: bool,
    /// The responder still executes requests.
    receives: bool,
    /// The queue pair's own receive queue was empty at the change to ERR.
    without_receive: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Qp {
    pub(crate) attrs: QpAttributes,
    pub(crate) receives: RecvSource,
    service: Service,
    drain: SqDrain,
    /// Whether a packet has arrived in RTR, which raises the communication established event once.
    established: bool,
    /// The queues that are not flushed yet, of a queue pair in ERR ([`Qp::begin_error`]).
    unflushed: Unflushed,
    /// `in_NAME` is true while the queue pair is in the NIC's list `NAME`.
    pub(crate) in_ready: bool,
    pub(crate) in_ack_pending: bool,
    pub(crate) in_ack_held: bool,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, init: &QpInitAttr, recv_pd: PdId, receives: RecvSource) -> Qp {
        let attrs = QpAttributes {
            qpn,
            init: *init,
            recv_pd,
            state: QpState::Reset,
            modified: QpAttr::default(),
            mtu: 0,
            dest_gid: Gid([0; 16]),
            dest_qpn: Qpn::new(0),
        };
        Qp {
            attrs,
            receives,
            service: Service::new(init.qp_type),
            drain: SqDrain::NotInSqd,
            established: false,
            unflushed: Unflushed::default(),
            in_ready: false,
            in_ack_pending: false,
            in_ack_held: false,
        }
    }

    pub(crate) fn status(&self) -> QpStatus {
        let (rq_psn, sq_psn) = match &self.service {
            Service::Rc { requester, responder, .. } => {
                (responder.expected_psn(), requester.first_unsent_psn())
            }
            Service::Uc { sender, receiver } => (receiver.expected_psn(), sender.next_psn()),
            Service::Ud { sender } => (Psn::new(0), sender.next_psn()),
        };
        QpStatus {
            state: self.attrs.state,
            init: self.attrs.init,
            attr: QpAttr { state: None, rq_psn: None, sq_psn: None, ..self.attrs.modified },
            rq_psn,
            sq_psn,
            sq_drain: self.drain,
        }
    }

    pub(crate) fn saved_results(&self) -> Vec<SavedResult> {
        match &self.service {
            Service::Rc { responder, .. } => responder.saved_results(),
            _ => Vec::new(),
        }
    }

    /// Moves the queue pair to ERR and completes its work requests (IBTA volume 1, 10.3.1).
    ///
    /// The oldest send completes with the status `send`. The receive that is being filled, or else
    /// the oldest receive of the queue pair's own queue, completes with the status `receive`. All
    /// other work requests complete as flushed. A status of `None` means flushed too.
    pub(crate) fn fail(&mut self, nic: &mut SharedState, send: Option<WcStatus>, receive: Option<WcStatus>) {
        let enters_error = self.attrs.state != QpState::Err || self.unflushed.receives;
        self.attrs.state = QpState::Err;
        self.unflushed = Unflushed::default();
        self.drain = SqDrain::NotInSqd;
        self.fail_sends(nic, send);
        self.fail_receives(nic, receive, enters_error);
    }

    fn fail_receives(&mut self, nic: &mut SharedState, receive: Option<WcStatus>, enters_error: bool) {
        let mut status = receive.unwrap_or(WcStatus::Flushed);
        let unfinished = match &mut self.service {
            Service::Rc { responder, .. } => {
                responder.stop();
                responder.take_recv()
            }
            Service::Uc { receiver, .. } => receiver.take_recv(),
            Service::Ud { .. } => None,
        };
        if let Some(wr) = unfinished {
            self.complete_recv(nic, &wr, status);
            status = WcStatus::Flushed;
        }
        match &mut self.receives {
            RecvSource::Own(_) => self.flush_receives(nic, status),
            RecvSource::Shared(_) if enters_error => {
                nic.events.raise(AsyncEvent::LastWqeReached(self.attrs.qpn));
            }
            RecvSource::Shared(_) | RecvSource::Xrc(_) => {}
        }
    }

    pub(crate) fn executes_packets(&self) -> bool {
        matches!(self.attrs.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Moves the queue pair to ERR without flushing its queues. The queue pair sends nothing more.
    /// It executes requests until [`Qp::flush_receives_of_error`], and handles responses until
    /// [`Qp::flush_sends_of_error`].
    pub(crate) fn begin_error(&mut self) {
        self.attrs.state = QpState::Err;
        self.drain = SqDrain::NotInSqd;
        let without_receive = matches!(&self.receives, RecvSource::Own(queue) if queue.first().is_none());
        self.unflushed = Unflushed { sends: true, receives: true, without_receive };
        self.silence_responder();
    }

    pub(crate) fn is_flush_pending(&self) -> bool {
        self.unflushed.sends || self.unflushed.receives
    }

    pub(crate) fn flush_sends_of_error(&mut self, nic: &mut SharedState) {
        if core::mem::take(&mut self.unflushed.sends) {
            self.fail_sends(nic, None);
        }
    }

    pub(crate) fn flush_receives_of_error(&mut self, nic: &mut SharedState) {
        if core::mem::take(&mut self.unflushed.receives) {
            self.fail_receives(nic, None, true);
            self.silence_responder();
        }
    }

    fn fail_sends(&mut self, nic: &mut SharedState, first: Option<WcStatus>) {
        match &mut self.service {
            Service::Rc { requester, .. } => requester.fail(&self.attrs, nic, first),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.fail(&self.attrs, nic, first),
        }
    }

    fn silence_responder(&mut self) {
        if let Service::Rc { responder, .. } = &mut self.service {
            responder.silence();
        }
    }

    /// Completes all receives of the queue pair's own receive queue: the oldest with the status
    /// `first`, the others as flushed.
    fn flush_receives(&mut self, nic: &mut SharedState, first: WcStatus) {
        let mut status = first;
        while let RecvSource::Own(queue) = &mut self.receives
            && let Some(wr) = queue.take()
        {
            self.complete_recv(nic, &wr, status);
            status = WcStatus::Flushed;
        }
    }

    fn complete_recv(&self, nic: &mut SharedState, wr: &RecvWr, status: WcStatus) {
        let cq = match self.receives {
            // If the shared receive queue was destroyed, its receives do not complete.
            RecvSource::Xrc(srq) => srq.and_then(|srq| nic.xrc_cq(srq)),
            _ => Some(self.attrs.init.recv_cq),
        };
        if let Some(cq) = cq {
            nic.complete(cq, Wc::new(wr.wr_id, status, WcOpcode::Recv, self.attrs.qpn), false);
        }
    }

    /// Raises the drained event if the queue pair is draining and no started request is unfinished.
    fn check_drained(&mut self, nic: &mut SharedState) {
        let drained = match &self.service {
            Service::Rc { requester, .. } => requester.is_drained(),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.is_drained(),
        };
        if self.drain == SqDrain::Draining && drained {
            self.drain = SqDrain::Drained;
            nic.events.raise(AsyncEvent::SqDrained(self.attrs.qpn));
        }
    }

    pub(crate) fn outstanding_sends(&self) -> usize {
        match &self.service {
            Service::Rc { requester, .. } => requester.len(),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.len(),
        }
    }

    /// `destination` is `None` for a connected service.
    pub(crate) fn push_send(&mut self, wr: SendWr, destination: Option<Destination>) {
        let to_peer = || Destination { path: self.attrs.dest_gid.into(), is_in_domain: true };
        let destination = destination.unwrap_or_else(to_peer);
        match &mut self.service {
            Service::Rc { requester, .. } => requester.push(wr),
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.push(wr, destination),
        }
    }

    /// Flushes newly posted work requests in the states that do not execute them: sends in SQE and
    /// ERR, receives in ERR.
    pub(crate) fn flush_posted(&mut self, nic: &mut SharedState) {
        if matches!(self.attrs.state, QpState::Err | QpState::Sqe) && !self.unflushed.sends {
            self.fail_sends(nic, None);
        }
        if self.attrs.state == QpState::Err && !self.unflushed.receives {
            self.flush_receives(nic, WcStatus::Flushed);
        }
    }

    /// Handles the failure of the oldest send: RC enters ERR, the other services enter SQE.
    fn handle_send_failure(&mut self, nic: &mut SharedState, SendFailed(status): SendFailed) {
        match &mut self.service {
            Service::Rc { .. } => self.fail(nic, Some(status), None),
            Service::Uc { .. } | Service::Ud { .. } => {
                self.fail_sends(nic, Some(status));
                self.attrs.state = QpState::Sqe;
                self.drain = SqDrain::NotInSqd;
            }
        }
    }

    fn handle_responder_failure(&mut self, nic: &mut SharedState, error: FatalError) {
        if error.receive.is_none() {
            nic.events.raise(responder::async_event(error.code, self.attrs.qpn));
        }
        self.fail(nic, None, error.receive);
    }

    pub(crate) fn handle_packet(
        &mut self,
        nic: &mut SharedState,
        now: Time,
        route: Route,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let attrs = &self.attrs;
        let is_late = match packet.message.is_response() {
            true => self.unflushed.sends,
            // A message that had begun took its receive before the change to ERR, and none that was
            // posted since.
            false => {
                self.unflushed.receives && !(self.unflushed.without_receive && takes_receive(&packet.message))
            }
        };
        if !self.executes_packets() && !is_late {
            nic.counters.drop_qp_state += 1;
            return;
        }
        let is_trusted = match packet.message.is_request() {
            true => Mutant::ForeignRequestExecuted.is_on(),
            false => Mutant::ForeignResponseAccepted.is_on(),
        };
        if route.source.address != attrs.dest_gid && !attrs.init.qp_type.is_datagram() && !is_trusted {
            nic.counters.drop_foreign_source += 1;
            return;
        }
        if attrs.init.qp_type.is_xrc() {
            return self.handle_xrc_packet(nic, now, packet, memory);
        }
        let receives = &mut self.receives;
        // `Some` if a receive of UC or UD failed. The inner value is the status of the receive, if
        // it has not completed yet.
        let failed_recv: Option<Option<WcStatus>> = match (&mut self.service, packet.transport) {
            (Service::Rc { responder, .. }, Transport::Rc) if packet.message.is_request() => {
                let result = responder.handle_request(attrs, receives, nic, now, packet, memory);
                if let Err(error) = result {
                    self.handle_responder_failure(nic, error);
                }
                None
            }
            (Service::Rc { .. }, Transport::Rc) => return self.handle_response(nic, now, packet, memory),
            (Service::Uc { receiver, .. }, Transport::Uc) => {
                receiver.handle_packet(attrs, receives, nic, packet, memory).err().map(Some)
            }
            (Service::Ud { .. }, Transport::Ud(deth)) => {
                ud_receiver::handle_packet(attrs, receives, nic, route, deth, packet, memory)
                    .err()
                    .map(|ud_receiver::RecvFailed| None)
            }
            _ => {
                nic.counters.drop_wrong_transport += 1;
                return;
            }
        };
        if let Some(status) = failed_recv {
            self.fail(nic, None, status);
        }
        self.check_established(nic);
    }

    fn handle_response(
        &mut self,
        nic: &mut SharedState,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) {
        let Service::Rc { requester, .. } = &mut self.service else { return };
        if self.attrs.state == QpState::Rtr {
            nic.counters.drop_qp_state += 1;
            return;
        }
        match requester.handle_response(&self.attrs, nic, now, packet, memory) {
            Ok(()) => self.check_drained(nic),
            Err(failed) => self.handle_send_failure(nic, failed),
        }
    }

    /// Raises the communication established event at the first packet in RTR.
    fn check_established(&mut self, nic: &mut SharedState) {
        if self.attrs.state == QpState::Rtr && !self.established {
            self.established = true;
            nic.events.raise(AsyncEvent::CommunicationEstablished(self.attrs.qpn));
        }
    }

    /// Handles the timers that have expired. `is_blocked` says that the destination takes no
    /// packets now.
    pub(crate) fn handle_timeout(&mut self, nic: &mut SharedState, now: Time, is_blocked: bool) {
        if self.is_flush_pending() {
            return;
        }
        if let Service::Rc { requester, responder, .. } = &mut self.service {
            responder.handle_timeout(nic, now);
            if let Err(failed) = requester.handle_timeout(&self.attrs, nic, now, is_blocked) {
                self.handle_send_failure(nic, failed);
            }
        }
    }

    /// Lets the time run for requests that wait for a blocked destination.
    pub(crate) fn begin_blocked(&mut self, now: Time) {
        if let Service::Rc { requester, .. } = &mut self.service {
            requester.begin_blocked(&self.attrs, now);
        }
    }

    /// Stops the time of requests that were not sent, because the destination takes packets again.
    pub(crate) fn end_blocked(&mut self, now: Time) {
        if let Service::Rc { requester, .. } = &mut self.service {
            requester.end_blocked(&self.attrs, now);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.is_flush_pending() {
            return None;
        }
        let Service::Rc { requester, responder, .. } = &self.service else { return None };
        match (requester.deadline(), responder.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Returns whether an acknowledgement waits for the next idle poll.
    pub(crate) fn has_pending_ack(&self) -> bool {
        matches!(&self.service, Service::Rc { responder, .. } if responder.has_pending_ack())
    }

    /// Returns whether a request is unacknowledged, and the program may rely on its completion
    /// before the receive of the peer's answer completes.
    pub(crate) fn is_ordered_ack_awaited(&self) -> bool {
        let Service::Rc { requester, .. } = &self.service else { return false };
        !requester.is_drained() && requester.is_ordered_with_receives(&self.attrs)
    }

    /// Returns whether an acknowledgement is held back.
    pub(crate) fn handle_idle(&mut self, nic: &SharedState, now: Time) -> bool {
        match &mut self.service {
            Service::Rc { requester, responder, .. } => {
                responder.handle_idle(nic, now, requester.is_ordered_with_receives(&self.attrs))
            }
            _ => false,
        }
    }

    /// Handles a delivery of completions to the program. Returns whether a pending acknowledgement
    /// has become due.
    pub(crate) fn handle_delivery(&mut self) -> bool {
        let Service::Rc { responder, .. } = &mut self.service else { return false };
        responder.handle_delivery()
    }

    /// If a request can be sent, a pending acknowledgement becomes due after that request, or is
    /// held back. One system call can then send both packets. Returns whether an acknowledgement is
    /// held back.
    pub(crate) fn piggyback_ack(&mut self, nic: &SharedState, now: Time) -> bool {
        let Service::Rc { requester, responder, responder_first } = &mut self.service else { return false };
        let is_ordered = requester.is_ordered_with_receives(&self.attrs);
        let held = requester.can_send(&self.attrs, nic) && responder.handle_answer(nic, now, is_ordered);
        // With UDP_SEGMENT, only the last datagram of a run may be shorter than the others. The
        // acknowledgement is shorter than the request, and ends the run of a request of one packet.
        // A request of several packets already ends with a shorter datagram, so the acknowledgement
        // would follow in a second run.
        if responder.only_ack_due() && !(is_ordered && requester.is_next_request_long(&self.attrs)) {
            *responder_first = false;
        }
        // What was lost with the request may include the acknowledgement of the message that the
        // request answers.
        if requester.take_retransmission() && responder.repeat_ack() {
            *responder_first = true;
            return false;
        }
        held
    }

    pub(crate) fn flush_acks(&mut self) {
        if let Service::Rc { responder, .. } = &mut self.service {
            responder.flush_acks();
        }
    }

    pub(crate) fn can_send(&self, nic: &SharedState) -> bool {
        if self.is_flush_pending() {
            return false;
        }
        match &self.service {
            Service::Rc { requester, responder, .. } => {
                responder.can_send() || requester.can_send(&self.attrs, nic)
            }
            Service::Uc { sender, .. } | Service::Ud { sender } => sender.can_send(&self.attrs),
        }
    }

    pub(crate) fn next_destination(&self) -> IpPath {
        match &self.service {
            Service::Ud { sender } => sender.next_destination(&self.attrs),
            _ => self.attrs.dest_gid.into(),
        }
    }

    /// Returns whether messages complete when they are sent (UC and UD).
    pub(crate) fn is_unacknowledged(&self) -> bool {
        matches!(self.service, Service::Uc { .. } | Service::Ud { .. })
    }

    /// Sends packets until there is nothing to send or the batch is full. Responder and requester
    /// take turns.
    pub(crate) fn transmit(
        &mut self,
        nic: &mut SharedState,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut BatchWriter<'_>,
    ) {
        let mut idle_turns = if self.is_flush_pending() { 2 } else { 0 };
        while idle_turns < 2 {
            let attrs = &self.attrs;
            let sent = match &mut self.service {
                Service::Rc { responder, responder_first: first @ true, .. } => {
                    *first = false;
                    responder.transmit(attrs, nic, now, memory, out, PACKETS_PER_TURN).unwrap_or_else(
                        |error| {
                            self.handle_responder_failure(nic, error);
                            1
                        },
                    )
                }
                Service::Rc { requester, responder_first: first @ false, .. } => {
                    *first = true;
                    requester.transmit(attrs, nic, now, memory, out, PACKETS_PER_TURN).unwrap_or_else(
                        |failed| {
                            self.handle_send_failure(nic, failed);
                            0
                        },
                    )
                }
                Service::Uc { sender, .. } | Service::Ud { sender } => {
                    sender.transmit(attrs, nic, memory, out, PACKETS_PER_TURN).unwrap_or_else(|failed| {
                        self.handle_send_failure(nic, failed);
                        0
                    })
                }
            };
            idle_turns = if sent == 0 { idle_turns + 1 } else { 0 };
        }
        self.check_drained(nic);
    }
}
