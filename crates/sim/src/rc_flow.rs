//! Rules of retransmission, checked from the packets of a reliable connection, as an analyser on
//! the wire does.
//!
//! A requester retransmits from its oldest unacknowledged packet (go-back-N). A *burst* begins with
//! that packet, and ends when the requester goes back again. *Progress* is a response that
//! acknowledges the oldest packet. IBTA volume 1, 9.7.5 and 9.7.6 have the rules for the packets
//! between two points of progress.

use core::time::Duration;
use std::collections::VecDeque;

use mitra_transport::Tuning;
use mitra_verbs::{Mtu, Psn, Qpn, RnrTimer, Time, WcStatus};
use mitra_wire::{Aeth, Message, NakCode, Packet, Syndrome};

use crate::NicId;

/// The value of `rnr_retry` that means an unlimited number of RNR retries (IBTA volume 1, 9.7.5).
const UNLIMITED: u8 = 7;
/// The time that a NIC may take to send a response that is due, besides [`Tuning::ack_delay`].
const RESPONSE_TIME: Duration = Duration::from_micros(100);

/// A queue pair, by its NIC and its number.
pub type QpAddress = (NicId, Qpn);

/// The attributes of a requester that bound its retries.
#[derive(Clone, Copy, Debug)]
pub struct RetryRules {
    /// The path MTU.
    pub mtu: Mtu,
    /// The number of retransmissions after time-outs.
    pub retry_cnt: u8,
    /// The number of retransmissions after RNR NAKs; 7 has no limit.
    pub rnr_retry: u8,
    /// The time until a time-out.
    pub timeout: Duration,
    /// The settings of the NICs.
    pub tuning: Tuning,
}

/// A violated rule: the name of its checker, and what happened.
pub type RetryFinding = (&'static str, String);

/// The requests from one RC queue pair to another, as the wire shows them, and whether their
/// retransmissions keep the rules.
pub struct RcFlow {
    pub(crate) requester: QpAddress,
    pub(crate) responder: QpAddress,
    rules: RetryRules,
    /// The end of each request that is not acknowledged as a whole, and whether the request is a
    /// READ or an atomic. A READ counts as one request.
    unacked: VecDeque<(Psn, bool)>,
    oldest: Psn,
    /// The PSN after the last sent PSN.
    next: Psn,
    /// The last PSN of the last request packet.
    last_sent: Option<Psn>,
    since_progress: SinceProgress,
    /// The time since which the requester's link is down.
    down_since: Option<Time>,
    finding: Option<RetryFinding>,
}

#[derive(Default)]
struct SinceProgress {
    /// The bursts that no RNR NAK caused.
    retransmissions: u32,
    /// The number of timeouts that fit into the time in which the requester's link was down. Their
    /// retransmissions did not reach the wire.
    silent_timeouts: u32,
    /// The retransmissions since the last RNR NAK, which shows that the peer is alive.
    retransmissions_since_rnr: u32,
    rnr_naks: u32,
    /// The end of the wait that the last RNR NAK demands, until the next burst begins.
    rnr_until: Option<Time>,
    /// The number of copies of the oldest packet that have reached the responder.
    arrivals: u32,
    /// The time at which the oldest packet arrived again, if the responder has sent nothing since.
    unanswered_since: Option<Time>,
}

impl RcFlow {
    /// Observes the requests from one queue pair to another, beginning with the PSN `first`.
    pub fn new(requester: QpAddress, responder: QpAddress, first: Psn, rules: RetryRules) -> RcFlow {
        RcFlow {
            requester,
            responder,
            rules,
            unacked: VecDeque::new(),
            oldest: first,
            next: first,
            last_sent: None,
            since_progress: SinceProgress::default(),
            down_since: None,
            finding: None,
        }
    }

    /// Records that the responder's queue pair is not ready to receive. An error of that queue
    /// pair's own requests can end it before an answer leaves.
    pub(crate) fn on_responder_not_ready(&mut self) {
        self.since_progress.unanswered_since = None;
    }

    pub(crate) fn on_sent(&mut self, now: Time, nic: NicId, packet: &Packet<'_>) {
        let is_request = packet.message.is_request();
        if is_request && (nic, packet.dest_qp) == (self.requester.0, self.responder.1) {
            self.on_request(now, packet);
        } else if !is_request && (nic, packet.dest_qp) == (self.responder.0, self.requester.1) {
            self.since_progress.unanswered_since = None;
            if let Message::Ack(Aeth { syndrome: Syndrome::RnrNak { .. }, .. }) = packet.message {
                self.since_progress.arrivals = 0;
            }
        }
    }

    /// The caller checks that the queue pair that receives the packet is ready to receive.
    pub(crate) fn on_received(&mut self, now: Time, nic: NicId, packet: &Packet<'_>) {
        let is_request = packet.message.is_request();
        if is_request && (nic, packet.dest_qp) == self.responder {
            self.on_arrival(now, packet.psn);
        } else if !is_request && (nic, packet.dest_qp) == self.requester {
            self.on_response(now, packet);
        }
    }

    pub(crate) fn on_link(&mut self, now: Time, nic: NicId, is_up: bool) {
        if nic == self.responder.0 {
            self.since_progress.unanswered_since = None;
        }
        if nic != self.requester.0 {
            return;
        }
        if !is_up {
            self.down_since.get_or_insert(now);
        } else if let Some(since) = self.down_since.take() {
            let timeouts = now.saturating_since(since).as_nanos() / self.rules.timeout.as_nanos().max(1);
            self.since_progress.silent_timeouts += timeouts as u32 + 1;
        }
    }

    /// Returns the violated rules. `failure` is the status of the first failed request of the queue
    /// pair.
    pub(crate) fn findings(&self, failure: Option<WcStatus>) -> Vec<RetryFinding> {
        let (rules, since) = (&self.rules, &self.since_progress);
        let is_allowed = match failure {
            Some(WcStatus::RetryExceeded) => {
                self.down_since.is_some()
                    || since.retransmissions + since.silent_timeouts >= rules.retry_cnt.into()
            }
            Some(WcStatus::RnrRetryExceeded) => {
                rules.rnr_retry != UNLIMITED && since.rnr_naks > rules.rnr_retry.into()
            }
            _ => true,
        };
        let early = (!is_allowed).then(|| {
            let text = format!(
                "{failure:?} after {} retransmissions of {} and {} RNR NAKs (retry_cnt {}, rnr_retry {})",
                since.retransmissions, self.oldest, since.rnr_naks, rules.retry_cnt, rules.rnr_retry
            );
            ("gave-up-early", text)
        });
        self.finding.clone().into_iter().chain(early).collect()
    }

    fn on_request(&mut self, now: Time, packet: &Packet<'_>) {
        let (count, is_fetch) = match packet.message {
            Message::ReadRequest(reth) => (reth.len.div_ceil(self.rules.mtu.bytes() as u32).max(1), true),
            Message::CompareSwap(_) | Message::FetchAdd(_) => (1, true),
            _ => (1, false),
        };
        let last = self.last_sent.replace(packet.psn.add(count - 1));
        if last.is_some_and(|last| !packet.psn.is_after(last)) {
            self.on_burst(now);
        }
        if packet.psn == self.next {
            self.next = packet.psn.add(count);
            self.unacked.push_back((self.next, is_fetch));
        }
    }

    fn on_burst(&mut self, now: Time) {
        let since = &mut self.since_progress;
        if let Some(until) = since.rnr_until.take() {
            if now < until {
                self.report("rnr-wait-ignored", format!("{} is sent again before {until:?}", self.oldest));
            }
            return;
        }
        since.retransmissions += 1;
        since.retransmissions_since_rnr += 1;
        // One more is allowed, because a burst that began before the progress may be sent after the
        // progress.
        let is_too_often = since.retransmissions_since_rnr > u32::from(self.rules.retry_cnt) + 1;
        let answer_time = self.rules.tuning.ack_delay + RESPONSE_TIME;
        let unanswered = since.unanswered_since.filter(|&at| at + answer_time < now);
        if let Some(at) = unanswered {
            self.report("unanswered", format!("a copy of {} that arrived at {at:?}", self.oldest));
        }
        if is_too_often {
            let detail = format!("{} is sent again more often than retry_cnt", self.oldest);
            self.report("retried-too-often", detail);
        }
    }

    fn on_arrival(&mut self, now: Time, psn: Psn) {
        if psn != self.oldest {
            return;
        }
        // All earlier packets are acknowledged. So the responder has executed or refused the first
        // arrival, and the other arrivals are copies.
        self.since_progress.arrivals += 1;
        if self.since_progress.arrivals > 1 {
            self.since_progress.unanswered_since.get_or_insert(now);
        }
    }

    fn on_response(&mut self, now: Time, packet: &Packet<'_>) {
        if packet.psn.distance(self.oldest) >= self.next.distance(self.oldest) {
            return;
        }
        match packet.message {
            Message::Ack(aeth) => match aeth.syndrome {
                Syndrome::Ack { .. } => _ = self.acknowledge(packet.psn.next()),
                Syndrome::RnrNak { timer } => {
                    if self.acknowledge(packet.psn) && self.since_progress.rnr_until.is_none() {
                        self.on_rnr_nak(now + RnrTimer::from_code(timer).as_duration());
                    }
                }
                Syndrome::Nak(NakCode::InvalidRdRequest) | Syndrome::Reserved(_) => {}
                Syndrome::Nak(_) => _ = self.acknowledge(packet.psn),
            },
            _ => {
                self.acknowledge(packet.psn);
                if self.oldest == packet.psn && self.unacked.front().is_some_and(|&(_, is_fetch)| is_fetch) {
                    self.advance(packet.psn.next());
                }
            }
        }
    }

    fn on_rnr_nak(&mut self, until: Time) {
        let (since, limit) = (&mut self.since_progress, self.rules.rnr_retry);
        since.rnr_naks += 1;
        since.retransmissions_since_rnr = 0;
        since.rnr_until = Some(until);
        let naks = since.rnr_naks;
        if limit != UNLIMITED && naks > u32::from(limit) + 1 {
            self.report("retried-too-often", format!("{naks} RNR NAKs of {}", self.oldest));
        }
    }

    /// Acknowledges the SENDs and WRITEs before `end`. Returns false if a READ or atomic without a
    /// response is before `end`.
    fn acknowledge(&mut self, end: Psn) -> bool {
        while self.oldest != end {
            match self.unacked.front() {
                Some((_, true)) => return false,
                Some(_) => self.advance(self.oldest.next()),
                None => break,
            }
        }
        true
    }

    fn advance(&mut self, oldest: Psn) {
        self.oldest = oldest;
        self.since_progress = SinceProgress::default();
        self.unacked.pop_front_if(|(end, _)| *end == oldest);
    }

    fn report(&mut self, checker: &'static str, detail: String) {
        self.finding.get_or_insert((checker, detail));
    }
}
