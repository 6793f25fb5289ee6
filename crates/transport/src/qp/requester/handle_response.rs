//! Processing of responses: ACKs, NAKs, and the data of READs and atomics.

use mitra_mutants::Mutant;
use mitra_verbs::{Psn, RnrTimer, Time, WcStatus};
use mitra_wire::{Aeth, Message, NakCode, Packet, Syndrome};

use super::{Requester, SendFailed};
use crate::nic::shared_state::SharedState;
use crate::qp::attributes::QpAttributes;
use crate::{Memory, scatter_gather};

/// The value of `rnr_retry` that means an unlimited number of RNR retries (IBTA volume 1, 9.7.5).
const UNLIMITED_RNR_RETRIES: u8 = 7;

impl Requester {
    pub(crate) fn handle_response(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
    ) -> Result<(), SendFailed> {
        if !self.is_outstanding(packet.psn) {
            nic.counters.drop_stale_response += 1;
            return Ok(());
        }
        match packet.message {
            Message::Ack(Aeth { syndrome, .. }) => self.handle_ack(attrs, nic, now, packet.psn, syndrome)?,
            Message::AtomicAck(_, value) => {
                self.handle_fetch_response(attrs, nic, now, packet, memory, Some(value))?;
            }
            _ => self.handle_fetch_response(attrs, nic, now, packet, memory, None)?,
        }
        match self.local_error {
            Some((position, status)) if position == self.head => Err(SendFailed(status)),
            // The retransmission of this request failed locally, but the response acknowledges the
            // original.
            Some((position, _)) if position < self.head => {
                self.local_error = None;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a PSN was sent and is not acknowledged.
    fn is_outstanding(&self, psn: Psn) -> bool {
        let unacked = self.oldest_unacked_psn();
        psn.distance(unacked) < self.first_unsent_psn.distance(unacked)
    }

    fn handle_ack(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        now: Time,
        psn: Psn,
        syndrome: Syndrome,
    ) -> Result<(), SendFailed> {
        // A NAK acknowledges all PSNs before its own (IBTA volume 1, 9.7.5).
        let includes_psn = matches!(syndrome, Syndrome::Ack { .. }) || Mutant::NakAcknowledgesItself.is_on();
        let end = if includes_psn { psn.next() } else { psn };
        if matches!(syndrome, Syndrome::Reserved(_) | Syndrome::Nak(NakCode::InvalidRdRequest)) {
            nic.counters.drop_stale_response += 1;
            return Ok(());
        }
        if !self.acknowledge(attrs, nic, now, end) {
            return self.handle_implied_nak(attrs, nic);
        }
        let status = match syndrome {
            Syndrome::RnrNak { timer } => {
                nic.counters.rnr_naks_received += 1;
                // The requester sends nothing during an RNR wait. An RNR NAK of the same PSN that
                // arrives then is a copy, or answers a copy of the request.
                let is_copy = self.rnr_until.is_some() && self.rnr_psn == Some(psn);
                if is_copy && !Mutant::RnrNakCopyCounts.is_on() {
                    return Ok(());
                }
                self.rnr_psn = Some(psn);
                return self.handle_rnr_nak(attrs, now, timer);
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                nic.counters.sequence_naks_received += 1;
                // The NAK is old if the requester has sent nothing since its last retransmission.
                // It is a copy if this PSN was NAKed before (IBTA volume 1, 9.7.5). If the
                // retransmission was lost too, the timer recovers it.
                if self.cursor == self.oldest_unacked() || self.sequence_nak_psn == Some(psn) {
                    return Ok(());
                }
                self.sequence_nak_psn = Some(psn);
                return self.retransmit(attrs);
            }
            Syndrome::Nak(NakCode::InvalidRequest) => WcStatus::RemoteInvalidRequest,
            Syndrome::Nak(NakCode::RemoteAccess) => WcStatus::RemoteAccess,
            Syndrome::Nak(NakCode::RemoteOperational) => WcStatus::RemoteOperation,
            _ => return Ok(()),
        };
        nic.counters.fatal_naks_received += 1;
        Err(SendFailed(status))
    }

    /// `value` is the old value of an atomic's word.
    fn handle_fetch_response(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        value: Option<u64>,
    ) -> Result<(), SendFailed> {
        if let Message::ReadFirst(aeth)
        | Message::ReadLast(aeth)
        | Message::ReadOnly(aeth)
        | Message::AtomicAck(aeth, _) = packet.message
            && !matches!(aeth.syndrome, Syndrome::Ack { .. })
        {
            nic.counters.drop_stale_response += 1;
            return Ok(());
        }
        self.acknowledge(attrs, nic, now, packet.psn);
        if self.oldest_unacked_psn() != packet.psn && !Mutant::ReadDataOutOfOrder.is_on() {
            return self.handle_implied_nak(attrs, nic);
        }
        // `is_outstanding` has checked that the front request is started.
        let Some(front) = self.queue.front() else { return Ok(()) };
        let is_atomic = front.wr.op.is_atomic();
        if !front.wr.op.is_read_or_atomic() || is_atomic != value.is_some() {
            return Err(SendFailed(WcStatus::BadResponse));
        }
        let offset = u64::from(self.acked_packets) * attrs.mtu as u64;
        let old_value = value.unwrap_or_default().to_ne_bytes();
        let data = if is_atomic { &old_value[..] } else { packet.payload };
        if data.len() as u64 != (u64::from(front.len) - offset).min(attrs.mtu as u64) {
            return Err(SendFailed(WcStatus::BadResponse));
        }
        let mitra_verbs::Data::Sges(sges) = &front.wr.data else {
            return Err(SendFailed(WcStatus::LocalQpOperation));
        };
        scatter_gather::scatter(&nic.keys, attrs.init.pd, sges, offset, data, memory)
            .map_err(|_| SendFailed(WcStatus::LocalProtection))?;
        nic.counters.bytes_received += data.len() as u64;
        self.acked_packets += 1;
        if self.acked_packets == front.packets {
            self.complete_front(attrs, nic);
        }
        self.after_progress(attrs, now);
        Ok(())
    }

    /// Acknowledges all SEND and WRITE packets before `end`.
    ///
    /// An acknowledgement does not answer a READ or an atomic. Returns false if an unanswered READ
    /// or atomic is before `end`, because its response must then have been lost (IBTA volume 1,
    /// 9.7.6).
    fn acknowledge(&mut self, attrs: &QpAttributes, nic: &mut SharedState, now: Time, end: Psn) -> bool {
        let mut progress = false;
        let mut reached_end = true;
        while self.oldest_unacked_psn() != end {
            let unacked = self.oldest_unacked_psn();
            let Some(front) = self.queue.front().filter(|_| self.head < self.next_start) else { break };
            if front.wr.op.is_read_or_atomic() && !Mutant::AckCompletesFetch.is_on() {
                reached_end = false;
                break;
            }
            progress = true;
            self.acked_packets += end.distance(unacked).min(front.packets - self.acked_packets);
            if self.acked_packets == front.packets {
                self.complete_front(attrs, nic);
            }
        }
        if progress {
            self.after_progress(attrs, now);
        }
        reached_end
    }

    /// Updates retries, outstanding fetches, cursor and timer after the oldest unacknowledged PSN
    /// has advanced.
    fn after_progress(&mut self, attrs: &QpAttributes, now: Time) {
        if Mutant::RetriesNotRestored.is_on() {
            self.rnr_retries_left = attrs.rnr_retry();
        } else if Mutant::RnrRetriesNotRestored.is_on() {
            self.retries_left = attrs.retry_cnt();
        } else {
            self.reset_retries(attrs);
        }
        let unacked = self.oldest_unacked_psn();
        while self.fetches.front().is_some_and(|fetch| !fetch.end.is_after(unacked)) {
            self.fetches.pop_front();
        }
        let oldest = self.oldest_unacked();
        // The response answers a packet that was sent before the cursor was moved back for
        // retransmission.
        if self.cursor < oldest {
            self.cursor = oldest;
        }
        let in_flight = self.cursor > oldest && !Mutant::TimerStoppedByProgress.is_on();
        let timeout = attrs.local_ack_timeout().filter(|_| in_flight);
        self.retransmit_at = timeout.map(|timeout| now + timeout);
    }

    /// Handles an implied NAK: a response shows that the response to an earlier READ or atomic was
    /// lost. The requester retransmits once per PSN.
    fn handle_implied_nak(&mut self, attrs: &QpAttributes, nic: &mut SharedState) -> Result<(), SendFailed> {
        let unacked = self.oldest_unacked_psn();
        // The response is old if the requester has sent nothing since its last retransmission. Such
        // a response must not take another retry.
        if self.implied_nak_psn == Some(unacked) || self.cursor == self.oldest_unacked() {
            return Ok(());
        }
        nic.counters.implied_naks += 1;
        self.implied_nak_psn = Some(unacked);
        self.retransmit(attrs)
    }

    fn handle_rnr_nak(&mut self, attrs: &QpAttributes, now: Time, timer: u8) -> Result<(), SendFailed> {
        if attrs.rnr_retry() != UNLIMITED_RNR_RETRIES {
            if self.rnr_retries_left == 0 {
                return Err(SendFailed(WcStatus::RnrRetryExceeded));
            }
            self.rnr_retries_left -= 1;
        }
        self.rewind(attrs);
        // The NAK shows that the peer is alive, so only the RNR retry count limits the wait.
        self.retries_left = attrs.retry_cnt();
        self.sequence_nak_psn = None;
        self.rnr_until = Some(now + RnrTimer::from_code(timer).as_duration());
        Ok(())
    }
}
