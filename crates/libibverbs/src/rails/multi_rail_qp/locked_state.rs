//! The state of a [`super::MultiRailQp`] under its lock.

use std::collections::VecDeque;
use std::time::Instant;

use mitra_failover::{Completion, ConnectInfo, VirtualQp};
use mitra_verbs::{QpAttr, QpState, Result, RnrTimer, SendWr};

use crate::rails::multi_rail_domain::MultiRailDomain;
use crate::rails::peer_closed::PeerClosed;
use crate::rails::peer_region_keys::RegionKeys;
use crate::rails::srq_arrival_ring::BounceRing;

/// The part of a queue pair that changes.
pub(super) struct LockedState {
    pub(super) vqp: VirtualQp,
    /// The sending half of a queue pair that is connected to itself. `vqp` is its peer then, and receives.
    pub(super) sender: Option<VirtualQp>,
    pub(super) state: QpState,
    /// Set by `ibv_destroy_qp`. Nothing completes afterwards.
    pub(super) destroyed: bool,
    /// The attributes that the program has set.
    pub(super) attr: QpAttr,
    pub(super) region_keys: RegionKeys,
    /// Posted sends that wait for the keys of a region of the peer, and all sends posted behind them, in posting order.
    pub(super) deferred: VecDeque<SendWr>,
    /// The time since when the oldest deferred send waits to fail, behind sends that are outstanding.
    pub(super) failing_since: Option<Instant>,
    /// Reused by every poll.
    pub(super) scratch: Vec<Completion>,
    /// Present once the peer has closed its end.
    pub(super) peer_closed: Option<PeerClosed>,
    /// Present once the queue pair receives messages for a shared receive queue.
    pub(super) bounce_ring: Option<BounceRing>,
    /// The epoch of the last failover that was logged.
    pub(super) logged_epoch: Option<u16>,
    /// Whether `IBV_EVENT_QP_LAST_WQE_REACHED` was reported.
    pub(super) last_wqe_reported: bool,
    /// Whether the event of a peer's invalid request was reported.
    pub(super) request_error_reported: bool,
    /// Unresolved errors that were logged.
    pub(super) logged_errors: u32,
}

impl LockedState {
    /// Creates the state of a queue pair in RESET.
    pub(super) fn new(vqp: VirtualQp) -> LockedState {
        LockedState {
            vqp,
            sender: None,
            state: QpState::Reset,
            destroyed: false,
            attr: QpAttr::default(),
            region_keys: RegionKeys::default(),
            deferred: VecDeque::new(),
            failing_since: None,
            scratch: Vec::new(),
            peer_closed: None,
            bounce_ring: None,
            logged_epoch: None,
            last_wqe_reported: false,
            request_error_reported: false,
            logged_errors: 0,
        }
    }

    /// Returns the virtual queue pair that sends.
    pub(super) fn sender(&mut self) -> &mut VirtualQp {
        self.sender.as_mut().unwrap_or(&mut self.vqp)
    }

    /// Returns the virtual queue pair, or both halves of one that is connected to itself.
    pub(super) fn vqps(&mut self) -> impl Iterator<Item = &mut VirtualQp> {
        std::iter::once(&mut self.vqp).chain(&mut self.sender)
    }

    /// Shuts down the virtual queue pairs, which tells the peer.
    pub(super) fn shutdown(&mut self) {
        self.vqps().for_each(VirtualQp::shutdown);
    }

    /// Enters ERR, as a queue pair of a NIC does at its first error. Requests behind the error are flushed.
    pub(super) fn fail(&mut self) {
        if self.state != QpState::Err {
            self.state = QpState::Err;
            self.shutdown();
        }
    }

    /// Connects the queue pair to itself, through a second virtual queue pair that sends.
    ///
    /// # Errors
    /// As [`VirtualQp::new`].
    pub(super) fn connect_to_itself(
        &mut self,
        domain: &MultiRailDomain,
        min_rnr_timer: RnrTimer,
    ) -> Result<ConnectInfo> {
        let mut sender = domain.duplicate(&self.vqp)?;
        let info = self.vqp.local_info()?;
        self.vqp.modify_to_rtr(&sender.local_info()?, min_rnr_timer)?;
        sender.modify_to_rtr(&info, min_rnr_timer)?;
        self.sender = Some(sender);
        Ok(info)
    }
}
