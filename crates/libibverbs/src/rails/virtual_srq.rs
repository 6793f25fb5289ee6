//! The shared receive queue of queue pairs over several rails.

use std::ptr;
use std::sync::{Arc, Mutex, Weak};

use mitra_failover::SharedReceiveQueue;
use mitra_verbs::{PostError, RecvWr};

use super::protection_domain::MultiRailPd;
use crate::common::lock::lock;

/// A queue pair that takes receives from a [`VirtualSrq`].
pub(super) trait ReceiveConsumer: Send + Sync {
    /// Matches messages that have arrived with receives that were just posted.
    fn on_receives_posted(&self);
}

/// A shared receive queue, and the queue pairs that take receives from it.
pub(crate) struct VirtualSrq {
    queue: Arc<SharedReceiveQueue>,
    consumers: Mutex<Vec<Weak<dyn ReceiveConsumer>>>,
}

impl VirtualSrq {
    /// Creates a queue for up to `depth` receives. Their memory belongs to `pd`, which may differ
    /// from the queue pairs' domains. `on_limit` reports `IBV_EVENT_SRQ_LIMIT_REACHED`.
    pub(crate) fn new(
        pd: &MultiRailPd,
        depth: u32,
        on_limit: impl Fn() + Send + Sync + 'static,
    ) -> Arc<VirtualSrq> {
        let queue = SharedReceiveQueue::with_limit_event(&pd.failover, depth, on_limit);
        Arc::new(VirtualSrq { queue, consumers: Mutex::default() })
    }

    pub(crate) fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }

    pub(super) fn attach(&self, consumer: Arc<dyn ReceiveConsumer>) {
        lock(&self.consumers).push(Arc::downgrade(&consumer));
    }

    pub(super) fn detach<C: ReceiveConsumer + ?Sized>(&self, consumer: &C) {
        lock(&self.consumers)
            .retain(|known| known.strong_count() > 0 && !ptr::addr_eq(known.as_ptr(), consumer));
    }

    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.consumers).iter().all(|known| known.strong_count() == 0)
    }

    /// Posts receives, and has the queue pairs match them with messages that have arrived. After an
    /// error, they are matched when a queue pair is driven the next time.
    ///
    /// # Errors
    /// The errors of [`SharedReceiveQueue::post_recv`].
    pub(crate) fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        self.queue.post_recv(wrs)?;
        let consumers = lock(&self.consumers).clone();
        consumers.iter().filter_map(Weak::upgrade).for_each(|consumer| consumer.on_receives_posted());
        Ok(())
    }
}
