//! The part of a [`super::MultiRailQp`] that its lock protects.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use mitra_failover::{Completion, ConnectInfo, Service, VirtualQp};
use mitra_verbs::{Access, Error, Gid, QpAttr, QpState, Result, RnrTimer, SendWr};

use super::Peer;
use super::first_contact::FirstContact;
use super::pending_connection::PendingConnection;
use crate::rails::peer_closed::PeerClosed;
use crate::rails::peer_region_keys::RegionKeys;
use crate::rails::rail_address::Endpoint;
use crate::rails::rendezvous::{DeviceGid, Terms};

pub(super) struct LockedState {
    /// The virtual queue pair that receives, and usually also sends.
    pub(super) vqp: VirtualQp,
    /// The virtual queue pair that sends, if the queue pair is connected to itself. Its peer is
    /// `vqp`.
    pub(super) sender: Option<VirtualQp>,
    pub(super) state: QpState,
    /// The terms in the last query for this queue pair's connection data.
    pub(super) stated: Option<StatedTerms>,
    /// The connection that waits until the peer resets its queue pair. Until then, sends are
    /// deferred.
    pub(super) pending: Option<PendingConnection>,
    /// The wait for the peer's first message. `None` if the queue pair is reliable or not
    /// connected, or has heard the peer.
    pub(super) first_contact: Option<FirstContact>,
    /// Whether `ibv_destroy_qp` has destroyed the queue pair. A destroyed queue pair reports no
    /// completions.
    pub(super) destroyed: bool,
    /// The attributes that the program has set.
    pub(super) attr: QpAttr,
    /// How queries reach the peer's process.
    pub(super) peer_endpoint: Endpoint,
    pub(super) region_keys: RegionKeys,
    /// The sends that are deferred because the keys of a region of the peer are unknown, and all
    /// sends posted after them, in posting order.
    pub(super) deferred: VecDeque<SendWr>,
    /// The time at which the oldest deferred send was found to fail while earlier sends were still
    /// outstanding. `None` if no deferred send waits to fail.
    pub(super) failing_since: Option<Instant>,
    /// The buffer for completions, which every poll reuses.
    pub(super) scratch: Vec<Completion>,
    /// The completions that are withheld because the peer has closed its end. `None` until then.
    pub(super) peer_closed: Option<PeerClosed>,
    /// The epoch of the last failover that was logged.
    pub(super) logged_epoch: Option<u16>,
    /// Whether `IBV_EVENT_QP_LAST_WQE_REACHED` was reported.
    pub(super) last_wqe_reported: bool,
    /// Whether `IBV_EVENT_COMM_EST` was reported.
    pub(super) established_reported: bool,
    /// Whether `IBV_EVENT_SQ_DRAINED` was reported since the last change to SQD.
    pub(super) drain_reported: bool,
    /// Whether an asynchronous event about an invalid request of the peer was reported.
    pub(super) request_error_reported: bool,
    /// The number of unresolved errors that were logged.
    pub(super) logged_errors: u32,
}

/// The terms that a peer has stated.
pub(super) struct StatedTerms {
    /// The address from which the query came.
    pub(super) from: Gid,
    /// The GID of the sender's device, as the sender states it.
    pub(super) device: DeviceGid,
    pub(super) terms: Terms,
}

impl LockedState {
    pub(super) fn new(vqp: VirtualQp) -> LockedState {
        let names_queues = vqp.config().service == Service::XrcSend;
        LockedState {
            vqp,
            sender: None,
            state: QpState::Reset,
            stated: None,
            pending: None,
            first_contact: None,
            destroyed: false,
            attr: QpAttr::default(),
            peer_endpoint: Endpoint::Any,
            region_keys: RegionKeys::new(names_queues),
            deferred: VecDeque::new(),
            failing_since: None,
            scratch: Vec::new(),
            peer_closed: None,
            logged_epoch: None,
            last_wqe_reported: false,
            established_reported: false,
            drain_reported: false,
            request_error_reported: false,
            logged_errors: 0,
        }
    }

    pub(super) fn terms(&self) -> Terms {
        Terms::new(&self.vqp.config(), self.vqp.domain().nics().len())
    }

    /// Returns why there is no connection to the device with the GID `peer`, which did not answer
    /// with connection data. If the device has stated terms that do not fit, its program has
    /// probably ended because of them. Nothing authenticates the stated terms, so they explain an
    /// error, and cause none.
    pub(super) fn explain_missing_data(&self, error: Error, peer: Gid) -> Error {
        let from_peer = |stated: &&StatedTerms| stated.from == peer || stated.device.includes(peer);
        match (&error, self.stated.as_ref().filter(from_peer)) {
            (Error::Invalid(_), Some(stated)) => self.terms().check(&stated.terms).err().unwrap_or(error),
            _ => error,
        }
    }

    /// Connects all rails to the peer with these connection data, for receiving. `endpoint` is that
    /// of the peer's process on all rails.
    ///
    /// # Errors
    /// The errors of [`VirtualQp::modify_to_rtr`].
    pub(super) fn connect_to(
        &mut self,
        info: &ConnectInfo,
        endpoint: Endpoint,
        min_rnr_timer: RnrTimer,
    ) -> Result<Peer> {
        self.peer_endpoint = endpoint;
        self.vqp.modify_to_rtr(info, min_rnr_timer)?;
        self.first_contact = (self.vqp.config().service == Service::Unreliable).then(FirstContact::default);
        Ok(Peer::of(info))
    }

    pub(super) fn sender(&mut self) -> &mut VirtualQp {
        self.sender.as_mut().unwrap_or(&mut self.vqp)
    }

    /// Returns the virtual queue pair, or both virtual queue pairs if the queue pair is connected
    /// to itself.
    pub(super) fn vqps(&mut self) -> impl Iterator<Item = &mut VirtualQp> {
        std::iter::once(&mut self.vqp).chain(&mut self.sender)
    }

    /// Shuts down the virtual queue pairs, which tell the peer that the connection has ended. No
    /// longer waits for a connection.
    pub(super) fn shutdown(&mut self) {
        self.pending = None;
        self.vqps().for_each(VirtualQp::shutdown);
    }

    /// Sets the operations that the peer may request. `None` permits no operation.
    ///
    /// # Errors
    /// The errors of [`VirtualQp::set_access`].
    pub(super) fn set_access(&mut self, access: Option<Access>) -> Result<()> {
        self.vqps().try_for_each(|vqp| vqp.set_access(access.unwrap_or(Access::empty())))
    }

    /// Enters ERR, as a queue pair of a NIC does at its first error. Requests after the one that
    /// failed are flushed.
    pub(super) fn fail(&mut self) {
        if self.state != QpState::Err {
            self.state = QpState::Err;
            self.shutdown();
        }
    }

    /// Connects the queue pair to itself, through a second virtual queue pair that sends. `waker`
    /// is the waker of `vqp`.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`](mitra_failover::VirtualQpBuilder::build) and
    /// [`VirtualQp::modify_to_rtr`].
    pub(super) fn connect_to_itself(&mut self, min_rnr_timer: RnrTimer, waker: Waker) -> Result<Peer> {
        let builder = VirtualQp::builder(self.vqp.domain()).config(self.vqp.config());
        let mut sender = builder.waker(waker).build()?;
        let info = self.vqp.local_info();
        self.vqp.modify_to_rtr(&sender.local_info(), min_rnr_timer)?;
        sender.modify_to_rtr(&info, min_rnr_timer)?;
        self.sender = Some(sender);
        Ok(Peer::of(&info))
    }
}
