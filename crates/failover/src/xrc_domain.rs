use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, Result, Srqn};

use crate::group_member::Members;
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<Srqn, Arc<SharedReceiveQueue>>,
    /// The vQPs of poll groups that take receives from the queues.
    members: Members,
}

impl XrcDomain {
    /// Creates a domain without queues.
    pub fn new() -> Arc<XrcDomain> {
        Arc::default()
    }

    /// Adds a queue under a number of the caller's choice. Wakes the vQPs with a waker that are in
    /// the domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number is 0, which names no queue, or if another queue has it.
    pub fn insert(&self, number: Srqn, queue: &Arc<SharedReceiveQueue>) -> Result<()> {
        let mut state = self.state();
        if number == Srqn::default() || state.queues.contains_key(&number) {
            return Err(Error::Invalid(
                "the number of an XRC shared receive queue is 0 or taken; choose another one",
            ));
        }
        queue.add_members(&state.members);
        state.queues.insert(number, Arc::clone(queue));
        wake_members(state);
        Ok(())
    }

    /// Removes a queue. Messages that wait for its receives are dropped. A later message that names
    /// the queue closes the virtual queue pair that received the message. Wakes the vQPs with a
    /// waker that are in the domain.
    pub fn remove(&self, number: Srqn) {
        let mut state = self.state();
        state.queues.remove(&number);
        wake_members(state);
    }

    /// The queue with this number.
    pub fn queue(&self, number: Srqn) -> Option<Arc<SharedReceiveQueue>> {
        self.state().queues.get(&number).cloned()
    }

    pub(crate) fn is_used(&self) -> bool {
        self.state().queues.values().any(|queue| queue.is_used())
    }

    /// Returns the length in bytes of the longest receive that is posted to any queue.
    pub(crate) fn longest(&self) -> usize {
        self.state().queues.values().map(|queue| queue.longest()).max().unwrap_or(0)
    }

    /// Adds vQPs that take receives from the queues.
    pub(crate) fn add_members(&self, members: &Members) {
        let mut state = self.state();
        state.members.add_all(members);
        state.queues.values().for_each(|queue| queue.add_members(members));
    }

    /// A poisoned lock is taken too, because no code panics while the queues are inconsistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waker must not be called under the lock.
fn wake_members(state: MutexGuard<'_, State>) {
    let members = state.members.clone();
    drop(state);
    members.wake();
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.state().queues.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use mitra_nics::NicKind;
    use mitra_verbs::{Provider, RecvWr, SgeList};

    use super::*;
    use crate::domain::Domain;
    use crate::group_member::tests::counted_member;

    #[test]
    fn queue_that_is_added_or_removed_wakes_the_members_of_the_domain() {
        let nic: Arc<dyn Provider> = NicKind::Soft.open_free().expect("a loopback NIC opens");
        let domain = Domain::new(vec![nic]).expect("the NIC has room");
        let queues = [(); 2].map(|()| SharedReceiveQueue::new(&domain, 4));
        let empty = RecvWr { wr_id: 0, sges: SgeList::new() };
        let post = |queue: &SharedReceiveQueue| {
            queue.post_recv(core::slice::from_ref(&empty)).expect("the queue has room");
        };
        let xrc = XrcDomain::new();
        xrc.insert(Srqn::new(1), &queues[0]).expect("the number is free");
        let (_member, members, wakes) = counted_member();
        xrc.add_members(&members);
        assert_eq!(wakes(), 0);
        xrc.insert(Srqn::new(2), &queues[1]).expect("the number is free");
        assert_eq!(wakes(), 1);
        for queue in &queues {
            post(queue);
            assert_eq!(wakes(), 1, "the first receive");
            post(queue);
            assert_eq!(wakes(), 0);
        }
        xrc.remove(Srqn::new(1));
        assert_eq!(wakes(), 1);
    }
}
