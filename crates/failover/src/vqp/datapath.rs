use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{Error, Mtu, Psn, Qpn, RecvWr, Result, SendWr, Time, Wc, WcStatus};

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::completion::{Completion, UnresolvedError};
use crate::completion_log::{self, CompletionLog, LogTerms};
use crate::config::{Config, Service, WritePolicy};
use crate::data_qp::DataQp;
use crate::domain::Domain;
use crate::evidence::{Contradiction, Evidence, Placed};
use crate::home_rail::VqpId;
use crate::ledger::{RecoveryInput, RecoveryStats};
use crate::memory_region::RemoteRegion;
use crate::telemetry::LatencySampler;
use crate::vqp::failure::Failure;
use crate::vqp::fence::Fence;
use crate::vqp::home_membership::HomeMembership;
use crate::vqp::packet_counts::PacketCounter;
use crate::vqp::rail_set::RailSet;
use crate::vqp::receive_queue::ReceiveQueue;
use crate::vqp::send_queue::{PostPath, SendQueue};
use crate::vqp::shared_receives::{ReceiveSource, SharedReceives};
use crate::vqp::termination::Termination;
use crate::vqp::window_sync::WindowSync;
use crate::vqp::wr_id_flags;
use crate::vqp::xrc_messages::SentHeaders;

mod over_rails;

/// The queue pairs that execute the requests of a vQP.
pub trait DataQps: fmt::Debug {
    fn data_qp(&self, rail: usize) -> Option<&DataQp>;

    fn config(&self) -> &Config;

    /// The queue pair number that errors and events name.
    fn qpn(&self) -> Qpn;

    /// Adds the evidence that the fenced queue pair on `rail` holds.
    fn add_evidence(&self, rail: usize, nic_alive: bool, evidence: &mut Evidence);
}

/// The path of requests and completions between the application and the queue pairs, without the
/// state of a failover.
#[derive(Debug)]
pub struct Datapath<Q = RailSet> {
    pub(super) domain: Arc<Domain>,
    pub(super) rails: Q,
    pub(super) send: SendQueue,
    pub(super) recv: ReceiveQueue,
    pub(super) packets: PacketCounter,
    pub(super) shared: Option<SharedReceives>,
    /// The log in this end's memory, into which the peer writes entries for the peer's operations.
    log: Option<CompletionLog>,
    pub(super) windows: WindowSync,
    pub(super) home: HomeMembership,
    /// Completions for the application.
    pub(super) ready: VecDeque<Completion>,
    pub(super) termination: Termination,
    pub(super) latency: LatencySampler,
    /// `Some` at the sending end of an XRC connection.
    pub(super) xrc_headers: Option<SentHeaders>,
    /// Whether the vQP survives an invalid request, and replaces the queue pair that the request
    /// has stopped. Otherwise the vQP closes.
    pub(super) survives_refusals: bool,
}

impl<Q: DataQps> Datapath<Q> {
    /// Creates the queues, unconnected. `home` identifies the vQP as a user of the home rail and as
    /// the owner of keys. `first_psn` is the first PSN on the first queue pair.
    pub(super) fn new(
        domain: Arc<Domain>,
        home: VqpId,
        rails: Q,
        first_psn: Psn,
        log: Option<CompletionLog>,
        shared: Option<ReceiveSource>,
    ) -> Datapath<Q> {
        let (limits, config) = (domain.limits(), rails.config());
        let service = config.service;
        Datapath {
            send: SendQueue::new(config, &limits, Mtu::M256, first_psn, None),
            recv: ReceiveQueue::new(limits.message_bytes.into(), service),
            packets: PacketCounter::default(),
            shared: shared.map(|source| SharedReceives::new(source, service)),
            log,
            windows: WindowSync::new(&domain),
            home: HomeMembership::new(home),
            ready: VecDeque::new(),
            termination: Termination::default(),
            latency: LatencySampler::default(),
            xrc_headers: (service == Service::XrcSend).then(SentHeaders::default),
            survives_refusals: false,
            domain,
            rails,
        }
    }

    #[inline]
    pub(super) fn config(&self) -> &Config {
        self.rails.config()
    }

    /// The time on the clock of rail 0's NIC.
    #[inline]
    pub(super) fn now(&self) -> Time {
        self.domain.nics()[0].provider.now()
    }

    pub(super) fn log_offer(&self) -> Option<RemoteRegion> {
        self.log.as_ref().and_then(|log| log.offer(self.config().access))
    }

    /// Prepares and checks a send. The caller has checked that the vQP is open.
    #[inline]
    pub(super) fn prepare_send(&mut self, wr: &SendWr) -> Result<()> {
        if wr.op.is_local() {
            self.windows.prepare(&wr.op, &self.domain)?;
        }
        self.send.check(wr, self.rails.config(), self.rails.qpn())
    }

    /// Records a prepared send and, with a `path`, posts it. See [`SendQueue::submit`]. Returns the
    /// sequence number, and the failure of the rail if the rail has failed.
    #[inline]
    pub(super) fn submit(
        &mut self,
        wr: SendWr,
        write_policy: WritePolicy,
        path: Option<PostPath>,
    ) -> (u64, Option<Failure>) {
        let domain = &self.domain;
        self.latency.on_post(self.send.ledger.next_seq(), || domain.nics()[0].provider.now());
        match path.and_then(|path| Some((path, self.rails.data_qp(path.rail)?))) {
            Some((path, qp)) => self.send.submit(wr, write_policy, path, qp, domain),
            None => (self.send.ledger.push(wr, write_policy), None),
        }
    }

    /// # Errors
    /// [`Error::Invalid`] if the two ends' completion logs do not match.
    pub(super) fn check_logs(&self, local: LogTerms<'_>, peer: LogTerms<'_>) -> Result<()> {
        let depth = self.config().posted_depth(self.domain.limits().wrs);
        let mismatch = completion_log::mismatch(local, peer, depth, self.domain.nics().len());
        mismatch.map_or(Ok(()), |mismatch| Err(Error::Invalid(mismatch)))
    }

    /// Begins the connection with an empty send queue. `peer` describes the peer's completion log.
    pub(super) fn begin(&mut self, mtu: Mtu, first_psn: Psn, peer: LogTerms<'_>, acks_after_placement: bool) {
        let mut config = *self.config();
        if let Some(log) = &mut config.completion_log {
            log.interval = completion_log::interval(log, acks_after_placement);
        }
        let log_region = peer.region.filter(|_| peer.is_kept).cloned();
        self.send = SendQueue::new(&config, &self.domain.limits(), mtu, first_psn, log_region);
        self.packets.begin(first_psn);
    }

    /// Removes the sends from this sequence number on, none of which has been posted.
    pub(super) fn truncate_sends(&mut self, from: u64) {
        self.send.ledger.truncate(from);
        self.latency.truncate(from);
        if let Some(headers) = &mut self.xrc_headers {
            headers.truncate(from);
        }
    }

    /// The number of sends of the application that have not completed, without XRC headers.
    pub(super) fn outstanding(&self) -> usize {
        let ledger = &self.send.ledger;
        ledger.len() - self.xrc_headers.as_ref().map_or(0, |headers| headers.count_from(ledger.first_seq()))
    }

    /// Checks a send, except for its remote key and the state of the queue.
    pub(super) fn check_send(&self, wr: &SendWr) -> Result<()> {
        if wr.op.is_local() {
            self.domain.check_window_op(&wr.op)?;
        }
        self.send.check_shape(wr, self.config())
    }

    /// Checks a receive and appends it to the queue. The caller has checked that the vQP is open.
    pub(super) fn push_recv(&mut self, wr: RecvWr) -> Result<()> {
        let depth = self.config().recv_wrs;
        if self.recv.len() >= depth as usize {
            return Err(Error::QueueFull { queue: "receive queue", qpn: self.rails.qpn(), depth });
        }
        self.recv.push(wr, self.config().recv_sges)
    }

    /// Makes the slots for the messages of shared receives, if a shared receive was posted and no
    /// slots exist.
    ///
    /// # Errors
    /// The error of a NIC that refuses to register the memory of the slots.
    pub(super) fn make_slots(&mut self) -> Result<()> {
        let Some(shared) = &mut self.shared else { return Ok(()) };
        shared.make_slots(&self.domain, self.rails.config().recv_wrs, &mut self.recv)
    }

    /// Posts one list of pending sends. See [`SendQueue::post`].
    #[inline]
    pub(super) fn post_sends(&mut self, path: PostPath) -> Option<Failure> {
        self.send.post(path, self.rails.data_qp(path.rail)?, &self.domain)
    }

    /// Posts the receives on the rail of the receive queue. If none is posted and a shared receive
    /// is longer than the slots, makes longer slots first.
    pub(super) fn post_recvs(&mut self) {
        if !self.recv.is_posted()
            && let Some(shared) = &mut self.shared
        {
            // If a NIC refuses the memory, the slots stay as they are.
            let _ = shared.lengthen_slots(self.rails.config().recv_wrs, &mut self.recv);
        }
        if let Some(qp) = self.rails.data_qp(self.recv.rail()) {
            self.recv.post(qp, &self.domain);
        }
    }

    /// Records the successful completion of a send or a log entry.
    #[inline]
    pub(super) fn on_send_success(&mut self, rail: usize, wc: &Wc) {
        if let Some(op) = self.send.on_success(wc.wr_id, wc.byte_len) {
            self.windows.on_executed(wc.wr_id, op, rail, &self.domain);
        }
    }

    /// Drives the operations that keep the windows of all rails equal, and completes the local
    /// operation that all NICs have executed. Returns the first failure of a rail.
    pub(super) fn drive_windows(&mut self, active: usize) -> Option<Failure> {
        let (polled, rails) = ([active, self.recv.rail()], &self.rails);
        let (executed, failure) = self.windows.drive(polled, |rail| rails.data_qp(rail), &self.domain);
        if let Some(seq) = executed {
            self.send.ledger.complete(seq, 0);
        }
        failure
    }

    pub(super) fn on_qp_connected(&mut self, rail: usize) {
        self.windows.on_connected(rail, &self.domain);
    }

    /// Handles a completion on a rail, and returns the failure that the completion reports. `fence`
    /// gets the completions of its markers.
    #[inline]
    pub(super) fn on_completion(&mut self, rail: usize, wc: &Wc, fence: &mut Fence) -> Option<Failure> {
        let is_recv = wc.wr_id & wr_id_flags::RECV != 0;
        if wc.wr_id & wr_id_flags::MARKER != 0 {
            fence.on_marker(is_recv);
            // A message that had begun at the change to ERR has taken the marker as its receive,
            // and completes no receive of the program.
            if is_recv && wc.status != WcStatus::Flushed {
                return Some(Failure::Close(CloseReason::RequestError));
            }
        } else if is_recv {
            match wc.status {
                // Under a policy without a fence, the old rail can still receive a message after
                // the receives were posted on the new rail. If that message completed the oldest
                // receive, every later message would be matched with the wrong buffer.
                WcStatus::Success if fence.is_done() => {}
                WcStatus::Success => self.complete_recv(rail, wc),
                WcStatus::Flushed => return self.on_flush_or_error(rail, wc, fence),
                _ => {
                    self.complete_recv(rail, wc);
                    return Some(Failure::Close(CloseReason::RequestError));
                }
            }
        } else if wc.wr_id & wr_id_flags::WINDOW != 0 {
            return self.windows.on_completion(rail, wc);
        } else if wc.status == WcStatus::Success {
            self.on_send_success(rail, wc);
        } else {
            return self.on_flush_or_error(rail, wc, fence);
        }
        None
    }

    /// Handles a failed send or a flushed receive. The cause is a failure of the rail or of a
    /// single request.
    fn on_flush_or_error(&mut self, rail: usize, wc: &Wc, fence: &Fence) -> Option<Failure> {
        if self.config().service == Service::Unreliable && self.on_unreliable_error(wc) {
            return None;
        }
        // A status that the responder or the local NIC reported for this very request decides the
        // request, even if the vQP has closed or fences the rail. The three statuses below do not
        // decide, because they may be a mere consequence of the closing or the fence.
        let is_decided =
            !matches!(wc.status, WcStatus::Flushed | WcStatus::RetryExceeded | WcStatus::LocalQpOperation);
        if let Some(reason) = self.termination.reason() {
            if is_decided {
                self.send.on_request_error(wc.wr_id, wc.status, UnresolvedError::Undecided(reason));
            }
            return None;
        }
        if !fence.is_idle() && !is_decided {
            return None;
        }
        let rail_failed = Failure::Rail { rail, cause: Cause::Completion(wc.status) };
        match wc.status {
            WcStatus::RetryExceeded | WcStatus::LocalQpOperation
                // A NIC also reports `LocalQpOperation` for an invalidation that it refuses,
                // although the rail works.
                if !(wc.status == WcStatus::LocalQpOperation && self.send.ledger.is_local(wc.wr_id)) =>
            {
                Some(rail_failed)
            }
            WcStatus::Flushed => {
                // No error completion came first, so no request of this end has failed. A request
                // of the peer was invalid, or the device failed. For an invalid request, the NIC
                // reports an event that names the queue pair.
                let _ = self.domain.poll_rail_down(rail);
                self.take_qp_error(rail).or(Some(rail_failed))
            }
            status if self.survives_refusals => {
                self.send.refuse(wc.wr_id, status);
                Some(rail_failed)
            }
            status => {
                let undecided = UnresolvedError::Undecided(CloseReason::RequestError);
                self.send.on_request_error(wc.wr_id, status, undecided);
                Some(Failure::Close(CloseReason::RequestError))
            }
        }
    }

    /// Handles a failed send of an unreliable connection. A request that its NIC cannot execute
    /// stops the send queue, not the connection. No send shows a failure of the rail, because
    /// nothing is acknowledged. Returns false for a flushed request, which this method does not
    /// handle.
    fn on_unreliable_error(&mut self, wc: &Wc) -> bool {
        let is_send = wc.wr_id & wr_id_flags::RECV == 0;
        if is_send && !self.send.ledger.is_in_flight(wc.wr_id) {
            return true; // ended together with an earlier failed request
        }
        let is_failed = is_send && wc.status != WcStatus::Flushed;
        if is_failed {
            let undecided = UnresolvedError::Undecided(CloseReason::RequestError);
            self.send.on_request_error(wc.wr_id, wc.status, undecided);
        }
        is_failed
    }

    /// Returns the failure that an event about the queue pair of this rail reports.
    pub(super) fn take_qp_error(&mut self, rail: usize) -> Option<Failure> {
        let event = self.domain.take_qp_error(rail, self.rails.data_qp(rail)?.qpn())?;
        if self.survives_refusals {
            return Some(Failure::Rail { rail, cause: Cause::Completion(WcStatus::Flushed) });
        }
        self.termination.set_qp_error_event(event, self.rails.qpn());
        Some(Failure::Close(CloseReason::RequestError))
    }

    /// Completes the oldest receive with the completion `wc` of `rail`.
    #[inline]
    pub(super) fn complete_recv(&mut self, rail: usize, wc: &Wc) {
        // A NIC reports the completion of a request before the completion of the receive that takes
        // the peer's answer, and programs rely on this order. So the requests are completed first.
        self.take_send_completions();
        if wc.status == WcStatus::Success {
            let Some(key) = wc.invalidated else { return self.recv.on_success(wc, &mut self.ready) };
            let invalidated = Some(self.windows.on_invalidated(rail, key, &self.domain));
            self.recv.on_success(&Wc { invalidated, ..*wc }, &mut self.ready);
        } else {
            self.recv.on_error(wc, &mut self.ready);
        }
    }

    #[inline]
    pub(super) fn take_send_completions(&mut self) {
        self.send.take_completions(&mut self.ready);
    }

    pub(super) fn release_held_recvs(&mut self, partial_imm_bytes: Option<u32>) {
        self.recv.release_held(partial_imm_bytes, &mut self.ready);
    }

    pub(super) fn abandon_sends(&mut self, error: UnresolvedError) {
        self.send.abandon(error, &mut self.ready);
    }

    pub(super) fn flush_recvs(&mut self) {
        self.release_held_recvs(None);
        self.recv.flush(&mut self.ready);
    }

    /// The evidence of what this end executed for the peer on the fenced `rail` in `epoch`.
    pub(super) fn collect_evidence(&self, rail: usize, epoch: u16, nic_alive: bool) -> Evidence {
        let mut evidence = Evidence {
            received: self.recv.received_in_epoch,
            lacks_receive: self.recv.len() == 0,
            is_all_placed: nic_alive,
            ..Evidence::default()
        };
        if self.config().decides_by_evidence() {
            evidence.log = self.log.as_ref().and_then(|log| log.last_seq(epoch));
            self.rails.add_evidence(rail, nic_alive, &mut evidence);
        }
        evidence
    }

    /// Decides the operations in flight from the peer's evidence, and prepares their replay. See
    /// [`SendQueue::decide`].
    ///
    /// # Errors
    /// A contradiction in the evidence.
    pub(super) fn decide(
        &mut self,
        input: &RecoveryInput<'_>,
    ) -> Result<Option<RecoveryStats>, Contradiction> {
        self.take_send_completions();
        self.send.decide(input, &self.domain)
    }

    /// What this end's processor has seen of the peer's operations in `epoch`. `None` if the peer
    /// does not wait for this on `rail`.
    pub(super) fn placed(&self, rail: usize, epoch: u16) -> Option<Placed> {
        let attr = self.rails.data_qp(rail)?.provider().attr();
        if !self.config().is_durable() || attr.capabilities.ack_after_placement {
            return None;
        }
        let log = self.log.as_ref().and_then(|log| log.last_seq(epoch));
        Some(Placed { log, received: self.recv.received_in_epoch })
    }

    /// Completes the operations that the peer has confirmed. See [`Config::is_durable`].
    pub(super) fn confirm_sends(&mut self, placed: Placed) {
        self.send.ledger.confirm(placed);
        self.take_send_completions();
    }

    pub(super) fn has_completions(&self) -> bool {
        self.deliverable() > 0 || self.shared.as_ref().is_some_and(SharedReceives::can_match)
    }

    /// The number of completions that may be delivered. A receive that has invalidated a key waits
    /// until no rail grants access by that key.
    #[inline]
    fn deliverable(&self) -> usize {
        if self.windows.is_settled() {
            return self.ready.len();
        }
        let waits = |c: &Completion| c.invalidated.is_some();
        self.ready.iter().position(waits).unwrap_or(self.ready.len())
    }

    #[inline]
    pub(super) fn drain_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        if self.ready.is_empty() && self.shared.is_none() { 0 } else { self.drain_ready(out) }
    }

    fn drain_ready(&mut self, out: &mut Vec<Completion>) -> usize {
        let n = self.deliverable();
        let before = out.len();
        match &mut self.shared {
            Some(shared) => shared.deliver(self.ready.drain(..n), &mut self.recv, out),
            // Mostly there is one completion, for which a pop costs less than a drained range.
            None => (0..n).for_each(|_| out.extend(self.ready.pop_front())),
        }
        out.len() - before
    }

    /// Destroys the queue pairs for binds of type 1 windows, and deregisters the completion log.
    pub(super) fn destroy_queues(&mut self) -> Result<()> {
        let windows = self.windows.destroy();
        self.windows.release(&self.domain);
        windows.and(self.log.as_ref().map_or(Ok(()), |log| self.domain.deregister(log.mr())))
    }
}
