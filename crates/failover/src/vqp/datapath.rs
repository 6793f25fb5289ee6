use std::collections::VecDeque;
use std::sync::Arc;

use mitra_mutants::Mutant;
use mitra_verbs::{Error, Mtu, Psn, QpState, Qpn, RecvWr, Result, RnrTimer, SendWr, Time, Wc, WcStatus};

use crate::ballot::Ballot;
use crate::completion::{Completion, UnresolvedError};
use crate::completion_log::{self, CompletionLog};
use crate::config::{Config, DetectorConfig, WritePolicy};
use crate::connect_info::ConnectInfo;
use crate::domain::{Domain, HomeMove, HomeView, LocalNic};
use crate::evidence::{Contradiction, Evidence, Placed};
use crate::home_rail::Home;
use crate::ledger::{RecoveryInput, RecoveryStats};
use crate::rail::Rail;
use crate::secret::{Secret, SecretWord};
use crate::vqp::failure::Failure;
use crate::vqp::home_membership::HomeMembership;
use crate::vqp::rail_set::RailSet;
use crate::vqp::receive_queue::ReceiveQueue;
use crate::vqp::send_queue::SendQueue;
use crate::vqp::shared_receives::{ReceiveSource, SharedReceives};
use crate::vqp::window_sync::WindowSync;

/// The path of requests and completions between the application and the rails. Its state does not include the progress of a failover.
#[derive(Debug)]
pub(super) struct Datapath {
    domain: Arc<Domain>,
    rails: RailSet,
    send: SendQueue,
    recv: ReceiveQueue,
    /// `None` if the vQP has no shared receive queue.
    shared: Option<SharedReceives>,
    /// The completion log in this end's memory, into which the peer writes entries for its own operations.
    log: Option<CompletionLog>,
    windows: WindowSync,
    home: HomeMembership,
    /// Completions for the application.
    ready: VecDeque<Completion>,
}

impl Datapath {
    /// Creates the rails and queues, unconnected. `own` are the domain's NICs with the vQP's own completion channels, if it has any.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub(super) fn new(
        domain: Arc<Domain>,
        own: Option<&[LocalNic]>,
        config: Config,
        secret: &Secret,
        shared: Option<ReceiveSource>,
    ) -> Result<Datapath> {
        let limits = domain.limits();
        let rails = RailSet::new(&domain, own, config, secret)?;
        let log = match CompletionLog::of_config(&domain, &config) {
            Ok(log) => log,
            Err(error) => {
                let _ = rails.destroy(&domain); // best effort: the caller gets the first error
                return Err(error);
            }
        };
        let send = SendQueue::new(&config, &limits, Mtu::M256, rails.get(0).first_psn(), None);
        let recv = ReceiveQueue::new(limits.message_bytes.into(), config.service);
        let windows = WindowSync::new(&domain);
        let home = HomeMembership::new(&domain);
        let shared = shared.map(|source| SharedReceives::new(source, config.service));
        Ok(Datapath { domain, rails, send, recv, shared, log, windows, home, ready: VecDeque::new() })
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    #[inline]
    pub(super) fn rails(&self) -> &RailSet {
        &self.rails
    }

    pub(super) fn rails_mut(&mut self) -> &mut RailSet {
        &mut self.rails
    }

    #[inline]
    pub(super) fn send(&self) -> &SendQueue {
        &self.send
    }

    #[inline]
    pub(super) fn send_mut(&mut self) -> &mut SendQueue {
        &mut self.send
    }

    pub(super) fn recv(&self) -> &ReceiveQueue {
        &self.recv
    }

    pub(super) fn recv_mut(&mut self) -> &mut ReceiveQueue {
        &mut self.recv
    }

    #[inline]
    pub(super) fn windows(&self) -> &WindowSync {
        &self.windows
    }

    pub(super) fn windows_mut(&mut self) -> &mut WindowSync {
        &mut self.windows
    }

    #[inline]
    pub(super) fn config(&self) -> &Config {
        self.rails.config()
    }

    /// The failure detectors on which both ends have agreed. Before the vQP is connected, those of the configuration.
    pub(super) fn detector(&self) -> &DetectorConfig {
        self.rails.detector()
    }

    #[inline]
    pub(super) fn now(&self) -> Time {
        self.rails.now()
    }

    /// Returns the connection parameters that the peer needs.
    pub(super) fn connect_info(&self, cookie: SecretWord) -> ConnectInfo {
        let config = self.config();
        ConnectInfo {
            cookie,
            service: config.service,
            policy: config.policy,
            log: config.completion_log,
            durable: config.durable,
            preferred_rail: config.preferred_rail,
            rd_atomic: config.rd_atomic,
            heartbeat_interval: config.detector.heartbeat_interval,
            max_missed_heartbeats: config.detector.max_missed_heartbeats,
            rails: self.rails.iter().map(|rail| rail.info()).collect(),
            log_region: self.log.as_ref().and_then(|log| log.offer(config.access)),
        }
    }

    /// Connects every rail to the peer and moves its queue pair to RTR.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the ends' configurations do not match; any error of a NIC.
    pub(super) fn connect(
        &mut self,
        local: &ConnectInfo,
        peer: &ConnectInfo,
        min_rnr_timer: RnrTimer,
    ) -> Result<()> {
        let mismatches = [
            (
                peer.rails.len() != local.rails.len(),
                "the two ends have different numbers of rails; give both the same number (--rails)",
            ),
            (
                peer.service != local.service.of_peer(),
                "one end is a reliable connection and the other an unreliable one, or one is of XRC; create both with the same type, and one end of an XRC connection for sending",
            ),
            (
                peer.policy != local.policy,
                "the two ends have different policies; give both the same (--policy)",
            ),
            (
                peer.preferred_rail != local.preferred_rail,
                "the two ends prefer different rails; give both the same preferred_rail",
            ),
            (peer.rd_atomic != local.rd_atomic, "the two ends have different rd_atomic; give both the same"),
            (peer.cookie == local.cookie, "the two ends have the same secret; draw each at random"),
        ];
        let first = mismatches.into_iter().find(|(mismatch, _)| *mismatch).map(|(_, message)| message);
        let (log, rails) = ((local.log_terms(), peer.log_terms()), peer.rails.len());
        let limits = self.domain.limits();
        let depth = self.config().posted_depth(limits.wrs);
        let mismatch = first.or(completion_log::mismatch(log.0, log.1, depth, rails));
        if let Some(message) = mismatch {
            return Err(Error::Invalid(message));
        }
        let mtu = local.rails.iter().chain(&peer.rails).map(|r| r.mtu).min().unwrap_or(Mtu::M256);
        self.rails.connect(&peer.rails, mtu, min_rnr_timer)?;
        self.rails.agree_on_heartbeats(peer.heartbeat_interval, peer.max_missed_heartbeats);
        let log_region = peer.log_region.clone().filter(|_| peer.log);
        let first_psn = self.rails.get(0).first_psn();
        let mut config = *self.rails.config();
        let acks_after_placement = self.rails.iter().all(Rail::peer_acks_after_placement);
        config.completion_log_interval = completion_log::interval(&config, acks_after_placement);
        self.send = SendQueue::new(&config, &limits, mtu, first_psn, log_region);
        self.send.set_durable(self.is_durable(0));
        Ok(())
    }

    /// Prepares for a send, and checks it. The caller has checked that the vQP is open.
    #[inline]
    pub(super) fn prepare_send(&mut self, wr: &SendWr) -> Result<()> {
        if wr.op.is_local() {
            self.windows.prepare(&wr.op, &self.domain)?;
        }
        self.send.check(wr, self.rails.config(), self.rails.qpn())
    }

    /// Checks a send, except for its remote key. See [`SendQueue::check_shape`].
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

    pub(super) fn shared(&self) -> Option<&SharedReceives> {
        self.shared.as_ref()
    }

    /// Returns whether a message at the front names no shared receive queue of the XRC domain. It is then dropped with those behind it.
    #[inline]
    pub(super) fn take_refused_message(&mut self) -> bool {
        self.shared.as_mut().is_some_and(SharedReceives::take_refused)
    }

    /// Stops the queue pair on which the slots are posted, if they are shorter than a shared receive. A receive cannot be withdrawn from a queue pair. The
    /// vQP therefore moves as if the rail had failed, with longer slots, and a message that does not fit is sent again.
    pub(super) fn stop_short_slots(&mut self) {
        let needs_move =
            self.recv.is_posted() && self.config().requires_fence() && self.config().service.is_reliable();
        if needs_move
            && let Some(shared) = &mut self.shared
            && shared.has_short_slots()
            && shared.begin_lengthening()
        {
            // A dead NIC has failed anyway.
            let _ = self.rails.get(self.recv.rail()).data().modify_to(QpState::Err);
        }
    }

    /// Makes the slots in which messages for shared receives arrive, if a shared receive was posted and they were not made before.
    ///
    /// # Errors
    /// The error of a NIC that refuses to register their memory.
    pub(super) fn make_slots(&mut self) -> Result<()> {
        let max_slots = self.config().recv_wrs;
        match &mut self.shared {
            Some(shared) => shared.make_slots(&self.domain, max_slots, &mut self.recv),
            None => Ok(()),
        }
    }

    /// Posts pending sends on `rail`, at most one burst. See [`SendQueue::post`].
    #[inline]
    pub(super) fn post_sends(&mut self, rail: usize, epoch: u16, replaying: bool) -> Option<Failure> {
        self.send.post(self.rails.get(rail).data(), rail, epoch, &self.domain, replaying)
    }

    /// Records a send, which the caller has checked, and posts it first if it may be posted on the rail `on`. See [`SendQueue::submit`].
    #[inline]
    pub(super) fn submit(
        &mut self,
        wr: SendWr,
        write_policy: WritePolicy,
        on: Option<usize>,
    ) -> (u64, Option<Failure>) {
        let path = on.map(|rail| (self.rails.get(rail).data(), rail));
        self.send.submit(wr, write_policy, path, &self.domain)
    }

    /// Posts the receives on the rail of the receive queue. If none is posted and a shared receive is longer than the slots, they become longer.
    pub(super) fn post_recvs(&mut self) {
        if !self.recv.is_posted()
            && let Some(shared) = &mut self.shared
        {
            // If a NIC refuses the memory, the slots stay as they are.
            let _ = shared.lengthen_slots(self.rails.config().recv_wrs, &mut self.recv);
        }
        self.recv.post(self.rails.get(self.recv.rail()).data(), &self.domain);
    }

    /// Records the successful completion of a send or a log entry on `rail`.
    #[inline]
    pub(super) fn on_send_success(&mut self, rail: usize, wc: &Wc) {
        if let Some(op) = self.send.on_success(wc.wr_id, wc.byte_len) {
            self.windows.on_executed(wc.wr_id, op, rail, &self.domain);
        }
    }

    /// Keeps the windows of the rails in step, and completes the local operation that all NICs have executed. Returns the first failure of a
    /// rail.
    pub(super) fn drive_windows(&mut self, active: usize) -> Option<Failure> {
        let (polled, rails) = ([active, self.recv.rail()], &self.rails);
        let (executed, failure) =
            self.windows.drive(polled, |rail| Some(rails.get(rail).data()), &self.domain);
        if let Some(seq) = executed {
            self.send.complete_local(seq);
        }
        failure
    }

    /// See [`HomeMembership::join`].
    pub(super) fn join_home(&mut self) -> Result<()> {
        self.home.join(&self.domain, &self.rails)
    }

    /// See [`HomeMembership::leave`].
    pub(super) fn leave_home(&mut self) {
        self.home.leave(&self.domain, &self.rails);
    }

    /// See [`HomeMembership::is_at_home`].
    pub(super) fn is_at_home(&self, ballot: Ballot, rail: usize) -> bool {
        self.home.is_at_home(&self.domain, ballot, rail)
    }

    /// See [`HomeMembership::bind`].
    pub(super) fn bind_home(&mut self, ballot: Ballot, to: Home) -> (HomeMove, Option<usize>) {
        self.home.bind(&self.domain, &self.rails, ballot, to)
    }

    /// See [`HomeMembership::view`].
    pub(super) fn view_home(&self, rail: usize) -> Option<HomeView> {
        self.home.view(&self.domain, rail)
    }

    /// See [`HomeMembership::connect_replacement`].
    pub(super) fn connect_replacement(&mut self, rail: (usize, bool), peer: (Qpn, Psn)) -> Result<()> {
        self.home.connect_replacement(&self.domain, &mut self.rails, rail, peer)
    }

    /// Records that a queue pair of a rail was connected.
    pub(super) fn on_qp_connected(&mut self, rail: usize) {
        self.windows.on_connected(rail, &self.domain);
    }

    /// Unbinds the windows that are bound on the vQP: resets the data queue pairs. The vQP has closed.
    pub(super) fn release_windows(&mut self) {
        // A dead NIC grants nothing, or was reset when the vQP closed.
        self.rails.iter().for_each(|rail| drop(rail.modify_to_reset()));
        self.windows.release(&self.domain);
    }

    /// Completes the oldest receive, successfully or not. The completion is one of `rail`.
    #[inline]
    pub(super) fn complete_recv(&mut self, rail: usize, wc: &Wc) {
        // A program may expect the completion of a request before that of its answer, and the NIC has this order.
        self.take_send_completions();
        if wc.status == WcStatus::Success {
            let Some(key) = wc.invalidated else { return self.recv.on_success(wc, &mut self.ready) };
            let invalidated = Some(self.windows.on_invalidated(rail, key, &self.domain));
            self.recv.on_success(&Wc { invalidated, ..*wc }, &mut self.ready);
        } else {
            self.recv.on_error(wc, &mut self.ready);
        }
    }

    /// Moves the completions of ended sends to `ready`.
    #[inline]
    pub(super) fn take_send_completions(&mut self) {
        self.send.take_completions(&mut self.ready);
    }

    /// See [`ReceiveQueue::release_held`].
    pub(super) fn release_held_recvs(&mut self, partial_imm_bytes: Option<u32>) {
        self.recv.release_held(partial_imm_bytes, &mut self.ready);
    }

    /// Ends every send because the vQP has closed. The completions go to `ready`.
    pub(super) fn abandon_sends(&mut self, error: UnresolvedError) {
        self.send.abandon(error, &mut self.ready);
    }

    /// Ends every receive because the vQP has closed. The completions go to `ready`.
    pub(super) fn flush_recvs(&mut self) {
        self.release_held_recvs(None);
        self.recv.flush(&mut self.ready);
    }

    /// Returns the evidence of the operations that this end executed for the peer on the fenced `rail` in `epoch`.
    pub(super) fn collect_evidence(&self, rail: usize, epoch: u16, nic_alive: bool) -> Evidence {
        let mut evidence = Evidence {
            received: self.recv.received_in_epoch(),
            lacks_receive: self.recv.len() == 0,
            ..Evidence::default()
        };
        if self.config().decides_by_evidence() {
            evidence.log = self.log.as_ref().and_then(|log| log.last_seq(epoch));
            self.rails.get(rail).add_evidence(nic_alive, &mut evidence);
        }
        evidence
    }

    /// Decides the operations in flight on the rail `old` from the peer's evidence, and prepares their replay on the rail `new`, on the queue pair
    /// whose first PSN is `first_psn`. For `local_placed`, see [`RecoveryInput`]; for the result, see [`SendQueue::decide`].
    ///
    /// # Errors
    /// A contradiction in the evidence.
    pub(super) fn decide(
        &mut self,
        old: usize,
        (new, first_psn): (usize, Psn),
        evidence: &Evidence,
        local_placed: bool,
    ) -> Result<Option<RecoveryStats>, Contradiction> {
        self.take_send_completions();
        let input = RecoveryInput {
            policy: self.config().policy,
            evidence,
            local_placed,
            acks_after_placement: self.acks_after_placement(old),
            first_psn,
            durable: self.is_durable(new),
        };
        self.send.decide(&input, &self.domain)
    }

    /// Returns whether the peer's NIC of `rail` acknowledges data only after the data is in memory.
    fn acks_after_placement(&self, rail: usize) -> bool {
        let rail = if Mutant::FirstRailDecidesPlacement.is_on() { 0 } else { rail };
        self.rails.get(rail).peer_acks_after_placement()
    }

    /// Returns whether this end's completions on `rail` wait for the peer's confirmation.
    fn is_durable(&self, rail: usize) -> bool {
        let rail = if Mutant::FirstRailDecidesDurability.is_on() { 0 } else { rail };
        self.config().durable && !self.rails.get(rail).peer_acks_after_placement()
    }

    /// Returns what this end's processor has seen of the peer's operations in `epoch`, if the peer waits for that on `rail`.
    pub(super) fn placed(&self, rail: usize, epoch: u16) -> Option<Placed> {
        if !self.config().durable || self.rails.get(rail).acks_after_placement() {
            return None;
        }
        let log = self.log.as_ref().and_then(|log| log.last_seq(epoch));
        Some(Placed { log, received: self.recv.received_in_epoch() })
    }

    /// Completes the operations that the peer has confirmed. See [`Config::durable`].
    pub(super) fn confirm_sends(&mut self, placed: Placed) {
        self.send.confirm(placed);
        self.take_send_completions();
    }

    /// The number of completions that the application has not taken, with those of receives that wait for the peer's Resume.
    pub(super) fn undelivered(&self) -> usize {
        self.ready.len() + self.recv.held()
    }

    /// Returns whether there are completions for the application.
    pub(super) fn has_completions(&self) -> bool {
        self.deliverable() > 0 || self.shared.as_ref().is_some_and(SharedReceives::can_match)
    }

    /// The number of completions that may be delivered. A receive that has invalidated a key waits until no rail grants access by the key.
    #[inline]
    fn deliverable(&self) -> usize {
        if self.windows.is_settled() {
            return self.ready.len();
        }
        let waits = |c: &Completion| c.invalidated.is_some();
        self.ready.iter().position(waits).unwrap_or(self.ready.len())
    }

    /// Moves the completions for the application from `ready` to `out`, and returns their number.
    #[inline]
    pub(super) fn drain_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        if self.ready.is_empty() && self.shared.is_none() { 0 } else { self.drain_ready(out) }
    }

    fn drain_ready(&mut self, out: &mut Vec<Completion>) -> usize {
        let n = self.deliverable();
        let before = out.len();
        match &mut self.shared {
            Some(shared) => shared.deliver(self.ready.drain(..n), &mut self.recv, out),
            // Mostly one completion: a drained range would cost more.
            None => (0..n).for_each(|_| out.extend(self.ready.pop_front())),
        }
        out.len() - before
    }

    /// Destroys the vQP's objects on the NICs.
    pub(super) fn destroy(&mut self) -> Result<()> {
        let rails = self.rails.destroy(&self.domain).and(self.windows.destroy());
        self.windows.release(&self.domain);
        rails.and(self.log.as_ref().map_or(Ok(()), |log| self.domain.deregister(log.mr())))
    }
}
