use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, Result, Srqn};

use crate::shared_receive_queue::SharedReceiveQueue;

/// An XRC domain (IBTA volume 1, annex A14): shared receive queues, which peers name by their
/// numbers.
///
/// The receiving end of an XRC connection is a virtual queue pair in the domain
/// ([`VirtualQpBuilder::xrc_domain`]). Each message that it receives takes a receive of the queue
/// that the message names ([`SendWr::to_srq`]). The messages of a connection complete in the order
/// in which they were sent, whichever queues they name; so a message waits if its queue has no
/// receive, and those behind it wait too.
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

    /// Adds a queue with a number that the caller chooses.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number is 0, which names no queue, or belongs to another queue of
    /// the domain.
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

    /// Removes a queue. A message that waits for a receive of it is dropped, and one that names it
    /// from now on closes the virtual queue pair that received it.
    pub fn remove(&self, number: Srqn) {
        self.queues().remove(&number);
    }

    /// Returns the queue with a number.
    pub fn queue(&self, number: Srqn) -> Option<Arc<SharedReceiveQueue>> {
        self.queues().get(&number).cloned()
    }

    /// Returns whether a receive was posted to any of the queues.
    pub(crate) fn is_used(&self) -> bool {
        self.queues().values().any(|queue| queue.is_used())
    }

    /// The length in bytes of the longest receive that was posted so far.
    pub(crate) fn longest(&self) -> usize {
        self.queues().values().map(|queue| queue.longest()).max().unwrap_or(0)
    }

    /// Locks the queues, even if the lock is poisoned, because no code panics while they are
    /// inconsistent.
    fn queues(&self) -> MutexGuard<'_, BTreeMap<Srqn, Arc<SharedReceiveQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.queues().keys()).finish()
    }
}
