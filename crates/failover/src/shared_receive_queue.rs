use core::fmt;
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, PostError, RecvWr, Result};

use crate::domain::Domain;
use crate::group_member::{Member, Members};
use crate::key_translation::check_limit;

/// Receives that several virtual queue pairs share ([`VirtualQpBuilder::shared_receive_queue`]), or
/// several queue pairs with a shared backup
/// ([`SharedBackup::queue_pair_with_shared_receives`](crate::SharedBackup::queue_pair_with_shared_receives)).
///
/// A shared receive is not posted on any vQP, because a posted receive could not be withdrawn when
/// another vQP needs it. A message arrives in a *slot*, which is memory of the vQP. A poll of the
/// vQP then copies the message to the oldest shared receive. A vQP has as many slots as fit in 4
/// MiB, but at least 4 and at most 64. A sender gets an RNR NAK while no slot is free, and before
/// the first receive is posted.
///
/// A slot is as long as the longest receive posted so far, and at least 16 KiB. A longer message
/// fails. When a longer receive is posted, the next poll of a reliable vQP under
/// [`Policy::Exact`](crate::Policy::Exact) lengthens its slots by a move. Other vQPs keep their
/// slots. An application should announce a longer receive to its sender only after this poll.
///
/// A message is acknowledged when it is in its slot. There it waits for a receive until the vQP is
/// dropped, even if the vQP fails over or closes
/// ([`VirtualQp::waiting_messages`](crate::VirtualQp::waiting_messages)). If a message is longer
/// than its receive, or if the receive's memory regions do not permit the copy, the receive fails
/// and the vQP closes. The sender of the message may have seen success.
///
/// [`VirtualQpBuilder::shared_receive_queue`]: crate::VirtualQpBuilder::shared_receive_queue
pub struct SharedReceiveQueue {
    /// The domain of the receives' memory. A vQP may be in another domain.
    domain: Arc<Domain>,
    max_bytes: u64,
    /// The length in bytes of the longest receive posted so far.
    longest: AtomicUsize,
    /// Whether a receive was posted. `longest` may still be 0 then, because a receive may have no
    /// bytes.
    used: AtomicBool,
    state: Mutex<State>,
    on_limit: Box<dyn Fn() + Send + Sync>,
}

/// The reason why a message takes no shared receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTaken {
    Empty,
    TooShort,
}

struct State {
    depth: usize,
    receives: VecDeque<RecvWr>,
    /// The limit event is due when fewer receives than this are left. 0 if the queue is not armed.
    limit: usize,
    /// The vQPs of poll groups that take receives from the queue.
    members: Members,
    /// The members of which a message waits for a receive.
    waiting: Members,
}

impl State {
    fn take_limit_event(&mut self) -> bool {
        let is_due = self.receives.len() < self.limit;
        if is_due {
            self.limit = 0;
        }
        is_due
    }
}

impl SharedReceiveQueue {
    /// Creates a queue of up to `depth` receives with memory in `domain`.
    pub fn new(domain: &Arc<Domain>, depth: u32) -> Arc<SharedReceiveQueue> {
        SharedReceiveQueue::with_limit_event(domain, depth, || {})
    }

    /// Creates a queue that calls `on_limit` for the limit event ([`SharedReceiveQueue::arm`]), on
    /// the thread that takes the receive or arms the queue.
    pub fn with_limit_event(
        domain: &Arc<Domain>,
        depth: u32,
        on_limit: impl Fn() + Send + Sync + 'static,
    ) -> Arc<SharedReceiveQueue> {
        Arc::new(SharedReceiveQueue {
            domain: Arc::clone(domain),
            max_bytes: domain.limits().message_bytes.into(),
            longest: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            state: Mutex::new(State {
                depth: depth as usize,
                receives: VecDeque::new(),
                limit: 0,
                members: Members::default(),
                waiting: Members::default(),
            }),
            on_limit: Box::new(on_limit),
        })
    }

    /// Posts receives in order. A message that waits in a slot takes its receive at the next poll
    /// of its vQP. Wakes the vQPs with a waker ([`VirtualQpBuilder::waker`]) whose next message
    /// waits, and all of them if the receive is the first or the longest one so far.
    ///
    /// # Errors
    /// The first receive that is refused, with [`Error::SrqFull`], or with [`Error::Limit`] if the
    /// receive is longer than a message. The receives before it are posted.
    ///
    /// [`VirtualQpBuilder::waker`]: crate::VirtualQpBuilder::waker
    pub fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut state = self.state();
        let before = (self.is_used(), self.longest());
        let posted = self.push(&mut state, wrs);
        let waiting = mem::take(&mut state.waiting);
        // The slots of every member depend on these two.
        let woken = if (self.is_used(), self.longest()) == before { waiting } else { state.members.clone() };
        drop(state);
        woken.wake();
        posted
    }

    fn push(&self, state: &mut State, wrs: &[RecvWr]) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate() {
            let refused = |error| PostError { index, error };
            if state.receives.len() >= state.depth {
                return Err(refused(Error::SrqFull { depth: state.depth as u32 }));
            }
            let bytes = len(wr);
            check_limit("bytes of a receive", bytes, self.max_bytes).map_err(refused)?;
            self.longest.fetch_max(bytes as usize, Ordering::Relaxed);
            self.used.store(true, Ordering::Relaxed);
            state.receives.push_back(wr.clone());
        }
        Ok(())
    }

    /// Changes the maximum number of receives. The receives in the queue stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number would be 0, or less than the number of receives in the
    /// queue or than the armed limit.
    pub fn resize(&self, depth: u32) -> Result<()> {
        let mut state = self.state();
        let depth = depth as usize;
        if depth == 0 || depth < state.receives.len() || depth < state.limit {
            return Err(Error::Invalid(
                "a shared receive queue has at least as many entries as receives, and as its limit, and one; choose a larger size",
            ));
        }
        state.depth = depth;
        Ok(())
    }

    /// Requests one limit event, for when fewer than `limit` receives are left. The event comes at
    /// once if fewer are left now.
    ///
    /// # Errors
    /// [`Error::Limit`] if `limit` exceeds the queue's depth.
    pub fn arm(&self, limit: u32) -> Result<()> {
        let is_due = {
            let mut state = self.state();
            check_limit("limit of a shared receive queue", limit.into(), state.depth as u64)?;
            state.limit = limit as usize;
            state.take_limit_event()
        };
        if is_due {
            (self.on_limit)();
        }
        Ok(())
    }

    /// The number of receives in the queue.
    pub fn len(&self) -> usize {
        self.state().receives.len()
    }

    /// Whether no receive is posted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes the oldest receive for a datagram. `bytes` is the length of the datagram with its GRH.
    /// Returns `None` if there is no receive, or if the oldest one is shorter. The datagram is then
    /// lost, and the receive stays.
    pub fn take_for(&self, bytes: u64) -> Option<RecvWr> {
        self.take_if_it_fits(bytes, None).ok()
    }

    /// Takes the oldest receive for a message of `bytes` bytes on a connection. If there is none,
    /// the next post wakes `waits`.
    pub(crate) fn take_if_it_fits(
        &self,
        bytes: u64,
        waits: Option<&Arc<Member>>,
    ) -> Result<RecvWr, NotTaken> {
        let mut state = self.state();
        let Some(oldest) = state.receives.front() else {
            waits.into_iter().for_each(|member| state.waiting.add(member));
            return Err(NotTaken::Empty);
        };
        if len(oldest) < bytes {
            return Err(NotTaken::TooShort);
        }
        let Some(taken) = state.receives.pop_front() else { return Err(NotTaken::Empty) };
        let is_due = state.take_limit_event();
        drop(state);
        if is_due {
            (self.on_limit)();
        }
        Ok(taken)
    }

    /// Adds vQPs that take receives from the queue.
    pub(crate) fn add_members(&self, members: &Members) {
        self.state().members.add_all(members);
    }

    /// The domain of the receives' memory.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// A poisoned lock is taken too, because no code panics while the state is inconsistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

pub(crate) fn len(wr: &RecvWr) -> u64 {
    wr.sges.iter().map(|sge| u64::from(sge.len)).sum()
}

#[cfg(test)]
mod tests {
    use mitra_nics::NicKind;
    use mitra_verbs::{Provider, SgeList};

    use super::*;
    use crate::group_member::tests::counted_member;

    #[test]
    fn member_waits_once_and_until_the_next_receive() {
        let nic: Arc<dyn Provider> = NicKind::Soft.open_free().expect("a loopback NIC opens");
        let domain = Domain::new(vec![nic]).expect("the NIC has room");
        let queue = SharedReceiveQueue::new(&domain, 4);
        let empty = RecvWr { wr_id: 0, sges: SgeList::new() };
        let post = || queue.post_recv(core::slice::from_ref(&empty)).expect("the queue has room");
        post();
        let (member, members, wakes) = counted_member();
        queue.add_members(&members);
        let take = || queue.take_if_it_fits(0, Some(&member)).map(drop);
        assert_eq!(take(), Ok(()));
        (0..2).for_each(|_| assert_eq!(take(), Err(NotTaken::Empty)));
        post();
        assert_eq!(wakes(), 1);
        post();
        assert_eq!(wakes(), 0);
    }
}
