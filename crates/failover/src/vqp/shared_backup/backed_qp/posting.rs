//! Posting sends, and requesting events.

use mitra_verbs::{Error, PostError, Qpn, Result, SendWr};

use super::{BackedQp, NOT_CONNECTED, on_backup};

impl BackedQp {
    /// Posts a send with the configured [`WritePolicy`](crate::WritePolicy), and returns its sequence number. While the queue pair has no rail, a WRITE or READ of
    /// memory that the peer has granted goes over the backup, and other sends wait.
    ///
    /// # Errors
    /// As [`VirtualQp::post_send`](crate::VirtualQp::post_send).
    pub fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        let seq = self.push_send(wr)?;
        self.post_sends();
        Ok(seq)
    }

    /// Posts sends in order, either all or none.
    ///
    /// # Errors
    /// The index of the first request that is refused, with the error of [`BackedQp::post_send`]. No request is posted then.
    pub fn post_send_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        let first = self.send.ledger().next_seq();
        for (index, wr) in wrs.into_iter().enumerate() {
            if let Err(error) = self.push_send(wr) {
                self.send.truncate(first);
                return Err(PostError { index, error });
            }
        }
        self.post_sends();
        Ok(())
    }

    /// Checks a send and appends it to the send queue, without posting it.
    fn push_send(&mut self, wr: SendWr) -> Result<u64> {
        self.check_open()?;
        if wr.op.is_local() {
            self.prepare_window_op(&wr.op)?;
        }
        self.send.check(&wr, &self.config, Qpn::new(self.id.slot))?;
        Ok(self.send.submit(wr, self.config.write_policy, None, &self.domain).0)
    }

    fn check_open(&self) -> Result<()> {
        if !self.is_connected || !self.may_send {
            return Err(NOT_CONNECTED);
        }
        self.check_not_closed()
    }

    /// Posts pending sends: on the own queue pair, or on the backup those that it can carry.
    pub(super) fn post_sends(&mut self) {
        if self.uses_own {
            let Some(own) = self.own.as_ref().filter(|own| own.fence.is_idle()) else { return };
            self.failure =
                self.failure.or(self.send.post(own.qp(), own.rail, own.epoch, &self.domain, false));
            return; // the next poll handles the failure
        }
        let mut state = self.backup.lock();
        if !state.with_core(self.id, |core| core.may_use_backup()).unwrap_or(false) {
            return;
        }
        let (id, grants, posted) = (self.id, &self.grants, &mut self.on_backup);
        self.send.post_with(
            |wr| on_backup(wr, grants),
            |wr, policy| {
                let seq = wr.wr_id;
                let is_posted = state.has_room() && state.post(id, seq, wr, policy);
                *posted += usize::from(is_posted);
                is_posted
            },
        );
    }

    /// Requests an event at the next completion of the queue pair or of the backup, on the completion channels of their NICs. The caller must poll once
    /// more after this call, because a completion may have arrived before the call.
    ///
    /// # Errors
    /// Any error of a NIC other than [`Error::DeviceFatal`], which the next poll handles.
    pub fn arm(&self) -> Result<()> {
        if let Some(own) = &self.own {
            let qp = own.qp();
            match qp.provider().req_notify_cq(qp.cq(), false) {
                Ok(()) | Err(Error::DeviceFatal) => {}
                Err(error) => return Err(error),
            }
        }
        self.backup.lock().backup().arm()
    }
}
