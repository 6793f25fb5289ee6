//! The shared receive queue of virtual queue pairs.
//!
//! A shared receive cannot be posted to a virtual queue pair in advance, because it could not be withdrawn when another queue pair needs
//! a receive. Messages therefore arrive in memory of Mitra ([`super::srq_arrival_ring`]), and each message is copied to the shared receive
//! that is the oldest at this time.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{Error, PostError, RecvWr, Result};

use super::protection_domain::MultiRailPd;
use crate::common::lock::lock;

/// A virtual queue pair that takes receives from a [`VirtualSrq`].
pub(super) trait ReceiveConsumer: Send + Sync {
    /// Matches messages that have arrived with receives that were just posted.
    fn on_receives_posted(&self);
}

/// A shared receive queue.
pub(crate) struct VirtualSrq {
    /// The protection domain of the receives' memory, which may differ from those of the queue pairs.
    pd: Arc<MultiRailPd>,
    /// The maximum length of a receive in bytes.
    max_bytes: u32,
    /// The length in bytes of the longest receive that was posted so far.
    longest: AtomicUsize,
    /// Whether a receive was posted, which may have no bytes.
    used: AtomicBool,
    state: Mutex<State>,
    /// Reports `IBV_EVENT_SRQ_LIMIT_REACHED`.
    on_limit: Box<dyn Fn() + Send + Sync>,
}

struct State {
    /// The maximum number of receives in the queue.
    depth: usize,
    receives: VecDeque<RecvWr>,
    /// The limit event is due when fewer receives than this are left. 0 if the queue is not armed.
    limit: usize,
    /// The queue pairs that take receives from the queue.
    consumers: Vec<Weak<dyn ReceiveConsumer>>,
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

impl VirtualSrq {
    /// Creates a queue for up to `depth` receives of `max_bytes` bytes. `on_limit` reports the limit event.
    pub(crate) fn new(
        pd: Arc<MultiRailPd>,
        depth: u32,
        max_bytes: u32,
        on_limit: impl Fn() + Send + Sync + 'static,
    ) -> Arc<VirtualSrq> {
        Arc::new(VirtualSrq {
            pd,
            max_bytes,
            longest: AtomicUsize::new(0),
            used: AtomicBool::new(false),
            state: Mutex::new(State {
                depth: depth as usize,
                receives: VecDeque::new(),
                limit: 0,
                consumers: Vec::new(),
            }),
            on_limit: Box::new(on_limit),
        })
    }

    /// Adds a queue pair that takes receives from the queue.
    pub(super) fn attach<C: ReceiveConsumer + 'static>(&self, consumer: &Arc<C>) {
        let consumer: Arc<dyn ReceiveConsumer> = Arc::clone(consumer) as Arc<dyn ReceiveConsumer>;
        lock(&self.state).consumers.push(Arc::downgrade(&consumer));
    }

    /// Removes a queue pair that is being destroyed.
    pub(super) fn detach<C: ReceiveConsumer>(&self, consumer: &C) {
        lock(&self.state)
            .consumers
            .retain(|known| known.strong_count() > 0 && !ptr::addr_eq(known.as_ptr(), consumer));
    }

    /// Returns whether no queue pair uses the queue.
    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.state).consumers.iter().all(|known| known.strong_count() == 0)
    }

    /// Returns the length in bytes of the longest receive that was posted so far.
    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    /// Returns whether a receive was posted so far.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Copies a message to the memory that a receive names. Returns false if the regions of the queue's protection domain do not permit it.
    pub(super) fn scatter(&self, wr: &RecvWr, bytes: &[u8]) -> bool {
        self.pd.scatter(&wr.sges, bytes)
    }

    /// Checks the length of a receive, and records it.
    fn check_len(&self, wr: &RecvWr) -> Result<()> {
        let bytes: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
        if bytes > self.max_bytes.into() {
            let attribute = "bytes of a receive";
            return Err(Error::Limit { attribute, requested: bytes, limit: self.max_bytes.into() });
        }
        self.longest.fetch_max(bytes as usize, Ordering::Relaxed);
        self.used.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Posts receives, and has the queue pairs match them with messages that have arrived. After an error, they are matched when a queue
    /// pair is driven the next time.
    ///
    /// # Errors
    /// The index of the first receive that is refused: `Invalid` if the queue is full, or `Limit` if the receive is too long. The receives
    /// before it are posted.
    pub(crate) fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let consumers = {
            let mut state = lock(&self.state);
            for (index, wr) in wrs.iter().enumerate() {
                if state.receives.len() >= state.depth {
                    let error = Error::Invalid("the shared receive queue is full; create it larger");
                    return Err(PostError { index, error });
                }
                self.check_len(wr).map_err(|error| PostError { index, error })?;
                state.receives.push_back(wr.clone());
            }
            state.consumers.clone()
        };
        consumers.iter().filter_map(Weak::upgrade).for_each(|consumer| consumer.on_receives_posted());
        Ok(())
    }

    /// Changes the maximum number of receives. The receives in the queue stay.
    ///
    /// # Errors
    /// `Invalid` if the number would be 0, or less than the number of receives in the queue or than the armed limit.
    pub(crate) fn resize(&self, depth: u32) -> Result<()> {
        let mut state = lock(&self.state);
        let depth = depth as usize;
        if depth == 0 || depth < state.receives.len() || depth < state.limit {
            return Err(Error::Invalid(
                "a shared receive queue has at least as many entries as receives, and as its limit, and one; choose a larger size",
            ));
        }
        state.depth = depth;
        Ok(())
    }

    /// Takes the oldest receive, for a message that has arrived. Reports the limit event if it is due.
    pub(super) fn take(&self) -> Option<RecvWr> {
        let mut state = lock(&self.state);
        let taken = state.receives.pop_front()?;
        let is_due = state.take_limit_event();
        drop(state);
        if is_due {
            (self.on_limit)();
        }
        Some(taken)
    }

    /// Requests one limit event for the time when fewer than `limit` receives are left. If fewer are left now, reports it at once.
    ///
    /// # Errors
    /// `Limit` if `limit` exceeds the queue's depth.
    pub(crate) fn arm(&self, limit: u32) -> Result<()> {
        let is_due = {
            let mut state = lock(&self.state);
            if limit as usize > state.depth {
                let attribute = "limit of a shared receive queue";
                return Err(Error::Limit { attribute, requested: limit.into(), limit: state.depth as u64 });
            }
            state.limit = limit as usize;
            state.take_limit_event()
        };
        if is_due {
            (self.on_limit)();
        }
        Ok(())
    }
}
