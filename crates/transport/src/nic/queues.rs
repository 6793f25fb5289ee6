//! The verbs on completion queues and shared receive queues.

use mitra_verbs::{CqId, Error, PdId, PostError, RecvWr, Result, SrqId, Wc};

use crate::Nic;
use crate::nic::check_limit;
use crate::nic::recv_queue::{RecvPostError, RecvQueue, Srq};

impl Nic {
    /// Creates a completion queue of `depth` entries.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `depth` is 0.
    /// - [`Error::Limit`]: `depth` is too large, or the NIC has the maximum number of completion
    ///   queues.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId> {
        self.shared.cqs.create(depth)
    }

    /// Changes the number of entries of a completion queue. `waiting` is the number of completions
    /// that the driver has taken and not yet delivered.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the completion queue does not exist.
    /// - [`Error::Invalid`]: `depth` is 0, or less than the number of completions in the queue.
    /// - [`Error::Limit`]: `depth` is too large.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32, waiting: usize) -> Result<()> {
        self.shared.cqs.resize(cq, depth, waiting)
    }

    /// Removes a completion queue.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the completion queue does not exist.
    /// - [`Error::Busy`]: a queue pair or an XRC shared receive queue uses the completion queue.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        self.shared.cqs.destroy(cq)?;
        self.shared.events.remove_cq(cq);
        Ok(())
    }

    /// Moves up to `max` completions to the end of `out`, oldest first, and returns their number.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the completion queue does not exist.
    pub fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        self.shared.cqs.poll(cq, max, out)
    }

    /// Returns the number of completions that are not yet polled.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the completion queue does not exist.
    pub fn cq_len(&self, cq: CqId) -> Result<usize> {
        self.shared.cqs.len(cq)
    }

    /// Arms the completion queue for one event. The event is raised by the next completion, or, if
    /// `solicited_only` is set, by the next completion that is solicited or failed.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the completion queue does not exist.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<()> {
        self.shared.cqs.arm(cq, solicited_only)
    }

    /// Creates a shared receive queue of `depth` entries.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Limit`]: `depth` is too large, or the NIC has the maximum number of shared
    ///   receive queues.
    pub fn create_srq(&mut self, pd: PdId, depth: u32) -> Result<SrqId> {
        self.pds.get(pd.0)?;
        let limits = self.attr.limits;
        check_limit("shared receive queue entries", depth, limits.wrs)?;
        let queue = RecvQueue::new(depth, limits.sges);
        let srq = self.shared.srqs.insert(Srq { pd, queue, limit: 0, users: 0, xrc: None }).map(SrqId)?;
        *self.pds.get_mut(pd.0)? += 1;
        Ok(srq)
    }

    /// Arms [`AsyncEvent::SrqLimitReached`](mitra_verbs::AsyncEvent::SrqLimitReached), which the
    /// NIC raises once when the queue holds fewer than `limit` receives. A limit of 0 disarms the
    /// event.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Limit`]: `limit` exceeds the depth of the queue.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<()> {
        let queue = self.shared.srqs.get_mut(srq.0)?;
        check_limit("limit of a shared receive queue", limit, queue.queue.depth())?;
        queue.limit = limit;
        self.shared.check_srq_limit(srq);
        Ok(())
    }

    /// Changes the number of entries of a shared receive queue. Its receives stay.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Limit`]: `depth` is too large.
    /// - [`Error::Invalid`]: `depth` is 0, less than the number of receives in the queue, or less
    ///   than the armed limit.
    pub fn resize_srq(&mut self, srq: SrqId, depth: u32) -> Result<()> {
        check_limit("shared receive queue entries", depth, self.attr.limits.wrs)?;
        let srq = self.shared.srqs.get_mut(srq.0)?;
        if depth == 0 || depth < srq.limit || (depth as usize) < srq.queue.len() {
            return Err(Error::Invalid(
                "a shared receive queue has at least as many entries as receives, and as its limit, and one; choose a larger size",
            ));
        }
        srq.queue.set_depth(depth);
        Ok(())
    }

    /// Removes a shared receive queue.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Busy`]: a queue pair uses the shared receive queue.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        if self.shared.srqs.get(srq.0)?.users > 0 {
            return Err(Error::Busy { kind: "shared receive queue", id: srq.0, user: "a queue pair" });
        }
        let removed = self.shared.srqs.remove(srq.0)?;
        *self.pds.get_mut(removed.pd.0)? -= 1;
        if let Some(xrc) = removed.xrc {
            self.shared.xrc.remove_srq(&xrc);
            self.shared.cqs.remove_user(xrc.cq);
        }
        self.shared.events.remove_srq(srq);
        Ok(())
    }

    /// Posts receives to a shared receive queue.
    ///
    /// # Errors
    /// A [`PostError`] with the index of the first receive that was not posted. The cause is
    /// [`Error::NoSuchObject`], [`Error::Limit`] for a receive that is too long or has too many
    /// entries, or [`Error::SrqFull`].
    pub fn post_srq_recv(&mut self, srq: SrqId, wrs: &[RecvWr]) -> Result<(), PostError> {
        let limits = self.attr.limits;
        let queue = self.shared.srqs.get_mut(srq.0).map_err(|error| PostError { index: 0, error })?;
        for (index, wr) in wrs.iter().enumerate() {
            queue.queue.post(wr, &limits).map_err(|error| PostError {
                index,
                error: match error {
                    RecvPostError::Error(error) => error,
                    RecvPostError::Full => Error::SrqFull { depth: queue.queue.depth() },
                },
            })?;
        }
        Ok(())
    }

    /// Removes and returns the next completion queue with an event. The queue was disarmed when the
    /// NIC raised the event.
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        self.shared.cqs.next_event()
    }
}
