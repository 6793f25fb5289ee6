//! The responder of a reliable connection: executes requests in PSN order, and answers.
//!
//! Answers leave in PSN order: what READs and atomics get, then a NAK, then acknowledgements, which are coalesced and
//! deferred.

use std::collections::VecDeque;

use mitra_verbs::{Access, AsyncEvent, AtomicScope, Key, Psn, Qpn, RecvWr, SavedResult, Time, WcStatus};
use mitra_wire::{Aeth, AtomicEth, Message, NakCode, Packet, Reth, Syndrome, Transport};

use crate::emit::Out;
use crate::host::Host;
use crate::inbound::{self, Inbound, MAX_MESSAGE, Refusal};
use crate::patience::Patience;
use crate::qp::Common;
use crate::recv_queue::Receives;
use crate::responses::{Answer, Response, Responses};
use crate::saved::{DUPLICATE_REGION, Saved};
use crate::{AtomicOp, Memory};

/// An error that takes the queue pair to ERR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fatal {
    /// The status of the receive that was being filled; without one there is an event.
    pub(crate) receive: Option<WcStatus>,
    pub(crate) code: NakCode,
}

/// The responder.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Responder {
    /// The PSN expected next.
    psn: Psn,
    /// PSNs executed.
    executed: u64,
    /// Messages executed, modulo 2^24.
    msn: u32,
    inbound: Inbound,
    responses: Responses,
    /// How many PSNs were executed before each of the last READs and atomics: those that may still lack their answer.
    recent: VecDeque<u64>,
    saved: Saved,
    nak: Option<Syndrome>,
    nak_psn: Psn,
    /// A request was refused for good: its NAK waits for the answers before it, and ends the queue pair.
    doomed: Option<Fatal>,
    /// A NAK was sent for the expected PSN: nothing more is said until it arrives.
    gap: bool,
    /// The last PSN that was dropped for that.
    ahead: Psn,
    /// PSNs executed up to the last SEND or WRITE packet. No plain acknowledgement goes further: of a READ or an atomic it
    /// would say nothing that the response does not, and rxe takes it for the response itself.
    plain: u64,
    /// Packets executed that asked for an acknowledgement, and bytes.
    owed: u32,
    owed_bytes: u32,
    ack_deadline: Option<Time>,
    /// An acknowledgement is to be sent at once.
    ack_due: bool,
    patience: Patience,
    /// Bytes of READ responses that may leave before the peer is heard of again, or a pause is over: nothing else holds
    /// back a responder that is faster than its requester.
    budget: u32,
    /// The end of that pause.
    paused_until: Option<Time>,
}

impl Responder {
    pub(crate) fn new(psn: Psn) -> Responder {
        Responder {
            psn,
            executed: 0,
            msn: 0,
            inbound: Inbound::None,
            responses: Responses::default(),
            recent: VecDeque::new(),
            saved: Saved::default(),
            nak: None,
            nak_psn: psn,
            doomed: None,
            gap: false,
            ahead: psn,
            plain: 0,
            owed: 0,
            owed_bytes: 0,
            ack_deadline: None,
            ack_due: false,
            patience: Patience::new(),
            budget: 0,
            paused_until: None,
        }
    }

    /// The PSN expected next: all before it are executed.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// What duplicates of atomics would get.
    pub(crate) fn saved(&self) -> Vec<SavedResult> {
        self.saved.list(self.executed).collect()
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.ack_deadline, self.paused_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether an acknowledgement is owed that need not leave yet.
    pub(crate) fn owes(&self) -> bool {
        self.owed > 0 && !self.ack_due && !self.patience.waiting()
    }

    /// Whether there is an acknowledgement to send and nothing else.
    pub(crate) fn only_acknowledges(&self) -> bool {
        self.ack_due && self.nak.is_none() && self.responses.is_empty()
    }

    /// Nothing else is to be done, or a request leaves: owed acknowledgements leave now, or wait a little for company. Says
    /// whether they wait.
    pub(crate) fn handle_idle(&mut self, host: &Host, now: Time) -> bool {
        if !self.owes() {
            return self.patience.waiting();
        }
        let waits = self.patience.wait();
        if waits {
            self.ack_deadline = Some(now + host.config.tuning.ack_delay);
        } else {
            self.flush_ack();
        }
        waits
    }

    /// Nobody will look for a while: owed acknowledgements leave now, those that wait too.
    pub(crate) fn flush_acks(&mut self) {
        self.patience.interrupted();
        self.flush_ack();
    }

    /// Owed acknowledgements leave now.
    fn flush_ack(&mut self) {
        if self.owed > 0 {
            self.ack_due = true;
            self.ack_deadline = None;
        }
    }

    pub(crate) fn handle_timeout(&mut self, host: &Host, now: Time) {
        if self.ack_deadline.is_some_and(|t| t <= now) {
            self.patience.disappointed();
            self.flush_ack();
        }
        if self.paused_until.is_some_and(|t| t <= now) {
            self.refill(host);
        }
    }

    fn refill(&mut self, host: &Host) {
        self.budget = host.config.tuning.send_window.max(1);
        self.paused_until = None;
    }

    /// Whether there is something to send now.
    pub(crate) fn can_send(&self) -> bool {
        if self.responses.is_empty() {
            self.nak.is_some() || self.ack_due
        } else {
            self.paused_until.is_none()
        }
    }

    /// The queue pair is in ERR: the memory is touched no more, and nothing leaves but the NAK that says why, if there is
    /// one. With answers due before it, that is not said either: at its own PSN the requester would ask for them in vain,
    /// and at theirs it would be untrue.
    pub(crate) fn stop(&mut self) {
        let fatal =
            self.nak.filter(|nak| matches!(nak, Syndrome::Nak(code) if *code != NakCode::PsnSequence));
        let due = !self.responses.is_empty();
        self.silence();
        self.nak = fatal.filter(|_| !due);
    }

    /// Answers nothing any more.
    pub(crate) fn silence(&mut self) {
        self.responses.clear();
        self.paused_until = None;
        self.nak = None;
        self.doomed = None;
        self.settle_acks();
    }

    /// The receive of an unfinished message.
    pub(crate) fn take_receive(&mut self) -> Option<RecvWr> {
        self.inbound.take_receive()
    }

    fn settle_acks(&mut self) {
        self.owed = 0;
        self.owed_bytes = 0;
        self.ack_due = false;
        self.ack_deadline = None;
    }

    /// A request packet.
    pub(crate) fn handle_request(
        &mut self,
        c: &Common,
        receives: &mut Receives,
        host: &mut Host,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), Fatal> {
        self.refill(host);
        if self.doomed.is_some() {
            host.counters.drop_qp_state += 1;
            return Ok(());
        }
        match packet.psn.distance(self.psn) {
            0 => {}
            ahead if ahead < DUPLICATE_REGION => {
                host.counters.drop_out_of_sequence += 1;
                if !self.gap {
                    // Once per gap (IBTA volume 1, 9.7.5).
                    self.gap = true;
                    self.refuse(Syndrome::Nak(NakCode::PsnSequence));
                    self.ahead = packet.psn;
                } else if packet.psn.is_after(self.ahead) {
                    self.ahead = packet.psn;
                }
                return Ok(());
            }
            _ => {
                self.handle_duplicate(c, host, packet);
                return Ok(());
            }
        }
        match self.execute(c, receives, host, now, packet, memory) {
            Ok(psns) => {
                self.psn = self.psn.add(psns);
                self.executed += u64::from(psns);
                if !fetches(&packet.message) {
                    self.plain = self.executed;
                }
                self.gap = false;
                self.overtake_nak();
                host.counters.bytes_received += packet.payload.len() as u64;
                Ok(())
            }
            Err(Refusal::NotReady) => {
                self.gap = true;
                self.refuse(Syndrome::RnrNak { timer: c.min_rnr_timer() });
                Ok(())
            }
            Err(Refusal::Nak(code)) => {
                self.refuse(Syndrome::Nak(code));
                self.doom(Fatal { receive: None, code })
            }
            Err(Refusal::Receive(status)) => {
                let code = match status {
                    WcStatus::LocalLength => NakCode::InvalidRequest,
                    _ => NakCode::RemoteOperational,
                };
                self.refuse(Syndrome::Nak(code));
                self.doom(Fatal { receive: Some(status), code })
            }
        }
    }

    /// The end, once what was executed before is answered. NAKs leave in PSN order as answers do: a requester blames the
    /// request whose PSN a NAK has, or asks again for the answers before it.
    fn doom(&mut self, fatal: Fatal) -> Result<(), Fatal> {
        if self.responses.is_empty() {
            return Err(fatal);
        }
        self.doomed = Some(fatal);
        Ok(())
    }

    /// A NAK of the expected PSN; it acknowledges everything before.
    fn refuse(&mut self, syndrome: Syndrome) {
        self.nak = Some(syndrome);
        self.nak_psn = self.psn;
        self.settle_acks();
    }

    /// The packet that a NAK still unsent is about has been executed.
    fn overtake_nak(&mut self) {
        if self.nak.is_none() {
            return;
        }
        if self.nak == Some(Syndrome::Nak(NakCode::PsnSequence)) && !self.psn.is_after(self.ahead) {
            // Later packets were dropped meanwhile: they are asked for by the same NAK.
            self.gap = true;
            self.nak_psn = self.psn;
        } else {
            self.nak = None;
            // The response of a READ or an atomic says it too.
            if self.plain == self.executed {
                self.owed = self.owed.max(1);
                self.flush_ack();
            }
        }
    }

    fn owe_ack(&mut self, host: &Host, now: Time, last: bool, bytes: usize, asked: bool) {
        self.owed_bytes = self.owed_bytes.saturating_add(bytes as u32);
        if !asked {
            return;
        }
        self.patience.rewarded();
        self.owed += 1;
        let tuning = &host.config.tuning;
        // Who asks in the middle of a message waits for room in its window.
        if self.owed >= tuning.ack_every || !last || self.owed_bytes >= tuning.send_window / 4 {
            self.flush_ack();
        } else if self.ack_deadline.is_none() && !self.ack_due {
            self.ack_deadline = Some(now + tuning.ack_delay);
        }
    }

    /// Executes the expected request and says how many PSNs it owned. What is refused has touched nothing, unless
    /// memory went meanwhile.
    fn execute(
        &mut self,
        c: &Common,
        receives: &mut Receives,
        host: &mut Host,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<u32, Refusal> {
        self.inbound.check(c, packet)?;
        match packet.message {
            Message::ReadRequest(reth) => return self.execute_read(c, host, reth),
            Message::CompareSwap(eth) => {
                let op = AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_add };
                return self.execute_atomic(c, host, eth, op, memory);
            }
            Message::FetchAdd(eth) => {
                return self.execute_atomic(c, host, eth, AtomicOp::FetchAdd { add: eth.swap_add }, memory);
            }
            _ => self.inbound.execute(c, receives, host, packet, memory)?,
        }
        let (_, last) = inbound::ends(&packet.message);
        if last {
            self.msn = (self.msn + 1) & 0xff_ffff;
            host.counters.messages_executed += 1;
        }
        self.owe_ack(host, now, last, packet.payload.len(), packet.ack_req);
        Ok(1)
    }

    /// Judges a READ and says how many response packets it takes.
    fn judge_read(&self, c: &Common, host: &Host, reth: Reth) -> Result<u32, Refusal> {
        if !c.access().contains(Access::REMOTE_READ) || reth.len > MAX_MESSAGE {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        if reth.len > 0 {
            host.keys
                .remote(c.qpn, c.init.pd, Key(reth.rkey), reth.va, reth.len.into(), Access::REMOTE_READ)
                .map_err(|_| Refusal::Nak(NakCode::RemoteAccess))?;
        }
        Ok(reth.len.div_ceil(c.mtu as u32).max(1))
    }

    fn execute_read(&mut self, c: &Common, host: &mut Host, reth: Reth) -> Result<u32, Refusal> {
        let packets = self.judge_read(c, host, reth)?;
        let most = c.max_dest_rd_atomic();
        if !self.responses.has_room(most) {
            // More than the requester may have outstanding (IBTA volume 1, 9.7.4).
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        self.msn = (self.msn + 1) & 0xff_ffff;
        self.responses.push(read_response(self.psn, packets, self.msn, reth, false), most);
        self.remember(most);
        host.counters.messages_executed += 1;
        self.settle_acks();
        Ok(packets)
    }

    /// A READ or an atomic is executed: by sending it, the requester says that it has the answers to all but the last
    /// `most` ones.
    fn remember(&mut self, most: u8) {
        while self.recent.len() >= usize::from(most.max(1)) {
            self.recent.pop_front();
        }
        self.recent.push_back(self.executed);
    }

    fn execute_atomic(
        &mut self,
        c: &Common,
        host: &mut Host,
        eth: AtomicEth,
        op: AtomicOp,
        memory: &mut dyn Memory,
    ) -> Result<u32, Refusal> {
        if !c.access().contains(Access::REMOTE_ATOMIC)
            || host.config.capabilities.atomic_scope == AtomicScope::None
            || !eth.va.is_multiple_of(8)
        {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        let span = host
            .keys
            .remote(c.qpn, c.init.pd, Key(eth.rkey), eth.va, 8, Access::REMOTE_ATOMIC)
            .map_err(|_| Refusal::Nak(NakCode::RemoteAccess))?;
        let most = c.max_dest_rd_atomic();
        if !self.responses.has_room(most) {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        let value = memory
            .atomic(span.region, span.offset, op)
            .map_err(|_| Refusal::Nak(NakCode::RemoteOperational))?;
        let (psn, what) = (self.psn, Answer::Atomic { value });
        self.msn = (self.msn + 1) & 0xff_ffff;
        let response = Response { psn, end: psn.next(), msn: self.msn, duplicate: false, what };
        self.responses.push(response, most);
        self.remember(most);
        self.saved.save(self.executed, SavedResult { psn, value }, most);
        host.counters.messages_executed += 1;
        self.settle_acks();
        Ok(1)
    }

    /// A request whose PSN was executed before (IBTA volume 1, 9.7.5).
    fn handle_duplicate(&mut self, c: &Common, host: &mut Host, packet: &Packet<'_>) {
        host.counters.duplicate_requests += 1;
        let (psn, most) = (packet.psn, c.max_dest_rd_atomic());
        let response = match packet.message {
            Message::ReadRequest(reth) => {
                let behind = self.psn.distance(psn);
                let packets = reth.len.div_ceil(c.mtu as u32).max(1);
                // Rights may have gone since it was executed. Who may still lack the answer is told so, when its turn
                // comes; a late copy of a READ that was answered long ago is not. The specification would rather have
                // both dropped (docs/rxe.md).
                let at = self.executed.checked_sub(behind.into());
                let lacking = self.recent.front().is_some_and(|&first| at >= Some(first));
                if packets > behind || (!lacking && self.judge_read(c, host, reth).is_err()) {
                    host.counters.drop_duplicate += 1;
                    return;
                }
                read_response(psn, packets, self.msn, reth, true)
            }
            Message::CompareSwap(_) | Message::FetchAdd(_) => {
                let Some(value) = self.saved.find(self.executed, psn) else {
                    host.counters.drop_duplicate += 1;
                    return;
                };
                let what = Answer::Atomic { value };
                Response { psn, end: psn.next(), msn: self.msn, duplicate: true, what }
            }
            // What was executed at this PSN, if anything, was a READ or an atomic.
            _ if u64::from(self.psn.distance(psn)) <= self.executed - self.plain => {
                host.counters.drop_duplicate += 1;
                return;
            }
            _ => {
                // Acknowledged again, with all SENDs and WRITEs that were executed.
                self.owed = self.owed.max(1);
                self.flush_ack();
                return;
            }
        };
        if !self.responses.push_duplicate(response, most) {
            host.counters.drop_duplicate += 1;
        }
    }

    /// Sends answers, at most `most` packets, and says how many.
    pub(crate) fn transmit(
        &mut self,
        c: &Common,
        host: &mut Host,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut Out<'_>,
        most: usize,
    ) -> Result<usize, Fatal> {
        if self.paused_until.is_some() {
            return Ok(0);
        }
        let mut n = match self.responses.transmit(c, host, memory, out, most, &mut self.budget) {
            Ok(n) => n,
            Err((psn, code)) => {
                self.responses.clear();
                self.refuse(Syndrome::Nak(code));
                self.nak_psn = psn;
                return Err(Fatal { receive: None, code });
            }
        };
        if !self.responses.is_empty() && self.budget == 0 {
            self.paused_until = Some(now + host.config.tuning.ack_delay);
        }
        if !self.responses.is_empty() || n >= most || !out.has_room(0) {
            return Ok(n);
        }
        let (psn, syndrome) = if let Some(syndrome) = self.nak.take() {
            let count = match syndrome {
                Syndrome::RnrNak { .. } => &mut host.counters.rnr_naks_sent,
                Syndrome::Nak(NakCode::PsnSequence) => &mut host.counters.sequence_naks_sent,
                _ => &mut host.counters.fatal_naks_sent,
            };
            *count += 1;
            (self.nak_psn, syndrome)
        } else if self.ack_due {
            host.counters.acks_sent += 1;
            (self.psn.sub(1).sub((self.executed - self.plain) as u32), Syndrome::ACK)
        } else {
            return Ok(n);
        };
        self.settle_acks();
        let message = Message::Ack(Aeth { syndrome, msn: self.msn });
        out.bare(&Packet { mig_req: true, ..Packet::new(Transport::Rc, c.dest_qpn, psn, message, &[]) });
        n += 1;
        self.doomed.take().map_or(Ok(n), Err)
    }
}

/// Whether the request is answered by a response of its own.
fn fetches(message: &Message) -> bool {
    matches!(message, Message::ReadRequest(_) | Message::CompareSwap(_) | Message::FetchAdd(_))
}

fn read_response(psn: Psn, packets: u32, msn: u32, reth: Reth, duplicate: bool) -> Response {
    let what = Answer::Read { va: reth.va, key: Key(reth.rkey), left: reth.len, first: true };
    Response { psn, end: psn.add(packets), msn, duplicate, what }
}

/// The event of a responder error that no completion tells.
pub(crate) fn event(code: NakCode, qpn: Qpn) -> AsyncEvent {
    match code {
        NakCode::RemoteAccess => AsyncEvent::QpAccessError(qpn),
        NakCode::InvalidRequest => AsyncEvent::QpRequestError(qpn),
        _ => AsyncEvent::QpFatal(qpn),
    }
}
