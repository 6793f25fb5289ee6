//! Connecting, and the rights of the peer.

use mitra_verbs::{Access, AsyncEvent, Error, Psn, Result, RnrTimer};

use super::{BackedQp, BackedQpInfo};
use crate::completion_log;
use crate::config::Config;
use crate::vqp::send_queue::SendQueue;

impl BackedQp {
    /// Connects to the peer's end, which was made with the other end of the same backup. Sends may be posted at once.
    ///
    /// # Errors
    /// Those of [`BackedQp::modify_to_rtr`] and [`BackedQp::modify_to_rts`].
    pub fn connect(&mut self, peer: &BackedQpInfo) -> Result<()> {
        self.modify_to_rtr(peer, self.config.min_rnr_timer)?;
        self.modify_to_rts(self.config.rnr_retry)
    }

    /// Connects to the peer's end for receiving: the first half of [`BackedQp::connect`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair is connected already, or if the two ends differ in `rd_atomic` or in what they say about the completion log.
    pub fn modify_to_rtr(&mut self, peer: &BackedQpInfo, min_rnr_timer: RnrTimer) -> Result<()> {
        if self.is_connected {
            return Err(Error::Invalid("this queue pair is connected already"));
        }
        if peer.rd_atomic != self.config.rd_atomic {
            return Err(Error::Invalid("the two ends have different rd_atomic; give both the same"));
        }
        let (rails, local) = (self.domain.nics().len(), self.local_info());
        let (local, peers) = (local.log_terms(), peer.log_terms());
        if let Some(mismatch) = completion_log::mismatch(local, peers, self.config.send_wrs, rails) {
            return Err(Error::Invalid(mismatch));
        }
        let mut state = self.backup.lock();
        let nics: Option<Vec<_>> = (0..rails).map(|rail| state.peer_nic(rail as u8)).collect();
        let Some(nics) = nics else { return Err(Error::Invalid("the shared backup has closed")) };
        let mtu = nics[0].1;
        let acks_after_placement = nics.iter().all(|(_, _, acks)| *acks);
        let interval = completion_log::interval(&self.config, acks_after_placement);
        let config = Config { completion_log_interval: interval, ..self.config };
        let limits = self.domain.limits();
        let log_region = peer.log_region.clone().filter(|_| peer.log);
        self.send = SendQueue::new(&config, &limits, mtu, Psn::new(0), log_region);
        self.config.min_rnr_timer = min_rnr_timer;
        self.is_connected = true;
        state.start(self.id, peer.id);
        drop(state);
        self.run();
        Ok(())
    }

    /// Allows the queue pair to send: the second half of [`BackedQp::connect`]. `rnr_retry` is the number of retries after an RNR NAK; the value 7
    /// means no limit.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair is not connected; any error of a NIC other than [`Error::DeviceFatal`], which the next poll handles.
    pub fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        if !self.is_connected {
            return Err(super::NOT_CONNECTED);
        }
        (self.config.rnr_retry, self.may_send) = (rnr_retry, true);
        match self.own.as_mut().map_or(Ok(()), |own| own.start_sending(&self.config)) {
            Err(Error::DeviceFatal) => Ok(()),
            other => other,
        }
    }

    /// Changes the operations that the peer may request: [`Config::access`]. An operation of the peer that was executed before stays executed. Rights that are added
    /// hold on the backup for memory that the peer imports later.
    ///
    /// # Errors
    /// The first error of a NIC. A NIC that is dead is reset, because it may only be hung and still grant the old rights.
    pub fn set_access(&mut self, access: Access) -> Result<()> {
        let before = core::mem::replace(&mut self.config.access, access);
        if self.close_reason().is_some() || before == access {
            return Ok(()); // the peer may request nothing more, or nothing else
        }
        self.backup.lock().set_access(self.id, access);
        let limited =
            if access.contains(before) { Ok(()) } else { self.domain.limit_grants_of(self.owner, access) };
        self.own.as_ref().map_or(Ok(()), |own| own.set_access(access)).and(limited)
    }

    /// Returns whether a packet of the peer has arrived before [`BackedQp::modify_to_rts`], since the last call that returned true
    /// ([`AsyncEvent::CommunicationEstablished`]).
    pub fn take_established(&mut self) -> bool {
        let Some(own) = &self.own else { return false };
        self.domain.poll_rail_down(own.rail); // reads the events
        self.domain.take_established(own.rail, own.qp().qpn())
    }

    /// The asynchronous event that closed the queue pair, if a NIC reported an error of its own queue pair. The event contains the number of that one.
    pub fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.termination.qp_error_event()
    }
}
