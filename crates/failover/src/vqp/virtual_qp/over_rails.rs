use std::sync::Arc;

use mitra_verbs::{Access, Gid, Mtu, Qpn, Result, RnrTimer, SendWr, Time};

use super::VirtualQp;
use crate::activity::CountedVqp;
use crate::builder::{BuildError, VirtualQpBuilder, Wakeup};
use crate::close_reason::CloseReason;
use crate::config::{Config, Service, WritePolicy};
use crate::connect_info::ConnectInfo;
use crate::domain::Domain;
use crate::group_member::Member;
use crate::memory_region::RemoteRegion;
use crate::secret::{Secret, SecretWord};
use crate::telemetry::VqpTelemetry;
use crate::vqp::control_protocol::ControlProtocol;
use crate::vqp::datapath::Datapath;
use crate::vqp::event_channels::EventChannels;
use crate::vqp::failover::sealed;
use crate::vqp::group_membership::GroupMembership;
use crate::vqp::maintenance::Maintenance;
use crate::vqp::packet_counts::PacketCounts;
use crate::vqp::rail_set::RailSet;
use crate::vqp::recovery::Recovery;
use crate::vqp::shared_receives::{ReceiveSource, SharedReceives};

/// The failover of a [`VirtualQp`] that has a queue pair on every rail: the vQP negotiates with its
/// peer.
#[derive(Debug)]
pub struct OwnFailover {
    /// The secret that authenticates control messages to this end.
    cookie: SecretWord,
    pub(in crate::vqp) recovery: Recovery,
    pub(in crate::vqp) maintenance: Maintenance,
    /// `None` if the vQP has no completion channels of its own.
    pub(in crate::vqp) events: Option<EventChannels>,
    pub(in crate::vqp) is_destroyed: bool,
    /// Present until the vQP's objects are destroyed.
    counted: Option<CountedVqp>,
    pub(in crate::vqp) telemetry: Arc<VqpTelemetry>,
}

impl sealed::Failover for OwnFailover {
    type Qps = RailSet;
    type Info = ConnectInfo;

    fn local_info(&self, dp: &Datapath) -> ConnectInfo {
        dp.connect_info(self.cookie)
    }

    fn modify_to_rtr(&mut self, dp: &mut Datapath, peer: &ConnectInfo, timer: RnrTimer) -> Result<()> {
        dp.connect(&self.local_info(dp), peer, timer)?;
        dp.home.join(&dp.domain, &dp.rails)?;
        let control = ControlProtocol::new(self.cookie, peer.cookie, dp.rails.len(), dp.config());
        self.recovery.control = Some(control);
        self.recovery.has_settled = true;
        let now = dp.now();
        self.maintenance.start(now);
        self.post_added_recvs(dp);
        self.publish(dp, now);
        Ok(())
    }

    fn modify_to_rts(&mut self, dp: &mut Datapath, rnr_retry: u8) -> Result<()> {
        dp.rails.start_sending(rnr_retry)
    }

    fn set_access(&mut self, dp: &mut Datapath, access: Access) -> Result<()> {
        dp.rails.set_access(access)
    }

    #[inline]
    fn is_connected(&self) -> bool {
        self.recovery.control.is_some()
    }

    #[inline]
    fn may_send(&self) -> bool {
        self.is_connected()
    }

    fn on_import(&mut self, _dp: &mut Datapath, _region: &RemoteRegion) {}

    #[inline]
    fn submit(&mut self, dp: &mut Datapath, wr: SendWr, policy: WritePolicy) -> u64 {
        let limit = self.recovery.replay.limit_of_call();
        let path = limit.and_then(|limit| self.recovery.post_path(dp, Some(&wr), limit));
        let (seq, failure) = dp.submit(wr, policy, path);
        if let Some(failure) = failure {
            self.recovery.fail(dp, failure);
        }
        self.maintain_on_post(dp);
        seq
    }

    #[inline]
    fn post_pending_sends(&mut self, dp: &mut Datapath) {
        if dp.send.ledger.unposted() > 0 && self.recovery.replay.limit_of_call().is_some() {
            self.recovery.post_sends(dp);
        }
        self.maintain_on_post(dp);
    }

    fn post_added_recvs(&mut self, dp: &mut Datapath) {
        self.recovery.post_added_recvs(dp);
    }

    #[inline]
    fn poll(&mut self, dp: &mut Datapath) {
        if self.is_destroyed {
            return;
        }
        let is_due = match &dp.rails.group {
            None => self.maintenance.schedule.on_poll(|| dp.now()),
            Some(group) => {
                self.maintenance.note_progress(&self.recovery, dp);
                self.is_maintenance_of_member_due(group, dp)
            }
        };
        self.recovery.drive_active_rail(dp);
        if is_due || self.recovery.replay.is_failover_in_progress() {
            self.maintenance.schedule.on_maintenance_from_poll();
            self.maintain(dp);
        }
        self.sample_latency(dp);
    }

    fn poll_completions(&mut self, dp: &mut Datapath) {
        if !self.is_destroyed {
            self.recovery.drive_active_rail(dp);
            self.sample_latency(dp);
        }
    }

    fn progress(&mut self, dp: &mut Datapath) {
        if !self.is_destroyed {
            self.recovery.drive_active_rail(dp);
            self.maintain(dp);
            self.sample_latency(dp);
        }
    }

    fn arm(&self, dp: &Datapath) -> Result<()> {
        let rails = [self.recovery.active_rail(), dp.recv.rail()];
        for rail in 0..dp.rails.len() {
            if !rails.contains(&rail) && dp.windows.is_in_step(rail) {
                continue;
            }
            dp.rails.get(rail).data().arm()?;
        }
        Ok(())
    }

    fn resume(&mut self, dp: &mut Datapath) {
        if dp.config().service == Service::Unreliable {
            // The result is ignored: a queue pair that refuses the change has failed, and its
            // failure moves the vQP to the next rail.
            let _ = dp.rails.get(self.recovery.active_rail()).leave_sqe();
        }
    }

    fn with_recovery<T>(&self, read: impl FnOnce(&Recovery) -> T) -> T {
        read(&self.recovery)
    }

    fn rejected_messages(&self) -> u64 {
        self.recovery.control.as_ref().map_or(0, |control| control.rejected)
    }

    fn close(&mut self, dp: &mut Datapath, reason: CloseReason) {
        self.recovery.close(dp, reason);
        // The last maintenance run may be long ago, and a vQP that was not polled had none.
        let now = dp.now();
        self.publish(dp, now);
    }

    fn destroy(&mut self, dp: &mut Datapath) -> Result<()> {
        if core::mem::replace(&mut self.is_destroyed, true) {
            return Ok(());
        }
        drop(self.counted.take());
        self.close(dp, CloseReason::Closed);
        dp.destroy()
    }
}

impl OwnFailover {
    /// Runs maintenance when it is due. A member of the poll group runs maintenance only when it is
    /// woken or a timer is due.
    #[inline]
    fn maintain_on_post(&mut self, dp: &mut Datapath) {
        if dp.rails.group.is_none() && self.maintenance.schedule.on_post(|| dp.now()) {
            self.maintain(dp);
        }
    }

    /// Runs maintenance, and schedules the next run of a member of the poll group.
    fn maintain(&mut self, dp: &mut Datapath) {
        // Members run seldom, and mostly because of an event, so each of their runs is a full run.
        let is_member = dp.rails.member().is_some_and(|member| {
            member.take_maintenance_request();
            true
        });
        self.maintenance.run(&mut self.recovery, dp, is_member);
        self.publish(dp, self.maintenance.schedule.last_maintenance);
        self.recovery.has_settled = false;
        if !is_member {
            return;
        }
        let due = self.maintenance.timers(&self.recovery, dp);
        // A closed vQP answers every message of its peer, also a heartbeat.
        let awaits_heartbeats = dp.termination.is_closed() || !dp.rails.is_heard_on_all_rails();
        if let Some(group) = &mut dp.rails.group {
            group.due = due;
            group.set_active_rail(self.recovery.active_rail());
            group.member.set_awaits_heartbeats(awaits_heartbeats);
        }
    }

    fn is_maintenance_of_member_due(&self, group: &GroupMembership, dp: &Datapath) -> bool {
        if group.member.needs_maintenance() || self.recovery.has_settled {
            return true;
        }
        let waits = dp.send.ledger.unposted() > 0 || dp.windows.is_busy || dp.config().is_durable();
        let interval = waits.then(|| self.maintenance.schedule.next_after_interval());
        let due = [self.maintenance_of_member_at(group, dp), interval].into_iter().flatten().min();
        due.is_some_and(|due| due <= dp.domain.last_poll())
    }

    /// The time of the next maintenance if nothing wakes the vQP.
    fn maintenance_of_member_at(&self, group: &GroupMembership, dp: &Datapath) -> Option<Time> {
        // Without heartbeats, maintenance asks whether a peer that completes nothing still runs.
        let asks = !dp.has_heartbeats() && !dp.send.ledger.is_empty();
        let ask_at =
            asks.then(|| self.maintenance.schedule.last_maintenance + dp.config().control_retry_interval);
        let question = self.maintenance.next_question(&self.recovery, dp);
        [group.due, ask_at, question].into_iter().flatten().min()
    }

    /// See [`VirtualQp::next_poll`].
    fn needs_poll(&self, dp: &Datapath, group: &GroupMembership) -> bool {
        group.member.needs_maintenance()
            || self.recovery.needs_poll()
            || dp.windows.is_busy
            || !dp.termination.is_closed() && (dp.config().is_durable() || dp.send.ledger.unposted() > 0)
            || self.recovery.control.is_some()
                && !dp.termination.is_closed()
                && dp.shared.as_ref().is_some_and(SharedReceives::needs_slots)
    }
}

impl VirtualQp {
    /// A builder of one end over the NICs of a domain, with defaults for every setting.
    pub fn builder(domain: &Arc<Domain>) -> VirtualQpBuilder {
        VirtualQpBuilder::new(domain)
    }

    /// Creates one end, unconnected, after the builder has checked the configuration.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub(crate) fn new(
        domain: Arc<Domain>,
        config: Config,
        secret: Secret,
        wakeup: Wakeup,
        shared: Option<ReceiveSource>,
    ) -> Result<VirtualQp> {
        let (own, group) = match wakeup {
            Wakeup::None => (None, None),
            Wakeup::OwnChannels => (Some(domain.nics_with_new_channels()?), None),
            Wakeup::Waker(waker) => (None, Some(GroupMembership::new(&domain, Member::new(waker)))),
        };
        let telemetry = domain.telemetry().add_vqp();
        let failover = OwnFailover {
            cookie: secret.cookie,
            events: own.as_deref().map(EventChannels::new),
            counted: Some(domain.counters().count_vqp()),
            recovery: Recovery::new(Arc::clone(&telemetry)),
            // Made before the rails read the addresses, so that no change is missed.
            maintenance: Maintenance::new(&domain),
            is_destroyed: false,
            telemetry,
        };
        let datapath = Datapath::over_rails(domain, own.as_deref(), config, &secret, shared, group)?;
        let mut vqp = VirtualQp { failover, datapath };
        let now = vqp.datapath.now();
        vqp.failover.publish(&mut vqp.datapath, now);
        Ok(vqp)
    }

    /// The queue pair number, which failovers do not change: the number of the first queue pair on
    /// rail 0 or, if that NIC was dead, on the first live NIC. [`VirtualQp::reset_replacement`]
    /// transfers the number to the new vQP.
    pub fn qpn(&self) -> Qpn {
        self.datapath.rails.qpn()
    }

    /// Unbinds the type 2 windows of a closed vQP, as a reset or destroyed queue pair does. Does
    /// nothing if the vQP is open.
    pub fn release_windows(&mut self) {
        if self.datapath.termination.is_closed() && !self.failover.is_destroyed {
            self.datapath.release_windows();
        }
    }

    /// The last known addresses of the peer's NICs, by rail. Empty before the vQP is connected.
    pub fn peer_gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.datapath.rails.iter().filter_map(|rail| rail.peer_address()).map(|(gid, _)| gid)
    }

    /// Begins with this epoch and this sequence number, to test what happens when the numbers are
    /// used up. Both ends must call this method after connecting, before they poll or post.
    #[doc(hidden)]
    pub fn begin_at(&mut self, epoch: u16, seq: u64) {
        if let Some(negotiation) = self.failover.recovery.negotiation_mut() {
            negotiation.begin_at(epoch);
            self.datapath.send.ledger.begin_at(seq);
        }
    }

    /// Returns whether a message of the peer has arrived on any rail since this end was connected.
    /// If so, the peer is connected too.
    pub fn is_peer_heard(&self) -> bool {
        self.datapath.rails.is_peer_heard()
    }

    /// Lets an unreliable connection send messages on the active rail although the peer was not
    /// heard there. The permission ends when the peer is heard on any rail. For a caller that knows
    /// that the peer is not connected and accepts that the messages are lost. Has no effect on a
    /// reliable connection.
    pub fn send_to_unheard_peer(&mut self) {
        self.datapath.rails.sends_unheard = true;
    }

    /// Sets [`Config::max_path_mtu`]. Takes effect when the vQP is connected.
    pub fn set_max_path_mtu(&mut self, mtu: Mtu) {
        self.datapath.rails.set_max_path_mtu(mtu);
    }

    /// The numbers of packets of all requests, over all rails. They have the meaning of
    /// [`QpStatus::sq_psn`](mitra_verbs::QpStatus) and `rq_psn` less the first PSN, and include the
    /// vQP's own packets: entries of the peer's completion log, and headers of XRC messages.
    ///
    /// At a failover, all packets of posted requests count as sent, and do not count again when the
    /// requests are replayed. Packets that the peer sends again count as received again. If the NIC
    /// of the old rail has died or the connection is unreliable, packets that have arrived there
    /// since the last call do not count.
    pub fn packet_counts(&mut self) -> PacketCounts {
        let (active, dp) = (self.failover.recovery.active_rail(), &mut self.datapath);
        dp.packets.counts(&dp.rails, active, dp.recv.rail(), &dp.send.ledger)
    }

    /// Returns whether sends are posted at once: the vQP is connected and open, and fences no rail.
    pub fn is_active(&self) -> bool {
        self.failover.recovery.may_post()
    }

    /// Returns whether the vQP is active and the peer has confirmed the last move.
    pub fn is_move_confirmed(&self) -> bool {
        self.failover.recovery.is_move_confirmed()
    }

    /// The latest time for the next [`VirtualQp::poll`] of an end that waits for events. `None` if
    /// no timer is running.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.failover.maintenance.poll_timeout(&self.failover.recovery, &self.datapath)
    }

    /// The time at which a vQP with a waker ([`VirtualQpBuilder::waker`]) is to be polled even if
    /// nothing wakes it. [`Time::ZERO`] if it is to be polled again at once. `None` if it waits for
    /// its waker alone, and for a vQP without a waker. Each call of another method may change the
    /// time. Completions that wait for [`VirtualQp::poll`] do not count
    /// ([`VirtualQp::has_completions`]).
    pub fn next_poll(&self) -> Option<Time> {
        let group = self.datapath.rails.group.as_ref().filter(|_| !self.failover.is_destroyed)?;
        if self.failover.needs_poll(&self.datapath, group) {
            return Some(Time::ZERO);
        }
        self.failover.maintenance_of_member_at(group, &self.datapath)
    }

    /// Shuts this vQP down and returns an unconnected vQP with the same number, like a queue pair
    /// after RESET. The caller polls the old vQP for some time, so that its Closed message reaches
    /// the peer, and then closes the old vQP.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`], after which this vQP is still open; any error of
    /// a NIC, after which this vQP is shut down.
    pub fn reset_replacement(&mut self) -> Result<VirtualQp, BuildError> {
        self.replacement_in(&Arc::clone(self.domain()))
    }

    /// Like [`VirtualQp::reset_replacement`], with the new vQP in another domain over the same NICs
    /// ([`Domain::with_own_pds`]).
    ///
    /// # Errors
    /// As [`VirtualQp::reset_replacement`].
    pub fn replacement_in(&mut self, domain: &Arc<Domain>) -> Result<VirtualQp, BuildError> {
        let mut builder =
            VirtualQp::builder(domain).config(self.config()).own_channels(self.failover.events.is_some());
        if let Some(member) = self.datapath.rails.member() {
            builder = builder.waker(member.waker().clone());
        }
        if let Some(shared) = &self.datapath.shared {
            builder = builder.receive_source(shared.source.clone());
        }
        let mut replacement = builder.build()?;
        self.shutdown();
        let to = &mut replacement.datapath.rails;
        if let Err(error) = self.datapath.rails.transfer_qpn(to) {
            let _ = replacement.close(); // best effort: the caller gets the first error
            return Err(error.into());
        }
        Ok(replacement)
    }
}
