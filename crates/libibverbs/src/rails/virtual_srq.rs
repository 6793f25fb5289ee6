//! The shared receive queue of virtual queue pairs.
//!
//! The receives of a virtual queue pair move with it to another rail. A receive of a shared queue cannot be posted to a virtual
//! queue pair, because it could not be taken back when another queue pair needs it. Messages therefore arrive in memory of
//! Mitra ([`super::bounce_ring`]), and are copied to the oldest shared receive.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{Error, PostError, RecvWr, Result};

use crate::common::lock::lock;

/// A queue pair that takes receives from a [`VirtualSrq`].
pub(super) trait ReceiveConsumer: Send + Sync {
    /// Matches messages that wait with receives that were just posted.
    fn on_receives_posted(&self);
}

/// A shared receive queue.
pub(crate) struct VirtualSrq {
    depth: usize,
    /// The largest number of bytes of a receive posted so far.
    longest: AtomicUsize,
    state: Mutex<State>,
    /// Reports `IBV_EVENT_SRQ_LIMIT_REACHED`.
    on_limit: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    receives: VecDeque<RecvWr>,
    /// The event is due once fewer receives than this are left. 0 when the queue is not armed.
    limit: usize,
    consumers: Vec<Weak<dyn ReceiveConsumer>>,
}

impl State {
    /// Returns whether the limit event is due, and disarms the queue if so.
    fn take_limit_event(&mut self) -> bool {
        let is_due = self.receives.len() < self.limit;
        if is_due {
            self.limit = 0;
        }
        is_due
    }
}

impl VirtualSrq {
    /// Creates a queue of `depth` receives.
    pub(crate) fn new(depth: u32, on_limit: impl Fn() + Send + Sync + 'static) -> Arc<VirtualSrq> {
        Arc::new(VirtualSrq {
            depth: depth as usize,
            longest: AtomicUsize::new(0),
            state: Mutex::default(),
            on_limit: Box::new(on_limit),
        })
    }

    /// Adds a queue pair.
    pub(super) fn attach<C: ReceiveConsumer + 'static>(&self, consumer: &Arc<C>) {
        let consumer: Arc<dyn ReceiveConsumer> = Arc::clone(consumer) as Arc<dyn ReceiveConsumer>;
        lock(&self.state).consumers.push(Arc::downgrade(&consumer));
    }

    /// Removes a queue pair.
    pub(super) fn detach<C: ReceiveConsumer>(&self, consumer: &C) {
        lock(&self.state)
            .consumers
            .retain(|known| known.strong_count() > 0 && !ptr::addr_eq(known.as_ptr(), consumer));
    }

    /// Returns whether no queue pair uses the queue.
    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.state).consumers.iter().all(|known| known.strong_count() == 0)
    }

    /// Returns the largest number of bytes of a receive posted so far.
    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    /// Posts receives, and matches them with messages that wait.
    ///
    /// # Errors
    /// `Invalid` at the first receive that exceeds the queue's depth. Those before it are posted.
    pub(crate) fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let consumers = {
            let mut state = lock(&self.state);
            for (index, wr) in wrs.iter().enumerate() {
                if state.receives.len() >= self.depth {
                    let error = Error::Invalid("the shared receive queue is full; create it larger");
                    return Err(PostError { index, error });
                }
                let len = wr.sges.iter().map(|sge| sge.len as usize).sum();
                self.longest.fetch_max(len, Ordering::Relaxed);
                state.receives.push_back(wr.clone());
            }
            state.consumers.clone()
        };
        consumers.iter().filter_map(Weak::upgrade).for_each(|consumer| consumer.on_receives_posted());
        Ok(())
    }

    /// Takes the oldest receive, for a message that has arrived.
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

    /// Requests one event when fewer than `limit` receives are left, which may be at once.
    ///
    /// # Errors
    /// `Limit` if `limit` exceeds the queue's depth.
    pub(crate) fn arm(&self, limit: u32) -> Result<()> {
        if limit as usize > self.depth {
            let attribute = "limit of a shared receive queue";
            return Err(Error::Limit { attribute, requested: limit.into(), limit: self.depth as u64 });
        }
        let is_due = {
            let mut state = lock(&self.state);
            state.limit = limit as usize;
            state.take_limit_event()
        };
        if is_due {
            (self.on_limit)();
        }
        Ok(())
    }
}
