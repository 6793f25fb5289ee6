//! Connecting and destroying a datapath over the rails of a vQP.

use std::sync::Arc;

use mitra_mutants::Mutant;
use mitra_verbs::{Error, Mtu, QpState, Qpn, Result, RnrTimer};

use super::{DataQps, Datapath};
use crate::completion_log::CompletionLog;
use crate::config::{Config, DetectorConfig};
use crate::connect_info::ConnectInfo;
use crate::data_qp::DataQp;
use crate::domain::Domain;
use crate::evidence::Evidence;
use crate::local_nic::LocalNic;
use crate::rail::Rail;
use crate::secret::{Secret, SecretWord};
use crate::vqp::group_membership::GroupMembership;
use crate::vqp::rail_set::RailSet;
use crate::vqp::shared_receives::ReceiveSource;

impl DataQps for RailSet {
    #[inline]
    fn data_qp(&self, rail: usize) -> Option<&DataQp> {
        Some(self.get(rail).data())
    }

    #[inline]
    fn config(&self) -> &Config {
        RailSet::config(self)
    }

    #[inline]
    fn qpn(&self) -> Qpn {
        RailSet::qpn(self)
    }

    fn add_evidence(&self, rail: usize, nic_alive: bool, evidence: &mut Evidence) {
        self.get(rail).add_evidence(nic_alive, evidence);
    }
}

impl Datapath {
    /// Creates the rails and queues, unconnected. `own` are the domain's NICs with completion
    /// channels of this vQP. `group` is present for a member of the poll group.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub(in crate::vqp) fn over_rails(
        domain: Arc<Domain>,
        own: Option<&[LocalNic]>,
        config: Config,
        secret: &Secret,
        shared: Option<ReceiveSource>,
        group: Option<GroupMembership>,
    ) -> Result<Datapath> {
        let rails = RailSet::new(&domain, own, config, secret, group)?;
        let log = CompletionLog::of_config(&domain, &config).inspect_err(|_| {
            let _ = rails.destroy(&domain); // best effort: the caller gets the first error
        })?;
        let first_psn = rails.get(0).first_psn();
        let home = domain.new_home_member();
        let mut dp = Datapath::new(domain, home, rails, first_psn, log, shared);
        if let (Some(shared), Some(member)) = (&mut dp.shared, dp.rails.member()) {
            shared.join_group(member);
        }
        Ok(dp)
    }

    pub(in crate::vqp) fn detector(&self) -> &DetectorConfig {
        &self.rails.detector
    }

    pub(in crate::vqp) fn has_heartbeats(&self) -> bool {
        self.rails.detector.max_missed_heartbeats > 0
    }

    pub(in crate::vqp) fn connect_info(&self, cookie: SecretWord) -> ConnectInfo {
        let config = self.config();
        ConnectInfo {
            cookie,
            service: config.service,
            policy: config.policy,
            log: config.completion_log.is_some(),
            durable: config.is_durable(),
            preferred_rail: config.failback.map(|failback| failback.rail),
            rd_atomic: config.rd_atomic,
            heartbeat_interval: config.detector.heartbeat_interval,
            max_missed_heartbeats: config.detector.max_missed_heartbeats,
            rails: self.rails.iter().map(|rail| rail.info()).collect(),
            log_region: self.log_offer(),
        }
    }

    /// Connects every rail to the peer and moves its queue pair to RTR.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the ends' configurations do not match; any error of a NIC.
    pub(in crate::vqp) fn connect(
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
                "the two ends prefer different rails; give both the same failback.rail",
            ),
            (peer.rd_atomic != local.rd_atomic, "the two ends have different rd_atomic; give both the same"),
            (peer.cookie == local.cookie, "the two ends have the same secret; draw each at random"),
        ];
        let first = mismatches.into_iter().find(|(mismatch, _)| *mismatch).map(|(_, message)| message);
        if let Some(message) = first {
            return Err(Error::Invalid(message));
        }
        self.check_logs(local.log_terms(), peer.log_terms())?;
        let mtu = local.rails.iter().chain(&peer.rails).map(|r| r.mtu).min().unwrap_or(Mtu::M256);
        let mtu = mtu.min(self.config().max_path_mtu);
        self.rails.connect(&peer.rails, mtu, min_rnr_timer)?;
        self.rails.agree_on_heartbeats(peer.heartbeat_interval, peer.max_missed_heartbeats);
        let first_psn = self.rails.get(0).first_psn();
        let acks_after_placement = self.rails.iter().all(Rail::peer_acks_after_placement);
        self.begin(mtu, first_psn, peer.log_terms(), acks_after_placement);
        self.send.ledger.set_durable(self.is_durable(0));
        Ok(())
    }

    /// Stops the queue pair if its slots (see `shared_receives`) are shorter than a shared receive.
    /// Slots that are posted cannot be withdrawn in any other way. The vQP then moves as after a
    /// failure of the rail, and posts longer slots. If a message did not fit, the peer sends the
    /// message again.
    #[inline]
    pub(in crate::vqp) fn stop_short_slots(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        let config = self.rails.config();
        if shared.has_short_slots()
            && self.recv.is_posted()
            && config.requires_fence()
            && config.service.is_reliable()
            && !self.termination.is_closed()
            && shared.begin_lengthening()
        {
            // A dead NIC has failed anyway.
            let _ = self.rails.get(self.recv.rail()).data().modify_to(QpState::Err);
        }
    }

    /// Unbinds the windows of a closed vQP by a reset of its data queue pairs.
    pub(in crate::vqp) fn release_windows(&mut self) {
        // The result is ignored: a NIC that refuses is dead and grants no access, or the queue pair
        // was already reset when the vQP closed.
        self.rails.iter().for_each(|rail| drop(rail.modify_to_reset()));
        self.windows.release(&self.domain);
    }

    /// Returns whether the peer's NIC of `rail` acknowledges data only after placing it in memory.
    pub(in crate::vqp) fn acks_after_placement(&self, rail: usize) -> bool {
        let rail = if Mutant::FirstRailDecidesPlacement.is_on() { 0 } else { rail };
        self.rails.get(rail).peer_acks_after_placement()
    }

    /// Returns whether this end's completions on `rail` wait for the peer's confirmation.
    pub(in crate::vqp) fn is_durable(&self, rail: usize) -> bool {
        let rail = if Mutant::FirstRailDecidesDurability.is_on() { 0 } else { rail };
        self.config().is_durable() && !self.rails.get(rail).peer_acks_after_placement()
    }

    pub(in crate::vqp) fn destroy(&mut self) -> Result<()> {
        let rails = self.rails.destroy(&self.domain);
        rails.and(self.destroy_queues())
    }
}
