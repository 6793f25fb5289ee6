//! A completion queue that virtual queue pairs complete in.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

use mitra_verbs::{Result, Wc, WcStatus};

use super::pair::Pair;
use crate::common::event_queue::EventQueue;
use crate::common::lock::lock;

/// What a queue can be armed for, each for all that those before it are.
const NOTHING: u8 = 0;
const SOLICITED: u8 = 1;
const ANYTHING: u8 = 2;

/// Completions in this process's memory, of any number of virtual queue pairs.
pub(crate) struct Completions {
    ready: Mutex<VecDeque<Wc>>,
    /// What it is armed for.
    armed: AtomicU8,
    pairs: Mutex<Vec<Weak<Pair>>>,
    /// Where its events go: to the program's channel, by the address of the program's queue.
    channel: Option<(Arc<EventQueue<usize>>, Mutex<usize>)>,
}

impl Completions {
    pub(crate) fn new(channel: Option<Arc<EventQueue<usize>>>) -> Arc<Completions> {
        Arc::new(Completions {
            ready: Mutex::default(),
            armed: AtomicU8::new(NOTHING),
            pairs: Mutex::default(),
            channel: channel.map(|channel| (channel, Mutex::new(0))),
        })
    }

    /// The address that its events name.
    pub(crate) fn named(&self, address: usize) {
        if let Some((_, name)) = &self.channel {
            *lock(name) = address;
        }
    }

    pub(crate) fn join(&self, pair: &Arc<Pair>) {
        let mut pairs = lock(&self.pairs);
        pairs.retain(|known| known.strong_count() > 0);
        if !pairs.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(pair))) {
            pairs.push(Arc::downgrade(pair));
        }
    }

    pub(crate) fn leave(&self, pair: &Pair) {
        lock(&self.pairs).retain(|known| !std::ptr::eq(known.as_ptr(), pair));
    }

    /// Whether no queue pair completes here.
    pub(crate) fn is_unused(&self) -> bool {
        lock(&self.pairs).iter().all(|known| known.strong_count() == 0)
    }

    /// A completion, of a virtual queue pair.
    pub(super) fn push(&self, wc: Wc) {
        lock(&self.ready).push_back(wc);
        if wc.solicited || wc.status != WcStatus::Success || self.armed.load(Ordering::Acquire) == ANYTHING {
            self.notify();
        }
    }

    /// There is something new: whoever asked for an event gets one.
    pub(crate) fn notify(&self) {
        if self.armed.swap(NOTHING, Ordering::AcqRel) != NOTHING
            && let Some((channel, name)) = &self.channel
        {
            channel.push(*lock(name));
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire) != NOTHING
    }

    fn members(&self) -> Vec<Arc<Pair>> {
        lock(&self.pairs).iter().filter_map(Weak::upgrade).collect()
    }

    /// Drives the queue pairs and takes up to `max` completions.
    pub(crate) fn poll(&self, max: usize, out: &mut Vec<Wc>) {
        {
            let pairs = lock(&self.pairs);
            match pairs.as_slice() {
                // The usual case needs no list.
                [one] => {
                    let one = one.upgrade();
                    drop(pairs);
                    one.iter().for_each(|pair| pair.drive());
                }
                _ => {
                    drop(pairs);
                    self.members().iter().for_each(|pair| pair.drive());
                }
            }
        }
        let mut ready = lock(&self.ready);
        let n = max.min(ready.len());
        out.extend(ready.drain(..n));
    }

    /// Asks for an event at the next completion, or the next that is solicited or an error. Asking for less does not take back asking
    /// for more (IBTA volume 1, 11.4.2.2).
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<()> {
        if self.channel.is_some() {
            self.armed.fetch_max(if solicited_only { SOLICITED } else { ANYTHING }, Ordering::AcqRel);
        }
        for pair in self.members() {
            pair.arm()?;
        }
        Ok(())
    }

    /// Forgets the completions of a queue pair that goes, as its NIC would.
    pub(super) fn forget(&self, pair: &Pair) {
        let qpn = pair.qpn();
        lock(&self.ready).retain(|wc| wc.qpn != qpn);
    }
}
