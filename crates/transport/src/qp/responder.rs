//! The responder of a reliable connection: executes requests in PSN order and answers them.
//!
//! Responses are sent in PSN order: first the responses to READs and atomics, then a NAK, then
//! acknowledgements. Acknowledgements are coalesced and deferred.
//!
//! `execute` executes requests and answers duplicates. `response_queue` sends READ and atomic
//! responses. `ack_scheduler` decides when an acknowledgement is sent. `saved_atomics` keeps the
//! results of atomics for duplicates.

mod ack_scheduler;
mod answer_policy;
mod execute;
mod idle_ack_policy;
mod response_queue;
mod saved_atomics;

use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{AsyncEvent, Psn, Qpn, RecvWr, SavedResult, Time, WcStatus};
use mitra_wire::{Aeth, Message, NakCode, Packet, Syndrome};

use crate::Memory;
use crate::batch_writer::BatchWriter;
use crate::nic::recv_queue::RecvSource;
use crate::nic::shared_state::SharedState;
use crate::packet_of_message;
use crate::qp::attributes::QpAttributes;
use crate::qp::reassembly::{Reassembly, Refusal};
use ack_scheduler::AckScheduler;
use answer_policy::AnswerPolicy;
use response_queue::ResponseQueue;
use saved_atomics::{DUPLICATE_REGION, SavedAtomics};

/// A responder error that moves the queue pair to ERR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FatalError {
    /// The status of the receive that was being filled. Without such a receive, the NIC raises an
    /// asynchronous event.
    pub(crate) receive: Option<WcStatus>,
    pub(crate) code: NakCode,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Responder {
    expected_psn: Psn,
    /// Unlike the PSN, the number does not wrap.
    executed_psns: u64,
    /// The number of executed messages, modulo 2²⁴.
    msn: u32,
    reassembly: Reassembly,
    responses: ResponseQueue,
    /// The value of `executed_psns` before each READ and atomic whose response the requester may
    /// still lack.
    recent_fetches: VecDeque<u64>,
    saved_atomics: SavedAtomics,
    pending_nak: Option<Syndrome>,
    nak_psn: Psn,
    /// The error of a request that was refused while responses to earlier requests were due. Its
    /// NAK is sent after these responses. The queue pair then fails.
    pending_fatal: Option<FatalError>,
    /// Whether the responder has queued a NAK for the expected PSN. The responder sends no sequence
    /// NAK until it has executed the packet with that PSN.
    sequence_nak_suppressed: bool,
    /// The highest PSN that the responder dropped because an earlier packet was missing.
    highest_dropped_psn: Psn,
    /// The value of `executed_psns` after the last SEND or WRITE packet. An ACK packet acknowledges
    /// no later PSN. The response to a READ or an atomic is its acknowledgement, and Linux's rxe
    /// would take an ACK packet for the response.
    ackable_psns: u64,
    acks: AckScheduler,
    answers: AnswerPolicy,
    /// The number of payload bytes of READ responses that may be sent before the next request
    /// arrives or `responses_paused_until` has passed. RC has no other flow control for responses.
    response_credit: u32,
    responses_paused_until: Option<Time>,
}

impl Responder {
    pub(crate) fn new(psn: Psn) -> Responder {
        Responder {
            expected_psn: psn,
            executed_psns: 0,
            msn: 0,
            reassembly: Reassembly::Idle,
            responses: ResponseQueue::default(),
            recent_fetches: VecDeque::new(),
            saved_atomics: SavedAtomics::default(),
            pending_nak: None,
            nak_psn: psn,
            pending_fatal: None,
            sequence_nak_suppressed: false,
            highest_dropped_psn: psn,
            ackable_psns: 0,
            acks: AckScheduler::new(),
            answers: AnswerPolicy::default(),
            response_credit: 0,
            responses_paused_until: None,
        }
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected_psn
    }

    /// Returns the results of atomics that are saved for duplicates, oldest first.
    pub(crate) fn saved_results(&self) -> Vec<SavedResult> {
        self.saved_atomics.list(self.executed_psns).collect()
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.acks.deadline(), self.responses_paused_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn has_pending_ack(&self) -> bool {
        self.acks.is_pending()
    }

    pub(crate) fn only_ack_due(&self) -> bool {
        self.acks.is_due() && self.pending_nak.is_none() && self.responses.is_empty()
    }

    /// Handles an idle poll: a pending acknowledgement becomes due or is held back. With
    /// `is_ordered`, the acknowledgement of a message that completed a receive is not held back.
    /// Returns whether an acknowledgement is held back.
    pub(crate) fn handle_idle(&mut self, nic: &SharedState, now: Time, is_ordered: bool) -> bool {
        let may_hold = !(self.answers.on_idle() && is_ordered);
        self.acks.handle_idle(&nic.config.tuning, now, may_hold)
    }

    /// Handles a request that is about to be sent, as [`Responder::handle_idle`] handles an idle
    /// poll.
    pub(crate) fn handle_answer(&mut self, nic: &SharedState, now: Time, is_ordered: bool) -> bool {
        let may_hold = !(self.answers.on_answer() && is_ordered);
        self.acks.handle_idle(&nic.config.tuning, now, may_hold)
    }

    /// Handles a delivery of completions to the program. Returns whether a pending acknowledgement
    /// has become due.
    pub(crate) fn handle_delivery(&mut self) -> bool {
        let is_due = self.answers.on_delivery();
        if is_due {
            self.acks.flush();
        }
        is_due
    }

    pub(crate) fn flush_acks(&mut self) {
        self.acks.flush();
    }

    /// Makes an acknowledgement of everything that was executed due, unless nothing was executed
    /// that an ACK packet acknowledges. Returns whether an acknowledgement is due.
    pub(crate) fn repeat_ack(&mut self) -> bool {
        // An ACK of a PSN that is half the circle back would acknowledge requests to come.
        let trailing_fetches = self.executed_psns - self.ackable_psns;
        if self.ackable_psns > 0 && trailing_fetches < u64::from(DUPLICATE_REGION) {
            self.acks.repeat();
        }
        self.acks.is_due()
    }

    pub(crate) fn handle_timeout(&mut self, nic: &SharedState, now: Time) {
        self.acks.handle_timeout(now);
        if self.responses_paused_until.is_some_and(|t| t <= now) {
            self.renew_response_credit(nic);
        }
    }

    fn renew_response_credit(&mut self, nic: &SharedState) {
        self.response_credit = nic.config.tuning.send_window.max(1);
        self.responses_paused_until = None;
    }

    pub(crate) fn can_send(&self) -> bool {
        if self.responses.is_empty() {
            self.pending_nak.is_some() || self.acks.is_due()
        } else {
            self.responses_paused_until.is_none()
        }
    }

    /// Enters ERR: drops all responses and keeps only a NAK that ends the queue pair.
    ///
    /// If responses are due, the responder drops the NAK too. A NAK at its own PSN would make the
    /// requester ask for the dropped responses, which a queue pair in ERR does not send. A NAK at
    /// the PSN of a response would fail a request that is valid.
    pub(crate) fn stop(&mut self) {
        let fatal_nak = self
            .pending_nak
            .filter(|nak| matches!(nak, Syndrome::Nak(code) if *code != NakCode::PsnSequence));
        let responses_due = !self.responses.is_empty();
        self.silence();
        self.pending_nak = fatal_nak.filter(|_| !responses_due);
    }

    /// Drops all responses, NAKs and acknowledgements.
    pub(crate) fn silence(&mut self) {
        self.responses.clear();
        self.responses_paused_until = None;
        self.pending_nak = None;
        self.pending_fatal = None;
        self.acks.clear();
    }

    pub(crate) fn take_recv(&mut self) -> Option<RecvWr> {
        self.reassembly.take_recv()
    }

    pub(crate) fn handle_request(
        &mut self,
        attrs: &QpAttributes,
        receives: &mut RecvSource,
        nic: &mut SharedState,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), FatalError> {
        self.renew_response_credit(nic);
        if self.pending_fatal.is_some() {
            nic.counters.drop_qp_state += 1;
            return Ok(());
        }
        match packet.psn.distance(self.expected_psn) {
            0 => {}
            1 if Mutant::GapExecuted.is_on() => self.expected_psn = packet.psn,
            ahead if ahead < DUPLICATE_REGION + u32::from(Mutant::HalfCircleOffByOne.is_on()) => {
                nic.counters.drop_out_of_sequence += 1;
                self.handle_gap(packet.psn);
                return Ok(());
            }
            _ => {
                if execute::executes_duplicate(&packet.message) {
                    let _ = self.execute(attrs, receives, nic, now, packet, memory);
                }
                self.handle_duplicate(attrs, nic, packet);
                return Ok(());
            }
        }
        match self.execute(attrs, receives, nic, now, packet, memory) {
            Ok(psns) => {
                self.expected_psn = self.expected_psn.add(psns);
                self.executed_psns += u64::from(psns);
                if !packet_of_message::is_fetch(&packet.message) {
                    self.ackable_psns = self.executed_psns;
                }
                self.sequence_nak_suppressed = false;
                self.update_pending_nak();
                nic.counters.bytes_received += packet.payload.len() as u64;
                Ok(())
            }
            Err(Refusal::NotReady) => {
                self.sequence_nak_suppressed = true;
                self.queue_nak(Syndrome::RnrNak { timer: attrs.min_rnr_timer() });
                Ok(())
            }
            Err(Refusal::Nak(code)) => self.refuse(nic, code),
            Err(Refusal::Receive(status)) => {
                let code = match status {
                    WcStatus::LocalLength => NakCode::InvalidRequest,
                    _ => NakCode::RemoteOperational,
                };
                self.queue_nak(Syndrome::Nak(code));
                self.fail_after_responses(FatalError { receive: Some(status), code })
            }
        }
    }

    /// Returns whether only the first packets of a SEND or WRITE are executed.
    pub(crate) fn is_in_message(&self) -> bool {
        self.reassembly != Reassembly::Idle
    }

    /// Refuses the request with the expected PSN.
    pub(crate) fn refuse(&mut self, nic: &mut SharedState, code: NakCode) -> Result<(), FatalError> {
        if self.pending_fatal.is_some() {
            nic.counters.drop_qp_state += 1;
            return Ok(());
        }
        self.queue_nak(Syndrome::Nak(code));
        self.fail_after_responses(FatalError { receive: None, code })
    }

    /// Handles a request whose PSN is after the expected PSN. The responder sends one NAK for each
    /// gap (IBTA volume 1, 9.7.5).
    fn handle_gap(&mut self, psn: Psn) {
        if !self.sequence_nak_suppressed {
            self.sequence_nak_suppressed = true;
            self.queue_nak(Syndrome::Nak(NakCode::PsnSequence));
            self.highest_dropped_psn = psn;
        } else if psn.is_after(self.highest_dropped_psn) {
            self.highest_dropped_psn = psn;
        }
    }

    /// Returns the error if no response is due. Otherwise [`Responder::transmit`] returns the
    /// error, after it has sent the last response and the NAK.
    ///
    /// NAKs are sent in PSN order, as all responses are. A NAK that overtook a READ response would
    /// make the requester ask for the READ again.
    fn fail_after_responses(&mut self, error: FatalError) -> Result<(), FatalError> {
        if self.responses.is_empty() {
            return Err(error);
        }
        self.pending_fatal = Some(error);
        Ok(())
    }

    /// Queues a NAK of the expected PSN. The NAK acknowledges all earlier PSNs, so that no
    /// acknowledgement stays pending.
    fn queue_nak(&mut self, syndrome: Syndrome) {
        self.pending_nak = Some(syndrome);
        self.nak_psn = self.expected_psn;
        self.acks.clear();
    }

    /// Updates or removes a NAK that is not yet sent, after the packet that it asks for has been
    /// executed.
    fn update_pending_nak(&mut self) {
        if self.pending_nak.is_none() {
            return;
        }
        if self.pending_nak == Some(Syndrome::Nak(NakCode::PsnSequence))
            && !self.expected_psn.is_after(self.highest_dropped_psn)
        {
            // The responder has dropped the packet with the new expected PSN, or a later one. The
            // NAK now asks for the expected PSN.
            self.sequence_nak_suppressed = true;
            self.nak_psn = self.expected_psn;
        } else {
            self.pending_nak = None;
            // An acknowledgement replaces the NAK, unless the last request was a READ or an atomic:
            // its response acknowledges as well.
            if self.ackable_psns == self.executed_psns {
                self.acks.request_now();
            }
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
    ) -> Result<usize, FatalError> {
        if self.responses_paused_until.is_some() {
            return Ok(0);
        }
        let credit = &mut self.response_credit;
        let mut n = match self.responses.transmit(attrs, nic, memory, out, max_packets, credit) {
            Ok(n) => n,
            Err((psn, code)) => {
                self.responses.clear();
                self.queue_nak(Syndrome::Nak(code));
                self.nak_psn = psn;
                return Err(FatalError { receive: None, code });
            }
        };
        if !self.responses.is_empty() && self.response_credit == 0 {
            self.responses_paused_until = Some(now + nic.config.tuning.ack_delay);
        }
        if !self.responses.is_empty() || n >= max_packets || !out.has_room(0) {
            return Ok(n);
        }
        let (psn, syndrome) = if let Some(syndrome) = self.pending_nak.take() {
            let counter = match syndrome {
                Syndrome::RnrNak { .. } => &mut nic.counters.rnr_naks_sent,
                Syndrome::Nak(NakCode::PsnSequence) => &mut nic.counters.sequence_naks_sent,
                _ => &mut nic.counters.fatal_naks_sent,
            };
            *counter += 1;
            (self.nak_psn, syndrome)
        } else if self.acks.is_due() {
            nic.counters.acks_sent += 1;
            let trailing_fetches = (self.executed_psns - self.ackable_psns) as u32;
            (self.expected_psn.sub(1).sub(trailing_fetches), Syndrome::ACK)
        } else {
            return Ok(n);
        };
        self.acks.clear();
        let message = Message::Ack(Aeth { syndrome, msn: self.msn });
        let packet = Packet::new(attrs.response_transport(), attrs.dest_qpn, psn, message, &[]);
        out.append_headers(&Packet { mig_req: true, ..packet });
        n += 1;
        self.pending_fatal.take().map_or(Ok(n), Err)
    }
}

/// Returns the asynchronous event of a responder error that no completion reports.
pub(crate) fn async_event(code: NakCode, qpn: Qpn) -> AsyncEvent {
    match code {
        NakCode::RemoteAccess => AsyncEvent::QpAccessError(qpn),
        NakCode::InvalidRequest => AsyncEvent::QpRequestError(qpn),
        _ => AsyncEvent::QpFatal(qpn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PSNs have 24 bits. Without the limit, the ACK of a SEND that is older than half the circle
    /// would acknowledge requests that the requester has yet to send.
    #[test]
    fn ack_is_not_repeated_after_half_the_circle_of_fetches() {
        for (fetched, is_repeated) in [(0, true), (DUPLICATE_REGION - 1, true), (DUPLICATE_REGION, false)] {
            let mut responder = Responder::new(Psn::new(7));
            assert!(!responder.repeat_ack(), "nothing was executed");
            responder.ackable_psns = 1;
            responder.executed_psns = 1 + u64::from(fetched);
            assert_eq!(responder.repeat_ack(), is_repeated, "{fetched} PSNs");
        }
    }
}
