//! A shared receive queue of virtual queue pairs.
//!
//! A virtual queue pair has receives of its own, which move with it; a receive that it was lent could not be had back, and any
//! other user may need it. So messages arrive in memory of Mitra's ([`super::bounce`]) and are copied to the oldest shared
//! receive when there is one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{Error, PostError, RecvWr, Result};

use super::pair::Pair;
use crate::common::lock::lock;

/// The queue.
pub(crate) struct SharedReceives {
    depth: usize,
    /// Bytes of the longest receive that was posted.
    longest: AtomicUsize,
    state: Mutex<State>,
    /// Tells the program that the limit was reached.
    on_limit: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    pool: VecDeque<RecvWr>,
    /// When fewer are left an event is due, once.
    limit: usize,
    users: Vec<Weak<Pair>>,
}

impl State {
    /// Whether the event is due now: it is given once.
    fn is_due(&mut self) -> bool {
        let due = self.pool.len() < self.limit;
        if due {
            self.limit = 0;
        }
        due
    }
}

impl SharedReceives {
    pub(crate) fn new(depth: u32, on_limit: impl Fn() + Send + Sync + 'static) -> Arc<SharedReceives> {
        Arc::new(SharedReceives {
            depth: depth as usize,
            longest: AtomicUsize::new(0),
            state: Mutex::default(),
            on_limit: Box::new(on_limit),
        })
    }

    pub(super) fn join(&self, pair: &Arc<Pair>) {
        lock(&self.state).users.push(Arc::downgrade(pair));
    }

    pub(super) fn leave(&self, pair: &Pair) {
        lock(&self.state)
            .users
            .retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), pair));
    }

    /// Whether nobody uses it.
    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.state).users.iter().all(|known| known.strong_count() == 0)
    }

    /// Bytes of the longest receive so far.
    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    /// Adds receives, and gives them to messages that wait.
    pub(crate) fn post(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let users = {
            let mut state = lock(&self.state);
            for (index, wr) in wrs.iter().enumerate() {
                if state.pool.len() >= self.depth {
                    let error = Error::Invalid("the shared receive queue is full; create it larger");
                    return Err(PostError { index, error });
                }
                let len = wr.sges.iter().map(|sge| sge.len as usize).sum();
                self.longest.fetch_max(len, Ordering::Relaxed);
                state.pool.push_back(wr.clone());
            }
            state.users.clone()
        };
        users.iter().filter_map(Weak::upgrade).for_each(|pair| pair.feed());
        Ok(())
    }

    /// Takes the oldest receive, for a message that has arrived.
    pub(super) fn take(&self) -> Option<RecvWr> {
        let mut state = lock(&self.state);
        let taken = state.pool.pop_front()?;
        let due = state.is_due();
        drop(state);
        if due {
            (self.on_limit)();
        }
        Some(taken)
    }

    /// Asks for an event when fewer than `limit` receives are left: at once, if there are.
    pub(crate) fn arm(&self, limit: u32) -> Result<()> {
        if limit as usize > self.depth {
            let what = "limit of a shared receive queue";
            return Err(Error::Limit { attribute: what, requested: limit.into(), limit: self.depth as u64 });
        }
        let due = {
            let mut state = lock(&self.state);
            state.limit = limit as usize;
            state.is_due()
        };
        if due {
            (self.on_limit)();
        }
        Ok(())
    }
}
