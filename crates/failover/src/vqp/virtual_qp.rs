//! [`VirtualQp`]: making, connecting, driving and closing a virtual queue pair. Posting is in `virtual_qp/posting.rs`.

mod posting;

use core::fmt;
use std::sync::Arc;

use mitra_verbs::{Access, AsyncEvent, CqId, Error, Gid, Qpn, Result, RnrTimer, Time};

use crate::activity::CountedVqp;
use crate::builder::{BuildError, VirtualQpBuilder};
use crate::close_reason::CloseReason;
use crate::completion::Completion;
use crate::config::{Config, Service};
use crate::connect_info::ConnectInfo;
use crate::domain::Domain;
use crate::evidence::Contradiction;
use crate::secret::{Secret, SecretWord};
use crate::telemetry::{LatencySampler, VqpTelemetry};
use crate::vqp::control_protocol::ControlProtocol;
use crate::vqp::datapath::Datapath;
use crate::vqp::event_channels::EventChannels;
use crate::vqp::maintenance::Maintenance;
use crate::vqp::recovery::Recovery;
use crate::vqp::shared_receives::{ReceiveSource, SharedReceives, has_failed};
use crate::vqp::xrc_messages::SentHeaders;
use crate::vqp::{FailoverReport, StateLengths};

/// A connection over several rails that survives the loss of a rail. It is reliable, unless [`Config::service`] says otherwise.
///
/// [`VirtualQp::poll`] drives the vQP, which makes no progress between two calls. An end that posts nothing and only exposes memory to its
/// peer must also poll, or call [`VirtualQp::progress`]. Otherwise it cannot take part in a failover. The crate `mitra-driver` makes these calls
/// on a thread or from an event loop.
///
/// Dropping a vQP closes it as [`VirtualQp::close`] does, without the errors of its NICs.
pub struct VirtualQp {
    /// The secret that authenticates control messages to this end.
    cookie: SecretWord,
    pub(super) datapath: Datapath,
    pub(super) recovery: Recovery,
    pub(super) maintenance: Maintenance,
    /// `None` if the vQP has no completion channels of its own.
    pub(super) events: Option<EventChannels>,
    /// Whether the vQP's objects have been destroyed on the NICs.
    pub(super) is_destroyed: bool,
    /// Present until then.
    counted: Option<CountedVqp>,
    pub(super) telemetry: Arc<VqpTelemetry>,
    pub(super) latency: LatencySampler,
    /// `None` unless the vQP is the sending end of an XRC connection.
    xrc_headers: Option<SentHeaders>,
}

impl VirtualQp {
    /// Returns a builder of one end over the NICs of a domain, with a default for everything.
    pub fn builder(domain: &Arc<Domain>) -> VirtualQpBuilder {
        VirtualQpBuilder::new(domain)
    }

    /// Creates one end, unconnected. The builder has checked the configuration. `own_channels` replaces the domain's completion channels by
    /// channels of this vQP.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub(crate) fn new(
        domain: Arc<Domain>,
        config: Config,
        secret: Secret,
        own_channels: bool,
        shared: Option<ReceiveSource>,
    ) -> Result<VirtualQp> {
        let own = own_channels.then(|| domain.nics_with_new_channels()).transpose()?;
        let telemetry = domain.telemetry().add_vqp();
        // Before the rails read the addresses, so that no change is missed.
        let maintenance = Maintenance::new(&domain);
        Ok(VirtualQp {
            cookie: secret.cookie,
            events: own.as_deref().map(EventChannels::new),
            counted: Some(domain.counters().count_vqp()),
            datapath: Datapath::new(domain, own.as_deref(), config, &secret, shared)?,
            recovery: Recovery::new(Arc::clone(&telemetry)),
            maintenance,
            is_destroyed: false,
            telemetry,
            latency: LatencySampler::default(),
            xrc_headers: (config.service == Service::XrcSend).then(SentHeaders::default),
        })
    }

    /// The queue pair number, which does not change across failovers: the number of the first queue pair on rail 0, or on the first rail whose NIC
    /// was alive, or the number taken over by [`VirtualQp::reset_replacement`].
    pub fn qpn(&self) -> Qpn {
        self.datapath.rails().qpn()
    }

    /// The configuration.
    pub fn config(&self) -> Config {
        *self.datapath.config()
    }

    /// The domain whose NICs and memory the vQP uses.
    pub fn domain(&self) -> &Arc<Domain> {
        self.datapath.domain()
    }

    /// Unbinds the type 2 windows that are bound on the vQP, as a queue pair does that is reset or destroyed. Does nothing if the vQP is
    /// open.
    pub fn release_windows(&mut self) {
        if self.recovery.is_closed() && !self.is_destroyed {
            self.datapath.release_windows();
        }
    }

    /// Returns the parameters that the peer needs for [`VirtualQp::connect`].
    ///
    /// # Errors
    /// None at present: the parameters are also known if a NIC has died since the vQP was made.
    pub fn local_info(&self) -> Result<ConnectInfo> {
        Ok(self.datapath.connect_info(self.cookie))
    }

    /// Returns the addresses of the peer's NICs by rail, as far as this end knows them: they may have changed. Nothing before the vQP is
    /// connected.
    pub fn peer_gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.datapath.rails().iter().filter_map(|rail| rail.peer_address()).map(|(gid, _)| gid)
    }

    /// Connects every rail to the peer. Neither end may post a send before both ends have called this.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the vQP is connected already or has closed, or if the two ends' configurations do not match; [`Error::Unsupported`] if its policy is
    /// not exact and its domain shares atomics ([`Domain::share_atomics`]); any error of a NIC.
    pub fn connect(&mut self, peer: &ConnectInfo) -> Result<()> {
        self.modify_to_rtr(peer, self.config().min_rnr_timer)?;
        self.modify_to_rts(self.config().rnr_retry)
    }

    /// Connects every rail to the peer and moves its queue pair to RTR, where it receives: the first half of [`VirtualQp::connect`].
    ///
    /// # Errors
    /// As [`VirtualQp::connect`].
    pub fn modify_to_rtr(&mut self, peer: &ConnectInfo, min_rnr_timer: RnrTimer) -> Result<()> {
        if self.recovery.control().is_some() {
            return Err(Error::Invalid("this virtual queue pair is connected already"));
        }
        self.check_not_closed()?;
        self.datapath.connect(&self.local_info()?, peer, min_rnr_timer)?;
        self.datapath.join_home()?;
        let rails = self.datapath.rails().len();
        let control = ControlProtocol::new(self.cookie, peer.cookie, rails, self.datapath.config());
        self.recovery.start_control(control);
        self.maintenance.start(self.datapath.now());
        self.post_slots();
        self.recovery.post_added_recvs(&mut self.datapath);
        self.publish();
        Ok(())
    }

    /// Moves the queue pair of every rail to RTS, where it sends: the second half of [`VirtualQp::connect`]. `rnr_retry` is the number of
    /// retries after an RNR NAK; the value 7 means no limit.
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`] on a rail that has failed already.
    pub fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        self.datapath.rails_mut().start_sending(rnr_retry)
    }

    /// Begins with this epoch and this sequence number, to test what happens when they are used up. Both ends must do so when they are connected, before
    /// they are polled or post.
    #[doc(hidden)]
    pub fn begin_at(&mut self, epoch: u16, seq: u64) {
        if let Some(control) = self.recovery.control_mut() {
            control.negotiation_mut().begin_at(epoch);
            self.datapath.send_mut().begin_at(seq);
        }
    }

    /// Changes the operations that the peer may request: [`Config::access`]. An operation of the peer that was executed before stays executed.
    /// If [`Access::REMOTE_WRITE`] is taken away after the peer has connected with a completion log, the peer's atomics fail too, because
    /// the log entries behind them are refused.
    ///
    /// After [`VirtualQp::modify_to_rtr`], the change takes effect with [`VirtualQp::modify_to_rts`], because a queue pair in RTR keeps its rights.
    ///
    /// # Errors
    /// The first error of a NIC. A NIC that is dead is reset, because it may only be hung and still grant the old rights.
    pub fn set_access(&mut self, access: Access) -> Result<()> {
        if self.is_destroyed || self.recovery.is_closed() {
            return Ok(()); // the peer may request nothing more
        }
        self.datapath.rails_mut().set_access(access)
    }

    /// Posts the slots in which messages for shared receives arrive, if a shared receive was posted, and has them replaced if they are too short. If a NIC refuses their memory, the vQP has no
    /// receives, and the peer's messages are answered with RNR NAKs until a later attempt succeeds.
    #[inline]
    pub(super) fn post_slots(&mut self) {
        let Some(shared) = self.datapath.shared() else { return };
        if shared.needs_slots() {
            self.make_slots();
        } else if shared.has_short_slots() && !self.recovery.is_closed() {
            self.datapath.stop_short_slots();
        }
    }

    fn make_slots(&mut self) {
        if self.recovery.control().is_some()
            && !self.recovery.is_closed()
            && self.datapath.make_slots().is_ok()
        {
            self.recovery.post_added_recvs(&mut self.datapath);
        }
    }

    /// Moves the completions for the application to `out`, and posts the slots of messages that have taken a shared receive. Closes the vQP if a
    /// message could not be copied to its receive.
    #[inline]
    pub(super) fn deliver(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let n = self.datapath.drain_completions(out);
        if let Some(headers) = &mut self.xrc_headers {
            headers.remove_from(out, before);
            return out.len() - before;
        }
        if self.datapath.shared().is_some() && !self.recovery.is_closed() {
            if has_failed(&out[before..]) {
                self.recovery.close(&mut self.datapath, CloseReason::RequestError);
            } else if self.datapath.take_refused_message() {
                self.recovery.close_on_access_error(&mut self.datapath);
            } else if self.datapath.recv().has_unposted() {
                self.recovery.post_added_recvs(&mut self.datapath);
            }
        }
        n
    }

    /// The number of messages that have arrived, and been acknowledged, and wait for a receive of the shared receive queue. A poll completes
    /// them when receives are posted there, also after the vQP has closed. Dropping the vQP drops them. 0 without a shared receive queue.
    pub fn waiting_messages(&self) -> usize {
        self.datapath.shared().map_or(0, SharedReceives::waiting)
    }

    /// Lets the application post sends again after an operation ended in an error. The application calls this after it has handled that
    /// error and the completions that follow it. Does nothing if the vQP is closed.
    pub fn resume(&mut self) {
        if !self.recovery.is_closed() {
            self.datapath.send_mut().resume();
            if self.config().service == Service::Unreliable {
                // A queue pair that refuses has failed, and the vQP moves to the next rail.
                let _ = self.datapath.rails().get(self.recovery.active_rail()).leave_sqe();
            }
        }
    }

    /// Returns whether the send queue has stopped at an operation that ended in an error; see [`VirtualQp::resume`].
    pub fn is_halted(&self) -> bool {
        self.datapath.send().ledger().is_halted()
    }

    /// The reason for which the vQP closed; `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.recovery.close_reason()
    }

    /// The asynchronous event that closed the vQP, if a NIC reported an error of its queue pair. The event contains the vQP's number.
    pub fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.recovery.qp_error_event()
    }

    /// The contradiction, if the vQP closed with [`CloseReason::Contradiction`].
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.recovery.contradiction()
    }

    /// The active rail; during a failover, the old rail.
    pub fn active_rail(&self) -> usize {
        self.recovery.active_rail()
    }

    /// Returns whether a message of the peer has arrived on any rail since this end was connected, so the peer is connected, too.
    pub fn is_peer_heard(&self) -> bool {
        self.datapath.rails().is_peer_heard()
    }

    /// Has the messages of an unreliable connection sent on the active rail although the peer was not heard there, until it is heard on any rail. This is
    /// for a caller that knows that the peer is not connected: such a peer receives nothing, and the messages are lost. Has no effect on a
    /// reliable connection.
    pub fn send_to_unheard_peer(&mut self) {
        self.datapath.rails_mut().send_unheard();
    }

    /// Returns whether sends are posted at once: the vQP is connected and open, and fences no rail.
    pub fn is_active(&self) -> bool {
        self.recovery.may_post()
    }

    /// Returns whether the vQP is active and the peer has confirmed the last move.
    pub fn is_move_confirmed(&self) -> bool {
        self.recovery.is_move_confirmed()
    }

    /// The number of sends that have not completed.
    pub fn outstanding(&self) -> usize {
        let ledger = self.datapath.send().ledger();
        ledger.len() - self.xrc_headers.as_ref().map_or(0, |headers| headers.count_from(ledger.first_seq()))
    }

    /// The lengths of the lists that the vQP keeps, to test that they are bounded.
    #[doc(hidden)]
    pub fn state_lengths(&self) -> StateLengths {
        let config = self.datapath.config();
        StateLengths {
            operations: self.datapath.send().ledger().len(),
            max_operations: config.ledger_depth() as usize,
            receives: self.datapath.recv().len(),
            max_receives: config.recv_wrs as usize,
            completions: self.datapath.undelivered(),
            actions: self.recovery.control().map_or(0, |control| control.negotiation().queued_actions()),
            window_operations: self.datapath.windows().queued(),
        }
    }

    /// The report of the last failover.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.recovery.last_report()
    }

    /// The number of control datagrams that were malformed or not from the peer.
    pub fn rejected_messages(&self) -> u64 {
        self.recovery.control().map_or(0, ControlProtocol::rejected)
    }

    /// The time at which an end that waits for events must call [`VirtualQp::poll`] at the latest. `None` if no timer is running.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.maintenance.poll_timeout(&self.recovery, &self.datapath)
    }

    /// Drives the vQP and appends completions to `out`: those of sends in posting order, those of receives in order of arrival. Returns the
    /// number of completions.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        if self.is_destroyed {
            return self.deliver(out);
        }
        self.post_slots();
        let is_due = self.maintenance.on_poll(|| self.datapath.now());
        self.recovery.drive_active_rail(&mut self.datapath);
        if is_due || self.recovery.is_failover_in_progress() {
            self.maintenance.run_from_poll(&mut self.recovery, &mut self.datapath);
            self.publish();
        }
        self.sample_latency();
        self.deliver(out)
    }

    /// Appends completions to `out` as [`VirtualQp::poll`] does, but does not run maintenance. This is for the fast path of an end that an
    /// event has woken. Such an end must also call [`VirtualQp::poll`] about every millisecond.
    pub fn poll_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        if !self.is_destroyed {
            self.recovery.drive_active_rail(&mut self.datapath);
            self.sample_latency();
        }
        self.deliver(out)
    }

    /// Drives the vQP without taking completions; the next [`VirtualQp::poll`] returns them. An end that only exposes memory to its peer
    /// calls this every few hundred microseconds. The time between two calls adds to the duration of a failover.
    pub fn progress(&mut self) {
        if !self.is_destroyed {
            self.post_slots();
            self.recovery.drive_active_rail(&mut self.datapath);
            self.maintenance.run(&mut self.recovery, &mut self.datapath);
            self.sample_latency();
            self.publish();
        }
    }

    /// Requests an event at the next completion, on the completion channel of the active rail's NIC and, during a move, also on that of the
    /// new rail's NIC, and on those that execute a bind or an invalidation. The caller must poll once more after this call, because a completion may have arrived before the call. The domain
    /// must have completion channels ([`Domain::with_completion_channels`]).
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`], which the next maintenance run handles.
    pub fn arm(&self) -> Result<()> {
        let rails = [self.recovery.active_rail(), self.datapath.recv().rail()];
        for rail in 0..self.datapath.rails().len() {
            if !rails.contains(&rail) && self.datapath.windows().is_in_step(rail) {
                continue;
            }
            let rail = self.datapath.rails().get(rail);
            match rail.provider().req_notify_cq(rail.cq(), false) {
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether `cq` is the vQP's completion queue on the NIC of `rail`. If so, the events of `cq` concern this vQP.
    pub fn uses_cq(&self, rail: usize, cq: CqId) -> bool {
        self.datapath.rails().iter().nth(rail).is_some_and(|rail| rail.cq() == cq)
    }

    /// Shuts this vQP down and returns an unconnected vQP with the same number, as a queue pair is after RESET. The caller polls the old vQP
    /// for some time, so that its Closed message reaches the peer, and then closes the old vQP.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`], after which this vQP is still open; any error of a NIC, after which it is shut down.
    pub fn reset_replacement(&mut self) -> Result<VirtualQp, BuildError> {
        self.replacement_in(&Arc::clone(self.domain()))
    }

    /// Does the same as [`VirtualQp::reset_replacement`], with a new vQP in another domain over the same NICs ([`Domain::with_own_pds`]).
    ///
    /// # Errors
    /// Those of [`VirtualQp::reset_replacement`].
    pub fn replacement_in(&mut self, domain: &Arc<Domain>) -> Result<VirtualQp, BuildError> {
        let mut builder =
            VirtualQp::builder(domain).config(self.config()).own_channels(self.events.is_some());
        if let Some(shared) = self.datapath.shared() {
            builder = builder.receive_source(shared.source().clone());
        }
        let mut replacement = builder.build()?;
        self.shutdown();
        let to = replacement.datapath.rails_mut();
        if let Err(error) = self.datapath.rails_mut().transfer_qpn(to) {
            let _ = replacement.close(); // best effort: the caller gets the first error
            return Err(error.into());
        }
        Ok(replacement)
    }

    /// Closes the vQP: operations in flight end in [`UnresolvedError::Undecided`](crate::UnresolvedError::Undecided), and the vQP sends the
    /// peer a Closed message, by which the peer decides its own operations in flight. While the closed vQP is polled, it answers every further message of the peer with Closed.
    pub fn shutdown(&mut self) {
        self.recovery.close(&mut self.datapath, CloseReason::Closed);
        self.publish();
    }

    /// Closes the vQP as [`VirtualQp::shutdown`] does and destroys its objects on the NICs. If the Closed message is lost, the peer detects
    /// the end of the vQP by its heartbeats. Completions can still be polled.
    ///
    /// # Errors
    /// The first error of a NIC. The other objects are destroyed nevertheless.
    pub fn close(&mut self) -> Result<()> {
        if core::mem::replace(&mut self.is_destroyed, true) {
            return Ok(());
        }
        drop(self.counted.take());
        self.shutdown();
        self.datapath.destroy()
    }
}

impl Drop for VirtualQp {
    /// Closes the vQP, if [`VirtualQp::close`] was not called. Otherwise the peer could still access memory through its queue pairs.
    fn drop(&mut self) {
        let _ = self.close(); // nobody can handle the error of a NIC
    }
}

impl fmt::Debug for VirtualQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualQp")
            .field("qpn", &self.qpn())
            .field("active_rail", &self.active_rail())
            .field("outstanding", &self.outstanding())
            .field("close_reason", &self.close_reason())
            .finish_non_exhaustive()
    }
}
