//! Connecting, driving and closing a virtual queue pair. `virtual_qp/posting.rs` posts requests.
//! The other files of that folder belong to a vQP with a queue pair on every rail.

mod events;
mod over_rails;
mod posting;
mod publication;
mod send_drain;

use core::{fmt, mem};
use std::sync::Arc;

use mitra_verbs::{Access, AsyncEvent, Error, Result, RnrTimer};

use crate::close_reason::CloseReason;
use crate::completion::Completion;
use crate::config::Config;
use crate::domain::Domain;
use crate::evidence::Contradiction;
use crate::failover_report::FailoverReport;
use crate::memory_region::RemoteRegion;
use crate::negotiation::RailNegotiation;
use crate::vqp::datapath::{DataQps, Datapath};
use crate::vqp::failover::Failover;
use crate::vqp::recovery::Recovery;
use crate::vqp::shared_receives::{SharedReceives, has_failed};
use crate::vqp::{NOT_CONNECTED, StateLengths};
pub use over_rails::OwnFailover;

/// A connection over several rails that survives the loss of a rail. The connection is reliable,
/// unless [`Config::service`] says otherwise.
///
/// [`VirtualQp::poll`] drives the vQP, which makes no progress between two calls. An end that posts
/// nothing and only exposes memory to its peer must also poll, or call [`VirtualQp::progress`].
/// Otherwise the end cannot take part in a failover. The crate `mitra-driver` makes these calls on
/// a thread or from an event loop.
///
/// A vQP has a queue pair on every rail, unless it is a [`BackedQp`](crate::BackedQp).
///
/// Dropping a vQP closes it as [`VirtualQp::close`] does, without the errors of its NICs.
pub struct VirtualQp<F: Failover = OwnFailover> {
    pub(super) datapath: Datapath<F::Qps>,
    pub(super) failover: F,
}

impl<F: Failover> VirtualQp<F> {
    /// The configuration, including the changes by [`VirtualQp::modify_to_rtr`],
    /// [`VirtualQp::modify_to_rts`], [`VirtualQp::set_access`] and
    /// [`VirtualQp::set_max_path_mtu`].
    pub fn config(&self) -> Config {
        *self.datapath.config()
    }

    /// The domain whose NICs and memory the vQP uses.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.datapath.domain
    }

    /// The parameters for [`VirtualQp::connect`] at the peer. They are available even if a NIC has
    /// died since the vQP was made.
    pub fn local_info(&self) -> F::Info {
        self.failover.local_info(&self.datapath)
    }

    /// Connects to the peer: over every rail or, with a shared backup, through the backup. A vQP
    /// without a shared backup may post sends when both ends have called this method.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the vQP is connected already or has closed, or if the two ends'
    /// configurations do not match; [`Error::Unsupported`] if its policy is not exact and its
    /// domain shares atomics ([`Domain::share_atomics`]); any error of a NIC.
    pub fn connect(&mut self, peer: &F::Info) -> Result<()> {
        self.modify_to_rtr(peer, self.config().min_rnr_timer)?;
        self.modify_to_rts(self.config().rnr_retry)
    }

    /// Connects to the peer for receiving, as a queue pair in RTR: the first half of
    /// [`VirtualQp::connect`].
    ///
    /// # Errors
    /// As [`VirtualQp::connect`].
    pub fn modify_to_rtr(&mut self, peer: &F::Info, min_rnr_timer: RnrTimer) -> Result<()> {
        if self.failover.is_connected() {
            return Err(Error::Invalid("this virtual queue pair is connected already"));
        }
        self.check_not_closed()?;
        self.failover.modify_to_rtr(&mut self.datapath, peer, min_rnr_timer)?;
        self.post_slots();
        Ok(())
    }

    /// Allows the vQP to send, as a queue pair in RTS: the second half of [`VirtualQp::connect`].
    /// `rnr_retry` is the number of retries after an RNR NAK; the value 7 means no limit.
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`] on a rail that has failed already;
    /// [`Error::Invalid`] if a vQP with a shared backup is not connected.
    pub fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        self.failover.modify_to_rts(&mut self.datapath, rnr_retry)
    }

    /// Changes the operations that the peer may request: [`Config::access`]. Operations of the peer
    /// that were executed before the change stay executed, and a NIC may still execute those that
    /// it has begun when the call returns. To be sure that memory no longer changes, deregister it.
    /// If [`Access::REMOTE_WRITE`] is taken away after the peer has connected with a completion
    /// log, the peer's atomics fail too, because the log entries behind the atomics are refused. On
    /// a shared backup, added rights hold only for memory that the peer imports after the change.
    ///
    /// Between [`VirtualQp::modify_to_rtr`] and [`VirtualQp::modify_to_rts`], a change takes effect
    /// only with the latter call, because a queue pair in RTR keeps its rights.
    ///
    /// # Errors
    /// The first error of a NIC. A NIC that does not answer is reset, because a hung NIC still
    /// grants the old rights.
    pub fn set_access(&mut self, access: Access) -> Result<()> {
        if self.close_reason().is_some() {
            return Ok(()); // a closed vQP grants nothing
        }
        self.failover.set_access(&mut self.datapath, access)
    }

    /// Makes a region of the peer known, so that sends may name its remote key. A vQP with a shared
    /// backup also asks the peer for a grant of the region on the backup. At most 256 grants are in
    /// force at once. After a failover, a send that names a region without a grant, or a window
    /// ([`VirtualMw::remote`](crate::VirtualMw::remote)), waits until the vQP has a rail.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the vQP is not connected, or if the region and the vQP differ in the
    /// number of rails.
    pub fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        if !self.failover.is_connected() {
            return Err(NOT_CONNECTED);
        }
        if region.rail_count() != self.datapath.domain.nics().len() {
            return Err(Error::Invalid("the region is registered for another number of rails"));
        }
        self.datapath.send.import(region.clone());
        self.failover.on_import(&mut self.datapath, region);
        Ok(())
    }

    /// Posts the slots for the messages of shared receives, once a shared receive was posted. If a
    /// NIC refuses to register the memory of the slots, the vQP answers the peer's messages with
    /// RNR NAKs until a later attempt succeeds.
    #[inline]
    pub(super) fn post_slots(&mut self) {
        let Some(shared) = &self.datapath.shared else { return };
        if shared.needs_slots()
            && self.failover.is_connected()
            && self.close_reason().is_none()
            && self.datapath.make_slots().is_ok()
        {
            self.failover.post_added_recvs(&mut self.datapath);
        }
    }

    /// Moves the completions for the application to `out`, and posts again the slots of messages
    /// that have taken a shared receive. Closes the vQP if a message could not be copied to its
    /// receive.
    #[inline]
    pub(super) fn deliver(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let n = self.datapath.drain_completions(out);
        if let Some(headers) = &mut self.datapath.xrc_headers {
            headers.remove_from(out, before);
            return out.len() - before;
        }
        if self.datapath.shared.is_some() && self.close_reason().is_none() {
            if has_failed(&out[before..]) {
                self.failover.close(&mut self.datapath, CloseReason::RequestError);
            } else if self.datapath.shared.as_mut().is_some_and(|shared| mem::take(&mut shared.refused)) {
                // The event that a NIC would report.
                let qpn = self.datapath.rails.qpn();
                self.datapath.termination.set_qp_error_event(AsyncEvent::QpAccessError(qpn), qpn);
                self.failover.close(&mut self.datapath, CloseReason::RequestError);
            } else if self.datapath.recv.has_unposted() {
                self.failover.post_added_recvs(&mut self.datapath);
            }
        }
        n
    }

    /// The number of acknowledged messages that wait for a receive of the shared receive queue.
    /// After receives are posted there, a poll completes these messages, even on a closed vQP.
    /// Dropping the vQP drops the messages. 0 without a shared receive queue.
    pub fn waiting_messages(&self) -> usize {
        self.datapath.shared.as_ref().map_or(0, SharedReceives::waiting)
    }

    /// Lets the application post sends again after an operation ended in an error. The application
    /// first handles that error and the completions that follow the error. Does nothing if the vQP
    /// is closed.
    pub fn resume(&mut self) {
        if self.close_reason().is_none() {
            self.datapath.send.ledger.resume();
            self.failover.resume(&mut self.datapath);
        }
    }

    /// Returns whether an operation that ended in an error has stopped the send queue.
    /// [`VirtualQp::resume`] restarts the queue.
    pub fn is_halted(&self) -> bool {
        self.datapath.send.ledger.is_halted()
    }

    /// The reason for which the vQP closed; `None` while it is open.
    #[inline]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.datapath.termination.reason()
    }

    /// The asynchronous event that made the vQP close: a NIC's report of an error of a queue pair.
    /// The event contains the number of the vQP or, with a shared backup, of the queue pair.
    pub fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.datapath.termination.qp_error_event
    }

    /// The contradiction, if the vQP closed with [`CloseReason::Contradiction`].
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.datapath.termination.contradiction
    }

    /// The active rail of the vQP or of its shared backup. During a failover, this is the old rail.
    pub fn active_rail(&self) -> usize {
        self.failover.with_recovery(Recovery::active_rail)
    }

    /// The number of sends that have not completed.
    pub fn outstanding(&self) -> usize {
        self.datapath.outstanding()
    }

    /// For tests that these lengths are bounded.
    #[doc(hidden)]
    pub fn state_lengths(&self) -> StateLengths {
        let config = self.datapath.config();
        StateLengths {
            operations: self.datapath.send.ledger.len(),
            max_operations: config.ledger_depth() as usize,
            receives: self.datapath.recv.len(),
            max_receives: config.recv_wrs as usize,
            completions: self.datapath.ready.len() + self.datapath.recv.held(),
            actions: self
                .failover
                .with_recovery(|recovery| recovery.negotiation().map_or(0, RailNegotiation::queued_actions)),
            window_operations: self.datapath.windows.queued(),
        }
    }

    /// The report of the last failover, of the vQP or of its shared backup.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.failover.with_recovery(|recovery| recovery.report.last)
    }

    /// The number of received messages that were malformed or did not come from the peer. With a
    /// shared backup, the count covers all its members.
    pub fn rejected_messages(&self) -> u64 {
        self.failover.rejected_messages()
    }

    /// Returns whether a packet of the peer has arrived on any rail while the vQP was in RTR
    /// ([`AsyncEvent::CommunicationEstablished`]). Each such event is returned once.
    pub fn take_established(&mut self) -> bool {
        let Datapath { domain, rails, .. } = &self.datapath;
        let taken = (0..domain.nics().len()).filter_map(|rail| {
            let qp = rails.data_qp(rail)?;
            domain.poll_rail_down(rail); // reads the events
            Some(domain.take_established(rail, qp.qpn()))
        });
        taken.fold(false, |any, taken| any | taken)
    }

    /// Drives the vQP and its shared backup, and appends completions to `out`. Sends complete in
    /// posting order, and receives in order of arrival. Returns the number of completions.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.post_slots();
        self.failover.poll(&mut self.datapath);
        self.deliver(out)
    }

    /// Appends completions to `out` as [`VirtualQp::poll`] does, but does not run maintenance. The
    /// method serves the fast path of an end that an event has woken. Such an end must also call
    /// [`VirtualQp::poll`] about every millisecond.
    pub fn poll_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        self.failover.poll_completions(&mut self.datapath);
        self.deliver(out)
    }

    /// Drives the vQP without taking completions; the next [`VirtualQp::poll`] returns them. An end
    /// that only exposes memory to its peer calls this method every few hundred microseconds. The
    /// time between two calls adds to the duration of a failover.
    pub fn progress(&mut self) {
        self.post_slots();
        self.failover.progress(&mut self.datapath);
    }

    /// Requests an event at the next completion, on the completion channels of all NICs that may
    /// complete something:
    ///
    /// - the NIC of the active rail and, during a move, of the new rail;
    /// - the NICs that execute a bind or an invalidation;
    /// - the NIC of a shared backup.
    ///
    /// The caller must poll once more after this call, because a completion may have arrived before
    /// the call. The domain must have completion channels ([`Domain::with_completion_channels`]).
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`], which the next maintenance run
    /// handles.
    pub fn arm(&self) -> Result<()> {
        self.failover.arm(&self.datapath)
    }

    /// Closes the vQP. Operations in flight end in
    /// [`UnresolvedError::Undecided`](crate::UnresolvedError::Undecided). The vQP sends the peer a
    /// Closed message, by which the peer decides its own operations in flight. A closed vQP that is
    /// polled answers every further message of the peer with Closed.
    pub fn shutdown(&mut self) {
        self.failover.close(&mut self.datapath, CloseReason::Closed);
    }

    /// Closes the vQP as [`VirtualQp::shutdown`] does and destroys its objects on the NICs. If the
    /// Closed message is lost, the peer detects the end of the vQP by the missing heartbeats.
    /// Completions can still be polled. A vQP with a shared backup keeps its objects until the vQP
    /// is dropped, because the backup still carries the Closed message.
    ///
    /// # Errors
    /// The first error of a NIC. The objects on the other NICs are destroyed nevertheless.
    pub fn close(&mut self) -> Result<()> {
        self.failover.destroy(&mut self.datapath)
    }
}

impl<F: Failover> Drop for VirtualQp<F> {
    /// Closes the vQP, because the peer could otherwise still access memory through the vQP's queue
    /// pairs.
    fn drop(&mut self) {
        self.failover.on_drop(&mut self.datapath);
    }
}

impl<F: Failover> fmt::Debug for VirtualQp<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualQp")
            .field("qpn", &self.datapath.rails.qpn())
            .field("outstanding", &self.outstanding())
            .field("close_reason", &self.close_reason())
            .finish_non_exhaustive()
    }
}
