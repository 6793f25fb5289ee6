//! The requester of a reliable connection: turns posted sends into packets, and responses into
//! completions.
//!
//! A request is *started* when it gets its PSNs: one per request packet, or one per response packet
//! of a READ. The oldest unacknowledged PSN belongs to the front request. The *cursor* is the
//! position of the next packet to send. Retransmission moves the cursor back to the oldest
//! unacknowledged packet (go-back-N).
//!
//! `transmit` sends packets at the cursor. `handle_response` processes ACKs, NAKs and data.

mod handle_response;
mod send_window;
mod transmit;

use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{Psn, QpState, SendFlags, SendWr, Time, Wc, WcStatus};

use crate::nic::shared_state::SharedState;
use crate::qp::attributes::QpAttributes;

/// A posted send. The fields from `packets` on are valid once the request is started.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Request {
    pub(super) wr: SendWr,
    /// The length of the local data in bytes.
    len: u32,
    /// The number of PSNs of the request. A local operation has none.
    pub(super) packets: u32,
    /// The largest number of response packets that one READ request packet asks for.
    read_chunk: u32,
    /// The first PSN.
    pub(super) psn: Psn,
    /// The window cost of all requests that were started before this one, see `send_window`.
    cost_before: u64,
}

/// The position of a packet in the send queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Cursor {
    /// The position of the request, counted from the first request ever posted.
    request: u64,
    /// The index of the packet in the request.
    packet: u32,
}

/// The PSNs `psn .. end` of an unanswered READ request packet or atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct OutstandingFetch {
    psn: Psn,
    end: Psn,
}

/// The oldest send has failed with this status. The queue pair enters its error state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SendFailed(pub(crate) WcStatus);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Requester {
    /// The requests that are posted and not completed.
    pub(super) queue: VecDeque<Request>,
    /// The position of the front request, counted from the first request ever posted.
    pub(super) head: u64,
    /// The number of acknowledged packets of the front request.
    acked_packets: u32,
    /// The position of the first request that is not started.
    pub(super) next_start: u64,
    cursor: Cursor,
    /// The first PSN of the next request to start.
    next_psn: Psn,
    /// The first PSN that was never sent.
    pub(super) first_unsent_psn: Psn,
    /// The window cost of all requests that were ever started.
    total_cost: u64,
    /// The window cost up to the last packet that asked for an acknowledgement.
    ack_requested_cost: u64,
    /// The READ request packets and atomics that were sent since the last retransmission and are
    /// not answered.
    fetches: VecDeque<OutstandingFetch>,
    retransmit_at: Option<Time>,
    /// The end of the wait that an RNR NAK has asked for. The requester sends nothing until then.
    rnr_until: Option<Time>,
    /// The PSN of the last RNR NAK that has begun a wait.
    rnr_psn: Option<Psn>,
    retries_left: u8,
    rnr_retries_left: u8,
    /// The PSN at which the last implied NAK caused a retransmission. A second implied NAK at the
    /// same PSN has no effect.
    implied_nak_psn: Option<Psn>,
    /// The PSN at which the last sequence NAK caused a retransmission. A second sequence NAK at the
    /// same PSN is a copy, because a responder reports a gap only once.
    sequence_nak_psn: Option<Psn>,
    is_last_signaled: bool,
    /// Whether packets are about to be sent again because a timer has expired or the peer has
    /// reported a gap.
    begins_retransmission: bool,
    /// The position of a request that cannot be sent for a local reason, and the status with which
    /// the request fails when it is at the front.
    local_error: Option<(u64, WcStatus)>,
}

impl Requester {
    pub(crate) fn new() -> Requester {
        Requester {
            queue: VecDeque::new(),
            head: 0,
            acked_packets: 0,
            next_start: 0,
            cursor: Cursor { request: 0, packet: 0 },
            next_psn: Psn::new(0),
            first_unsent_psn: Psn::new(0),
            total_cost: 0,
            ack_requested_cost: 0,
            fetches: VecDeque::new(),
            retransmit_at: None,
            rnr_until: None,
            rnr_psn: None,
            retries_left: 0,
            rnr_retries_left: 0,
            implied_nak_psn: None,
            sequence_nak_psn: None,
            is_last_signaled: false,
            begins_retransmission: false,
            local_error: None,
        }
    }

    /// Prepares for RTS. The next request to start gets the PSN `psn`.
    pub(crate) fn start(&mut self, attrs: &QpAttributes, psn: Psn) {
        self.next_psn = psn;
        self.first_unsent_psn = psn;
        self.reset_retries(attrs);
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn has_fetches(&self) -> bool {
        self.queue.iter().any(|request| request.wr.op.is_read_or_atomic())
    }

    pub(crate) fn push(&mut self, wr: SendWr) {
        let len = if wr.op.is_atomic() { 8 } else { wr.data.len() as u32 };
        let psn = Psn::new(0);
        self.is_last_signaled = wr.flags.contains(SendFlags::SIGNALED);
        self.queue.push_back(Request { wr, len, packets: 0, read_chunk: 0, psn, cost_before: 0 });
    }

    /// Returns whether the program may expect a request to complete before the receive of the
    /// peer's answer. The specification does not order the two completions, but a program that
    /// finds both in one completion queue may rely on this order.
    ///
    /// The requester assumes that the peer's program does the same, because most programs run at
    /// both ends.
    pub(crate) fn is_ordered_with_receives(&self, attrs: &QpAttributes) -> bool {
        attrs.init.send_cq == attrs.init.recv_cq && (attrs.init.sq_sig_all || self.is_last_signaled)
    }

    /// Returns whether the next packets to send are a retransmission, once for each.
    pub(crate) fn take_retransmission(&mut self) -> bool {
        core::mem::take(&mut self.begins_retransmission)
    }

    /// Returns whether the next request to send has several packets.
    pub(crate) fn is_next_request_long(&self, attrs: &QpAttributes) -> bool {
        self.request(self.cursor.request).is_some_and(|request| request.len as usize > attrs.mtu)
    }

    pub(crate) fn first_unsent_psn(&self) -> Psn {
        self.first_unsent_psn
    }

    /// Returns whether all started requests are completed.
    pub(crate) fn is_drained(&self) -> bool {
        self.head == self.next_start
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match (self.retransmit_at, self.rnr_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Completes all requests: the front request with the status `first`, the others as flushed.
    pub(crate) fn fail(&mut self, attrs: &QpAttributes, nic: &mut SharedState, first: Option<WcStatus>) {
        let mut status = first.unwrap_or(WcStatus::Flushed);
        while let Some(request) = self.queue.pop_front() {
            complete(attrs, nic, &request, status);
            status = WcStatus::Flushed;
        }
        let (next_psn, first_unsent_psn) = (self.next_psn, self.first_unsent_psn);
        *self = Requester { next_psn, first_unsent_psn, ..Requester::new() };
    }

    pub(crate) fn handle_timeout(
        &mut self,
        attrs: &QpAttributes,
        nic: &mut SharedState,
        now: Time,
        is_blocked: bool,
    ) -> Result<(), SendFailed> {
        if self.rnr_until.is_some_and(|t| t <= now) {
            self.rnr_until = None;
        }
        if self.retransmit_at.is_some_and(|t| t <= now) {
            self.retransmit_at = None;
            nic.counters.timeouts += 1;
            if is_blocked {
                // The first time, what was sent most probably waits for the receiver.
                if self.retries_left == attrs.retry_cnt() {
                    self.use_retry()?;
                } else {
                    self.retransmit(attrs)?;
                }
                self.begin_blocked(attrs, now);
                return Ok(());
            }
            self.forget_naks();
            return self.retransmit(attrs);
        }
        Ok(())
    }

    fn request(&self, position: u64) -> Option<&Request> {
        self.queue.get(position.checked_sub(self.head)? as usize)
    }

    fn oldest_unacked_psn(&self) -> Psn {
        match self.queue.front() {
            Some(front) if self.head < self.next_start => front.psn.add(self.acked_packets),
            _ => self.next_psn,
        }
    }

    fn oldest_unacked(&self) -> Cursor {
        Cursor { request: self.head, packet: self.acked_packets }
    }

    /// Moves the cursor back to the oldest unacknowledged packet if a retry is left (IBTA volume 1,
    /// 9.7.6).
    fn retransmit(&mut self, attrs: &QpAttributes) -> Result<(), SendFailed> {
        self.use_retry()?;
        self.rewind(attrs);
        self.begins_retransmission = true;
        Ok(())
    }

    fn use_retry(&mut self) -> Result<(), SendFailed> {
        match self.retries_left.checked_sub(1) {
            Some(left) => self.retries_left = left,
            None => return Err(SendFailed(WcStatus::RetryExceeded)),
        }
        Ok(())
    }

    /// Lets the time run if requests wait for a blocked destination, sent or not. In SQD, no
    /// request starts.
    pub(crate) fn begin_blocked(&mut self, attrs: &QpAttributes, now: Time) {
        let waits = if attrs.state == QpState::Sqd { !self.is_drained() } else { !self.queue.is_empty() };
        if waits && self.retransmit_at.is_none() && self.rnr_until.is_none() {
            self.retransmit_at = attrs.local_ack_timeout().map(|timeout| now + timeout);
        }
    }

    /// Stops the time unless something was sent, because the destination takes packets again.
    pub(crate) fn end_blocked(&mut self, attrs: &QpAttributes, now: Time) {
        let timeout = attrs.local_ack_timeout().filter(|_| self.cursor > self.oldest_unacked());
        self.retransmit_at = timeout.map(|timeout| self.retransmit_at.unwrap_or(now + timeout));
    }

    fn rewind(&mut self, attrs: &QpAttributes) {
        self.cursor = self.oldest_unacked();
        if !Mutant::FetchesKeptAtRetransmission.is_on() {
            self.fetches.clear();
        }
        self.retransmit_at = None;
        self.ack_requested_cost = self.cost_at(self.cursor, attrs.mtu);
    }

    fn reset_retries(&mut self, attrs: &QpAttributes) {
        self.retries_left = attrs.retry_cnt();
        self.rnr_retries_left = attrs.rnr_retry();
        self.forget_naks();
    }

    fn forget_naks(&mut self) {
        self.implied_nak_psn = None;
        self.sequence_nak_psn = None;
    }

    fn complete_front(&mut self, attrs: &QpAttributes, nic: &mut SharedState) {
        if let Some(request) = self.queue.pop_front() {
            self.head += 1;
            self.acked_packets = 0;
            if attrs.init.sq_sig_all || request.wr.flags.contains(SendFlags::SIGNALED) {
                complete(attrs, nic, &request, WcStatus::Success);
            }
        }
    }
}

fn complete(attrs: &QpAttributes, nic: &mut SharedState, request: &Request, status: WcStatus) {
    let mut wc = Wc::new(request.wr.wr_id, status, request.wr.op.wc_opcode(), attrs.qpn);
    wc.byte_len = request.len;
    nic.complete(attrs.init.send_cq, wc, false);
}
