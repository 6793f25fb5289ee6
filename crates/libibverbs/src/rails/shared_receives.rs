//! A shared receive queue of virtual queue pairs.
//!
//! A virtual queue pair has receives of its own, which move with it. So the shared ones are lent to its users, a few to each:
//! a user that is idle keeps what it was lent. No user is lent more than its share of half the queue, at least one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{Error, RecvWr, Result};

use super::lock;
use super::pair::Pair;

/// Receives lent to one user, at most.
const MOST: usize = 64;

/// The queue.
pub(crate) struct SharedReceives {
    depth: usize,
    state: Mutex<State>,
    /// Tells the program that the limit was reached.
    on_limit: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    pool: VecDeque<RecvWr>,
    lent: usize,
    /// Below so many an event is due, once.
    limit: usize,
    users: Vec<Weak<Pair>>,
}

impl SharedReceives {
    pub(crate) fn new(depth: u32, on_limit: impl Fn() + Send + Sync + 'static) -> Arc<SharedReceives> {
        Arc::new(SharedReceives {
            depth: depth as usize,
            state: Mutex::default(),
            on_limit: Box::new(on_limit),
        })
    }

    pub(super) fn join(&self, pair: &Arc<Pair>) {
        lock(&self.state).users.push(Arc::downgrade(pair));
    }

    /// A user goes, and gives back what it was lent and did not use.
    pub(super) fn leave(&self, pair: &Pair, unused: VecDeque<RecvWr>) {
        lock(&self.state)
            .users
            .retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), pair));
        self.give_back(unused);
    }

    /// Receives that were lent and not used.
    pub(super) fn give_back(&self, unused: VecDeque<RecvWr>) {
        let mut state = lock(&self.state);
        state.lent -= unused.len();
        unused.into_iter().rev().for_each(|wr| state.pool.push_front(wr));
    }

    /// Whether nobody uses it.
    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.state).users.iter().all(|known| known.strong_count() == 0)
    }

    /// Adds receives, and lends what its users want.
    pub(crate) fn post(&self, wrs: &[RecvWr]) -> Result<(), mitra_verbs::PostError> {
        let users = {
            let mut state = lock(&self.state);
            for (index, wr) in wrs.iter().enumerate() {
                if state.pool.len() + state.lent >= self.depth {
                    let error = Error::Invalid("the shared receive queue is full; create it larger");
                    return Err(mitra_verbs::PostError { index, error });
                }
                state.pool.push_back(wr.clone());
            }
            state.users.clone()
        };
        users.iter().filter_map(Weak::upgrade).for_each(|pair| pair.feed());
        Ok(())
    }

    /// Lends receives to a user that has so many already.
    pub(super) fn lend(&self, has: usize) -> Vec<RecvWr> {
        let mut state = lock(&self.state);
        let share = (self.depth / 2 / state.users.len().max(1)).clamp(1, MOST);
        let n = share.saturating_sub(has).min(state.pool.len());
        state.lent += n;
        state.pool.drain(..n).collect()
    }

    /// A receive that was lent has been used.
    pub(super) fn used(&self) {
        let mut state = lock(&self.state);
        state.lent -= 1;
        let due = state.pool.len() + state.lent < state.limit;
        if due {
            state.limit = 0;
        }
        drop(state);
        if due {
            (self.on_limit)();
        }
    }

    /// Asks for an event when fewer than `limit` receives are left.
    pub(crate) fn arm(&self, limit: u32) {
        lock(&self.state).limit = limit as usize;
    }
}
