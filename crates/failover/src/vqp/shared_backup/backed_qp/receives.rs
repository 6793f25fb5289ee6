//! The receives of a member, its own or those of a shared receive queue, and the delivery of completions.

use mitra_verbs::{Error, Qpn, RecvWr, Result};

use super::BackedQp;
use crate::close_reason::CloseReason;
use crate::completion::Completion;
use crate::vqp::shared_receives::{SharedReceives, has_failed};

impl BackedQp {
    /// Posts a receive. It stays outstanding across failovers.
    ///
    /// # Errors
    /// As [`VirtualQp::post_recv`](crate::VirtualQp::post_recv).
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        self.check_not_closed()?;
        if self.shared.is_some() {
            return Err(Error::Invalid("the queue pair has a shared receive queue: post receives there"));
        }
        if self.recv.len() >= self.config.recv_wrs as usize {
            return Err(Error::QueueFull {
                queue: "receive queue",
                qpn: Qpn::new(self.id.slot),
                depth: self.config.recv_wrs,
            });
        }
        self.recv.push(wr, self.config.recv_sges)?;
        self.post_receives();
        Ok(())
    }

    /// Posts the receives that are not posted yet, if the own queue pair is connected.
    pub(super) fn post_receives(&mut self) {
        if let Some(own) = self.own.as_ref().filter(|own| own.is_connected && own.fence.is_idle()) {
            self.recv.post(own.qp(), &self.domain);
        }
    }

    /// Posts the slots in which messages for shared receives arrive, if a shared receive was posted. If a NIC refuses their memory, the peer's messages
    /// are answered with RNR NAKs until a later attempt succeeds.
    pub(super) fn post_slots(&mut self) {
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.needs_slots()) else { return };
        if self.is_connected
            && !self.termination.is_closed()
            && shared.make_slots(&self.domain, self.config.recv_wrs, &mut self.recv).is_ok()
        {
            self.post_receives();
        }
    }

    /// Moves the completions for the application to `out`, and posts the slots of messages that have taken a shared receive. Closes the queue pair if a
    /// message could not be copied to its receive. Returns the number of completions.
    pub(super) fn deliver(&mut self, out: &mut Vec<Completion>) -> usize {
        let (before, n) = (out.len(), self.deliverable());
        let Some(shared) = &mut self.shared else {
            out.extend(self.ready.drain(..n));
            return out.len() - before;
        };
        shared.deliver(self.ready.drain(..n), &mut self.recv, out);
        if out.len() > before && !self.termination.is_closed() {
            match has_failed(&out[before..]) {
                true => self.close_with(CloseReason::RequestError),
                false => self.post_receives(),
            }
        }
        out.len() - before
    }

    /// The number of messages that have arrived, and been acknowledged, and wait for a receive of the shared receive queue. A poll completes
    /// them when receives are posted there, also after the queue pair has closed. Dropping it drops them. 0 without a shared receive queue.
    pub fn waiting_messages(&self) -> usize {
        self.shared.as_ref().map_or(0, SharedReceives::waiting)
    }
}
