use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, Result, Srqn};

use crate::shared_receive_queue::SharedReceiveQueue;

/// An XRC domain (IBTA volume 1, annex A14): shared receive queues that peers name by number.
///
/// The receiving end of an XRC connection is a virtual queue pair in the domain
/// ([`VirtualQpBuilder::xrc_domain`]). Each message takes a receive of the queue that the message
/// names ([`SendWr::to_srq`]). The messages of a connection complete in the order of their sends,
/// even if they name different queues. A message whose queue has no receive therefore delays the
/// messages behind it.
///
/// [`VirtualQpBuilder::xrc_domain`]: crate::VirtualQpBuilder::xrc_domain
/// [`SendWr::to_srq`]: mitra_verbs::SendWr::to_srq
#[derive(Default)]
pub struct XrcDomain {
    queues: Mutex<BTreeMap<Srqn, Arc<SharedReceiveQueue>>>,
}

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Arc<XrcDomain> {
        Arc::default()
    }

    /// Adds a queue under a number of the caller's choice.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number is 0, which names no queue, or if another queue has it.
    pub fn insert(&self, number: Srqn, queue: &Arc<SharedReceiveQueue>) -> Result<()> {
        let mut queues = self.queues();
        if number == Srqn::default() || queues.contains_key(&number) {
            return Err(Error::Invalid(
                "the number of an XRC shared receive queue is 0 or taken; choose another one",
            ));
        }
        queues.insert(number, Arc::clone(queue));
        Ok(())
    }

    /// Removes a queue. Messages that wait for its receives are dropped. A later message that names
    /// the queue closes the virtual queue pair that received the message.
    pub fn remove(&self, number: Srqn) {
        self.queues().remove(&number);
    }

    /// The queue with this number.
    pub fn queue(&self, number: Srqn) -> Option<Arc<SharedReceiveQueue>> {
        self.queues().get(&number).cloned()
    }

    pub(crate) fn is_used(&self) -> bool {
        self.queues().values().any(|queue| queue.is_used())
    }

    /// In bytes, over all queues.
    pub(crate) fn longest(&self) -> usize {
        self.queues().values().map(|queue| queue.longest()).max().unwrap_or(0)
    }

    /// A poisoned lock is taken too, because no code panics while the queues are inconsistent.
    fn queues(&self) -> MutexGuard<'_, BTreeMap<Srqn, Arc<SharedReceiveQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.queues().keys()).finish()
    }
}
