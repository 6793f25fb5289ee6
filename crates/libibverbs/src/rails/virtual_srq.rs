//! The shared receive queue of queue pairs over several rails.

use std::sync::Arc;

use mitra_failover::SharedReceiveQueue;
use mitra_verbs::{PostError, RecvWr};

use super::drive_queue::DriveQueue;
use super::protection_domain::MultiRailPd;
use super::queue_users::QueueUsers;

/// A shared receive queue, and the queue pairs that take receives from it.
pub(crate) struct VirtualSrq {
    queue: Arc<SharedReceiveQueue>,
    pub(super) users: QueueUsers,
    drive_queue: Arc<DriveQueue>,
}

impl VirtualSrq {
    /// Creates a queue for up to `depth` receives. Their memory belongs to `pd`, which may differ
    /// from the queue pairs' protection domains. `on_limit` reports `IBV_EVENT_SRQ_LIMIT_REACHED`.
    pub(crate) fn new(
        pd: &MultiRailPd,
        depth: u32,
        on_limit: impl Fn() + Send + Sync + 'static,
    ) -> Arc<VirtualSrq> {
        let queue = SharedReceiveQueue::with_limit_event(&pd.failover, depth, on_limit);
        Arc::new(VirtualSrq { queue, users: QueueUsers::default(), drive_queue: Arc::clone(&pd.drive_queue) })
    }

    pub(crate) fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.users.is_empty()
    }

    /// Posts receives, and has the queue pairs match them with messages that have arrived.
    ///
    /// # Errors
    /// The errors of [`SharedReceiveQueue::post_recv`].
    pub(crate) fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let posted = self.queue.post_recv(wrs);
        // The queue has woken the queue pairs whose messages wait. The program may sleep until
        // their completions, so they are driven now.
        self.drive_queue.drive_woken(|qp| self.users.contains(qp));
        posted
    }
}
