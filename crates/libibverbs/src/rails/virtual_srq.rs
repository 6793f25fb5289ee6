//! The shared receive queue of queue pairs over several rails.

use std::sync::Arc;

use mitra_failover::SharedReceiveQueue;
use mitra_verbs::{Error, PostError, RecvWr, Result, SrqId, Srqn, XrcdId};

use super::device::SharedReceives;
use super::drive_queue::DriveQueue;
use super::protection_domain::MultiRailPd;
use super::queue_users::QueueUsers;

/// A shared receive queue, and the queue pairs that take receives from it.
pub(crate) struct VirtualSrq {
    id: SrqId,
    queue: Arc<SharedReceiveQueue>,
    pub(super) users: QueueUsers,
    drive_queue: Arc<DriveQueue>,
    /// The XRC domain of an XRC shared receive queue, and the queue's number there.
    pub(super) xrc: Option<(XrcdId, Srqn)>,
}

impl VirtualSrq {
    /// Creates a queue for up to `depth` receives. Their memory belongs to `pd`, which may differ
    /// from the queue pairs' protection domains. `on_limit` reports `IBV_EVENT_SRQ_LIMIT_REACHED`.
    pub(super) fn new(
        pd: &MultiRailPd,
        id: SrqId,
        xrc: Option<(XrcdId, Srqn)>,
        depth: u32,
        on_limit: impl Fn() + Send + Sync + 'static,
    ) -> Arc<VirtualSrq> {
        let queue = SharedReceiveQueue::with_limit_event(&pd.failover, depth, on_limit);
        let (users, drive_queue) = (QueueUsers::default(), Arc::clone(&pd.drive_queue));
        Arc::new(VirtualSrq { id, queue, users, drive_queue, xrc })
    }

    pub(super) fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }
}

impl SharedReceives for VirtualSrq {
    fn id(&self) -> SrqId {
        self.id
    }

    fn number(&self) -> Result<Srqn> {
        let (_, number) = self.xrc.ok_or(Error::Invalid(
            "only an XRC shared receive queue has a number; create it in an XRC domain",
        ))?;
        Ok(number)
    }

    /// Has the queue pairs match the receives with messages that have arrived.
    fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let posted = self.queue.post_recv(wrs);
        // The queue has woken the queue pairs whose messages wait. The program may sleep until
        // their completions, so they are driven now.
        self.drive_queue.drive_woken(|qp| self.users.contains(qp));
        posted
    }

    fn resize(&self, depth: u32) -> Result<()> {
        self.queue.resize(depth)
    }

    fn arm(&self, limit: u32) -> Result<()> {
        self.queue.arm(limit)
    }
}
