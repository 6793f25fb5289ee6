use std::sync::Arc;

use mitra_verbs::{AsyncEvent, CqId, Error, PostError, Qpn, RecvWr, Result, RnrTimer, SendWr, Time};

use crate::completion::Completion;
use crate::config::{Config, WritePolicy};
use crate::connect_info::ConnectInfo;
use crate::domain::Domain;
use crate::evidence::Contradiction;
use crate::memory_region::RemoteRegion;
use crate::negotiation::CloseReason;
use crate::vqp::FailoverReport;
use crate::vqp::control_protocol::ControlProtocol;
use crate::vqp::datapath::Datapath;
use crate::vqp::maintenance::Maintenance;
use crate::vqp::recovery::Recovery;

const NOT_CONNECTED: Error = Error::Invalid("this virtual queue pair is not connected yet");
const CLOSED: Error = Error::Invalid("this virtual queue pair is closed");

/// A reliable connection over several rails that survives the loss of one.
///
/// [`VirtualQp::poll`] drives it; nothing happens between two calls. An end that only lends its memory must poll too, or call
/// [`VirtualQp::progress`]: otherwise it cannot take part in a failover.
#[derive(Debug)]
pub struct VirtualQp {
    /// The secret that authenticates control messages to this end.
    cookie: u64,
    datapath: Datapath,
    recovery: Recovery,
    maintenance: Maintenance,
    /// Whether the rails are removed from the NICs.
    is_destroyed: bool,
}

impl VirtualQp {
    /// Makes one end, unconnected. The connection's cookie, Q_Keys and first PSNs are derived from `secret`. On a network that strangers
    /// can reach, take it from the system's random source.
    ///
    /// # Errors
    /// [`Error::Limit`] if the configuration exceeds a limit of the NICs; [`Error::Unsupported`] for a completion log on a NIC without
    /// [`write_order`](mitra_verbs::Capabilities::write_order); any error of a NIC.
    pub fn new(domain: Arc<Domain>, config: Config, secret: [u64; 2]) -> Result<VirtualQp> {
        let [cookie, secret] = secret;
        Ok(VirtualQp {
            cookie,
            datapath: Datapath::new(domain, config, secret)?,
            recovery: Recovery::new(),
            maintenance: Maintenance::new(secret),
            is_destroyed: false,
        })
    }

    /// The queue pair number, which does not change across failovers: that of the first queue pair on rail 0.
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

    /// Returns the parameters that the peer needs for [`VirtualQp::connect`].
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn local_info(&self) -> Result<ConnectInfo> {
        self.datapath.connect_info(self.cookie)
    }

    /// Connects every rail to the peer. Both ends must have called this before either posts a send.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the vQP is connected already, or if the two ends' configurations do not match; any error of a NIC.
    pub fn connect(&mut self, peer: &ConnectInfo) -> Result<()> {
        self.modify_to_rtr(peer, self.config().min_rnr_timer)?;
        self.modify_to_rts(self.config().rnr_retry)
    }

    /// Connects every rail to the peer and lets it receive, as a change to RTR does: the first half of [`VirtualQp::connect`].
    ///
    /// # Errors
    /// As [`VirtualQp::connect`].
    pub fn modify_to_rtr(&mut self, peer: &ConnectInfo, min_rnr_timer: RnrTimer) -> Result<()> {
        if self.recovery.control().is_some() {
            return Err(Error::Invalid("this virtual queue pair is connected already"));
        }
        self.datapath.connect(&self.local_info()?, peer, min_rnr_timer)?;
        let rails = self.datapath.rails().len();
        let control = ControlProtocol::new(self.cookie, peer.cookie, rails, self.datapath.config());
        self.recovery.start_control(control);
        self.maintenance.start(self.datapath.now());
        self.post_pending_recvs();
        Ok(())
    }

    /// Lets every rail send, as a change to RTS does: the second half of [`VirtualQp::connect`]. `rnr_retry` is the number of retries after
    /// an RNR NAK; 7 retries without limit.
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`] on a rail that has failed already.
    pub fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        self.datapath.rails_mut().start_sending(rnr_retry)
    }

    /// Makes a region of the peer known on every rail. Sends may name it from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the vQP is not connected, or if the region has another number of rails.
    pub fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        if self.recovery.control().is_none() {
            return Err(NOT_CONNECTED);
        }
        if region.rail_count() != self.datapath.rails().len() {
            return Err(Error::Invalid("the region is registered for another number of rails"));
        }
        self.datapath.send_mut().import(region.clone());
        Ok(())
    }

    /// Posts a send with the configured [`WritePolicy`], and returns its sequence number.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send_with`].
    pub fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        self.post_send_with(wr, self.datapath.config().write_policy)
    }

    /// Posts a send and returns its sequence number. During a failover the send waits in its place in the order.
    ///
    /// # Errors
    /// Nothing is posted: [`Error::QueueFull`]; [`Error::Invalid`] if the vQP is not connected, closed or halted, or if the request names
    /// memory that is not registered or imported; [`Error::Limit`] if it exceeds a limit; [`Error::Unsupported`] for memory windows.
    pub fn post_send_with(&mut self, wr: SendWr, write_policy: WritePolicy) -> Result<u64> {
        let seq = self.push_send(wr, write_policy)?;
        self.post_pending_sends();
        Ok(seq)
    }

    /// Posts sends in order, either all or none.
    ///
    /// # Errors
    /// The index of the first request that is refused, with the error of [`VirtualQp::post_send`].
    pub fn post_send_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let first = self.datapath.send().ledger().next_seq();
        let write_policy = self.datapath.config().write_policy;
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(error) = self.push_send(wr, write_policy) {
                self.datapath.send_mut().truncate(first);
                return Err(PostError { index, error });
            }
        }
        self.post_pending_sends();
        Ok(())
    }

    /// Checks a send as [`VirtualQp::post_send`] does, except for its remote key and the room in the queue, and posts nothing. For a caller
    /// that queues requests until it has called [`VirtualQp::import`] for their keys.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send`], without [`Error::QueueFull`].
    pub fn check_send(&mut self, wr: &SendWr) -> Result<()> {
        self.check_open()?;
        self.datapath.check_send(wr)
    }

    fn check_open(&self) -> Result<()> {
        if self.recovery.control().is_none() {
            return Err(NOT_CONNECTED);
        }
        if self.recovery.is_closed() { Err(CLOSED) } else { Ok(()) }
    }

    #[inline]
    fn push_send(&mut self, wr: SendWr, write_policy: WritePolicy) -> Result<u64> {
        self.check_open()?;
        self.datapath.push_send(wr, write_policy)
    }

    fn post_pending_sends(&mut self) {
        // The operations that were in flight at a failure come first. Until they have completed, only polls post: maintenance runs
        // between polls.
        if !self.recovery.is_replaying() {
            self.recovery.post_sends(&mut self.datapath);
        }
        if self.maintenance.on_post(|| self.datapath.now()) {
            self.maintenance.run(&mut self.recovery, &mut self.datapath);
        }
    }

    /// Posts a receive. It stays outstanding across failovers.
    ///
    /// # Errors
    /// Nothing is posted: [`Error::QueueFull`]; [`Error::Invalid`] if the vQP is closed or the receive names memory that is not registered;
    /// [`Error::Limit`] if it exceeds a limit.
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        if self.recovery.is_closed() {
            return Err(CLOSED);
        }
        self.datapath.push_recv(wr)?;
        self.post_pending_recvs();
        Ok(())
    }

    fn post_pending_recvs(&mut self) {
        if self.recovery.is_active() {
            self.recovery.post_recvs(&mut self.datapath, self.recovery.active_rail());
        }
    }

    /// Lets the application post sends again after an operation ended in an error. Call it once the application has handled that error and
    /// the completions behind it. Does nothing if the vQP is closed.
    pub fn resume(&mut self) {
        if !self.recovery.is_closed() {
            self.datapath.send_mut().resume();
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

    /// The event of a NIC that closed the vQP because the peer's request broke a rule. It carries the vQP's number.
    pub fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.recovery.qp_error_event()
    }

    /// The contradiction, if the vQP closed with [`CloseReason::Contradiction`].
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.recovery.contradiction()
    }

    /// The active rail. During a failover, the old one.
    pub fn active_rail(&self) -> usize {
        self.recovery.active_rail()
    }

    /// Returns whether sends are posted at once: the vQP is connected and open, and no move is in progress.
    pub fn is_active(&self) -> bool {
        self.recovery.is_active()
    }

    /// Returns whether the vQP is active and the peer has confirmed the last move.
    pub fn is_move_confirmed(&self) -> bool {
        self.recovery.is_move_confirmed()
    }

    /// The number of sends that have not completed.
    pub fn outstanding(&self) -> usize {
        self.datapath.send().ledger().len()
    }

    /// The report of the last failover.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.recovery.last_report()
    }

    /// The number of control datagrams that were malformed or not from the peer.
    pub fn rejected_messages(&self) -> u64 {
        self.recovery.control().map_or(0, ControlProtocol::rejected)
    }

    /// The latest time for the next [`VirtualQp::poll`] of an end that waits for events. `None`: no timer is running.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.maintenance.poll_timeout(&self.recovery, &self.datapath)
    }

    /// Drives the vQP and appends completions: sends in posting order, receives in order of arrival. Returns the number of completions.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        if self.is_destroyed {
            return self.datapath.drain_completions(out);
        }
        let is_due = self.maintenance.on_poll(|| self.datapath.now());
        self.recovery.poll_active_rail(&mut self.datapath);
        if is_due || self.recovery.is_failover_in_progress() {
            self.maintenance.run_from_poll(&mut self.recovery, &mut self.datapath);
        }
        self.datapath.drain_completions(out)
    }

    /// Appends completions as [`VirtualQp::poll`] does, without the maintenance that may be due: for the fast path of an end that an event
    /// has woken. Such an end still calls [`VirtualQp::poll`] every millisecond or so.
    pub fn poll_completions(&mut self, out: &mut Vec<Completion>) -> usize {
        if !self.is_destroyed {
            self.recovery.poll_active_rail(&mut self.datapath);
        }
        self.datapath.drain_completions(out)
    }

    /// Drives the vQP without taking completions, which stay for the next [`VirtualQp::poll`]. An end that only lends its memory calls this
    /// every few hundred microseconds; the delay adds to the duration of a failover.
    pub fn progress(&mut self) {
        if !self.is_destroyed {
            self.recovery.poll_active_rail(&mut self.datapath);
            self.maintenance.run(&mut self.recovery, &mut self.datapath);
        }
    }

    /// Requests an event at the next completion, on the completion channel of the active rail's NIC and, during a move, of the new rail's.
    /// Poll once more after this call: a completion may have come before it. The domain needs channels
    /// ([`Domain::with_completion_channels`]).
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`], which the next maintenance handles.
    pub fn arm(&self) -> Result<()> {
        let rails = [self.recovery.active_rail(), self.datapath.recv().rail()];
        for &rail in &rails[..1 + usize::from(rails[0] != rails[1])] {
            let rail = self.datapath.rails().get(rail);
            match rail.provider().req_notify_cq(rail.cq(), false) {
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether `cq` is the vQP's completion queue on the NIC of `rail`, so that its events concern this vQP.
    pub fn uses_cq(&self, rail: usize, cq: CqId) -> bool {
        self.datapath.rails().iter().nth(rail).is_some_and(|rail| rail.cq() == cq)
    }

    /// Returns an unconnected vQP with the same number, as after a RESET, and shuts this one down. Poll this one for some time, so that the
    /// peer learns of the end, and close it then.
    ///
    /// # Errors
    /// As [`VirtualQp::new`].
    pub fn reset_replacement(&mut self, secret: [u64; 2]) -> Result<VirtualQp> {
        let mut replacement = VirtualQp::new(Arc::clone(self.domain()), self.config(), secret)?;
        self.shutdown();
        let to = replacement.datapath.rails_mut();
        if let Err(error) = self.datapath.rails_mut().transfer_qpn(to) {
            let _ = replacement.close(); // best effort: the caller gets the first error
            return Err(error);
        }
        Ok(replacement)
    }

    /// Closes the vQP: operations in flight end undecided, and the vQP sends the peer a Closed message. As long as it is polled, it repeats
    /// the message to a peer that missed it.
    pub fn shutdown(&mut self) {
        self.recovery.close(&mut self.datapath, CloseReason::Closed);
    }

    /// Closes the vQP as [`VirtualQp::shutdown`] does and removes it from the NICs. If that happens before the last message is sent, the
    /// peer finds out by its detector. Completions can still be polled.
    ///
    /// # Errors
    /// The first error of a NIC. Everything that can be removed is removed.
    pub fn close(&mut self) -> Result<()> {
        if core::mem::replace(&mut self.is_destroyed, true) {
            return Ok(());
        }
        self.shutdown();
        self.datapath.destroy()
    }
}
