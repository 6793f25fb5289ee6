use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Error, PostError, RecvWr, Result};

use crate::domain::Domain;
use crate::key_translation::check_limit;

/// A queue of receives that any number of virtual queue pairs share
/// ([`VirtualQpBuilder::shared_receive_queue`]), or queue pairs with a shared backup
/// ([`SharedBackup::queue_pair_with_shared_receives`](crate::SharedBackup::queue_pair_with_shared_receives)).
///
/// A shared receive cannot be posted on a vQP in advance, because it could not be withdrawn when
/// another vQP needs a receive. Messages therefore arrive in memory of the vQP, in *slots*, and a
/// poll of the vQP copies each message to the shared receive that is the oldest at this time. A
/// slot is as long as the longest receive that was posted so far, and at least 16 KiB; a longer
/// message fails. When a longer receive is posted, the next poll of a reliable vQP under
/// [`Policy::Exact`](crate::Policy::Exact) makes its slots longer, which takes a move. Tell the
/// sender of the receive after this poll. Otherwise the slots stay as they are. A sender gets an
/// RNR NAK when no slot is free: until the first receive is posted, and while as many messages wait
/// as there are slots (4 to 64, of 4 MiB altogether if that suffices for 4).
///
/// A message is acknowledged when it is in its slot. It waits there for a receive, also while the
/// vQP fails over and after the vQP has closed, until the vQP is dropped
/// ([`VirtualQp::waiting_messages`](crate::VirtualQp::waiting_messages)). A message that does not
/// fit in its receive, or that the receive's memory regions do not permit, fails the receive and
/// closes the vQP; its sender may have seen success.
///
/// [`VirtualQpBuilder::shared_receive_queue`]: crate::VirtualQpBuilder::shared_receive_queue
pub struct SharedReceiveQueue {
    /// The domain of the receives' memory, which may differ from those of the vQPs.
    domain: Arc<Domain>,
    /// The maximum length of a receive in bytes.
    max_bytes: u64,
    /// The length in bytes of the longest receive that was posted so far.
    longest: AtomicUsize,
    /// Whether a receive was posted, which may have no bytes.
    used: AtomicBool,
    state: Mutex<State>,
    on_limit: Box<dyn Fn() + Send + Sync>,
}

/// Why a message takes no shared receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTaken {
    /// The queue has no receive.
    Empty,
    /// The oldest receive is shorter than the message.
    TooShort,
}

struct State {
    /// The maximum number of receives in the queue.
    depth: usize,
    receives: VecDeque<RecvWr>,
    /// The limit event is due when fewer receives than this are left. 0 if the queue is not armed.
    limit: usize,
}

impl State {
    /// Returns whether the limit event is due. If it is, disarms the queue.
    fn take_limit_event(&mut self) -> bool {
        let is_due = self.receives.len() < self.limit;
        if is_due {
            self.limit = 0;
        }
        is_due
    }
}

impl SharedReceiveQueue {
    /// Creates a queue of up to `depth` receives, whose memory is registered in `domain`.
    pub fn new(domain: &Arc<Domain>, depth: u32) -> Arc<SharedReceiveQueue> {
        SharedReceiveQueue::with_limit_event(domain, depth, || {})
    }

    /// Creates a queue as [`SharedReceiveQueue::new`] does, which calls `on_limit` for the limit
    /// event ([`SharedReceiveQueue::arm`]). The call is made by the thread that took the receive or
    /// armed the queue.
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
            state: Mutex::new(State { depth: depth as usize, receives: VecDeque::new(), limit: 0 }),
            on_limit: Box::new(on_limit),
        })
    }

    /// Posts receives in order. A message that waits on a vQP takes its receive when that vQP is
    /// polled.
    ///
    /// # Errors
    /// The index of the first receive that is refused: [`Error::SrqFull`], or [`Error::Limit`] if
    /// the receive is longer than a message. The receives before it are posted.
    pub fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut state = self.state();
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

    /// Requests one limit event for the time when fewer than `limit` receives are left. If fewer
    /// are left now, reports it at once.
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

    /// Returns whether no receive is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The length in bytes of the longest receive that was posted so far.
    pub(crate) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    /// Returns whether a receive was posted so far.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes the oldest receive, for a datagram of `bytes` bytes with its GRH. Returns `None` if
    /// there is no receive, or if the oldest one is shorter: a datagram that does not fit is lost,
    /// and the receive stays. Reports the limit event if it is due.
    pub fn take_for(&self, bytes: u64) -> Option<RecvWr> {
        self.take_if_it_fits(bytes).ok()
    }

    /// Does the same as [`SharedReceiveQueue::take_for`], for a message of a connection.
    ///
    /// # Errors
    /// The reason for which no receive was taken.
    pub(crate) fn take_if_it_fits(&self, bytes: u64) -> Result<RecvWr, NotTaken> {
        let mut state = self.state();
        let Some(oldest) = state.receives.front() else { return Err(NotTaken::Empty) };
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

    /// The domain of the receives' memory.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Locks the state, even if the lock is poisoned, because no code panics while the state is
    /// inconsistent.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The length of a receive in bytes.
pub(crate) fn len(wr: &RecvWr) -> u64 {
    wr.sges.iter().map(|sge| u64::from(sge.len)).sum()
}
