use mitra_verbs::{Error, PostError, RecvWr, Result, SendWr};

use super::VirtualQp;
use crate::config::{Service, WritePolicy};
use crate::vqp::NOT_CONNECTED;
use crate::vqp::datapath::DataQps;
use crate::vqp::failover::Failover;
use crate::vqp::xrc_messages;

impl<F: Failover> VirtualQp<F> {
    /// Posts a send with the configured [`WritePolicy`], and returns its sequence number.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send_with`].
    #[inline]
    pub fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        self.post_send_with(wr, self.datapath.config().write_policy)
    }

    /// Posts a send and returns its sequence number. During a failover, the send waits in the send
    /// queue.
    ///
    /// # Errors
    /// On an error, the send is not posted: [`Error::QueueFull`]; [`Error::Invalid`] if the vQP is
    /// not connected, closed or halted, if the request is malformed, or if no imported region has
    /// its remote key; [`Error::Limit`] if the request exceeds a limit; [`Error::Unsupported`] for
    /// the bind or invalidation of a window if a NIC has no windows. A send that names local memory
    /// that is not registered completes with
    /// [`LocalProtection`](mitra_verbs::WcStatus::LocalProtection).
    pub fn post_send_with(&mut self, wr: SendWr, write_policy: WritePolicy) -> Result<u64> {
        if self.datapath.config().service.is_xrc() {
            let seq = self.record(wr, write_policy)?;
            self.post_pending_sends();
            return Ok(seq);
        }
        self.check_open()?;
        self.datapath.prepare_send(&wr)?;
        Ok(self.failover.submit(&mut self.datapath, wr, write_policy))
    }

    /// Posts all sends in order with the configured [`WritePolicy`], or none.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send_all_with`].
    pub fn post_send_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let write_policy = self.datapath.config().write_policy;
        self.post_send_all_with(wrs.into_iter().map(|wr| (wr, write_policy)))
    }

    /// Posts all sends in order, or none.
    ///
    /// # Errors
    /// The index of the first refused request, with the error of [`VirtualQp::post_send`].
    pub fn post_send_all_with(
        &mut self,
        wrs: impl IntoIterator<Item = (SendWr, WritePolicy)>,
    ) -> Result<(), PostError> {
        let first = self.datapath.send.ledger.next_seq();
        for (index, (wr, write_policy)) in wrs.into_iter().enumerate() {
            if let Err(error) = self.record(wr, write_policy) {
                self.datapath.truncate_sends(first);
                return Err(PostError { index, error });
            }
        }
        self.post_pending_sends();
        Ok(())
    }

    /// Checks a send without posting it, for a caller that queues requests until the vQP is
    /// connected and has imported their keys. Unlike [`VirtualQp::post_send`], does not check
    /// whether the vQP is connected, whether the queue accepts the send, and whether the remote key
    /// is imported.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send`].
    pub fn check_send(&self, wr: &SendWr) -> Result<()> {
        self.check_not_closed()?;
        self.datapath.check_send(wr)
    }

    pub(in crate::vqp) fn check_open(&self) -> Result<()> {
        if !self.failover.may_send() {
            return Err(NOT_CONNECTED);
        }
        self.check_not_closed()
    }

    #[inline]
    pub(in crate::vqp) fn check_not_closed(&self) -> Result<()> {
        self.close_reason().map_or(Ok(()), |reason| Err(reason.refusal()))
    }

    /// Checks a send and records it in the ledger, for [`VirtualQp::post_pending_sends`] to post.
    #[inline]
    pub(in crate::vqp) fn record(&mut self, wr: SendWr, policy: WritePolicy) -> Result<u64> {
        self.check_open()?;
        match self.datapath.config().service {
            Service::Reliable | Service::Unreliable => self.record_one(wr, policy),
            Service::XrcSend => self.record_xrc(wr, policy),
            Service::XrcReceive => {
                Err(Error::Invalid("the receiving end of an XRC connection sends nothing"))
            }
        }
    }

    #[inline]
    fn record_one(&mut self, wr: SendWr, policy: WritePolicy) -> Result<u64> {
        self.datapath.prepare_send(&wr)?;
        Ok(self.datapath.submit(wr, policy, None).0)
    }

    /// Records an XRC send together with its header, or neither.
    fn record_xrc(&mut self, wr: SendWr, policy: WritePolicy) -> Result<u64> {
        let depth = self.datapath.config().send_wrs;
        if self.outstanding() >= depth as usize {
            return Err(Error::QueueFull { queue: "send queue", qpn: self.datapath.rails.qpn(), depth });
        }
        let (header, message) = xrc_messages::messages(wr)?;
        let ledger = &self.datapath.send.ledger;
        // While completions wait for delivery, no header is forgotten, because a completion may
        // belong to a failed header.
        let oldest = if self.datapath.has_completions() { 0 } else { ledger.first_seq() };
        let first = ledger.next_seq();
        if let Some(header) = header {
            let header = self.record_one(header, policy)?;
            self.datapath.latency.truncate(header); // the latency is measured for the message, not for the header
            if let Some(headers) = &mut self.datapath.xrc_headers {
                headers.push(header + 1, oldest);
            }
        }
        self.record_one(message, policy).inspect_err(|_| self.datapath.truncate_sends(first))
    }

    #[inline]
    pub(in crate::vqp) fn post_pending_sends(&mut self) {
        self.failover.post_pending_sends(&mut self.datapath);
    }

    /// Posts a receive, which stays outstanding across failovers.
    ///
    /// # Errors
    /// On an error, the receive is not posted: [`Error::QueueFull`]; [`Error::Invalid`] if the vQP
    /// is closed or has a shared receive queue; [`Error::Limit`] if the receive exceeds a limit. A
    /// receive that names memory that is not registered completes with
    /// [`LocalProtection`](mitra_verbs::WcStatus::LocalProtection) when a message arrives for it.
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        self.check_not_closed()?;
        if self.datapath.shared.is_some() {
            return Err(Error::Invalid("the queue pair has a shared receive queue: post receives there"));
        }
        if self.datapath.xrc_headers.is_some() {
            return Err(Error::Invalid("the sending end of an XRC connection receives nothing"));
        }
        self.datapath.push_recv(wr)?;
        self.failover.post_added_recvs(&mut self.datapath);
        Ok(())
    }
}
