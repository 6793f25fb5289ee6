//! When the queue pair is driven again.
//!
//! The virtual queue pair wakes the queue pair when something arrives for it. Each time that a
//! thread unlocks the queue pair, it also decides here whether the queue pair has work that nothing
//! wakes it for: work that needs polling, or a timer.

use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, TryLockError};
use std::task::Wake;

use mitra_verbs::{QpState, Time};

use super::MultiRailQp;
use super::locked_state::LockedState;
use crate::common::lock::lock;
use crate::rails::peer_closed::PeerClosed;

/// The locked state of a queue pair. Dropping the guard schedules the next drive.
pub(super) struct LockedQp<'a> {
    qp: &'a MultiRailQp,
    locked: MutexGuard<'a, LockedState>,
}

impl Deref for LockedQp<'_> {
    type Target = LockedState;

    fn deref(&self) -> &LockedState {
        &self.locked
    }
}

impl DerefMut for LockedQp<'_> {
    fn deref_mut(&mut self) -> &mut LockedState {
        &mut self.locked
    }
}

impl Drop for LockedQp<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.qp.next_drive(&mut self.locked) {
            if at == Time::ZERO { self.qp.waker.wake_by_ref() } else { self.qp.waker.wake_at(at) }
        }
    }
}

impl MultiRailQp {
    pub(super) fn lock(&self) -> LockedQp<'_> {
        LockedQp { qp: self, locked: lock(&self.locked) }
    }

    /// Returns `None` if another thread holds the lock.
    pub(super) fn try_lock(&self) -> Option<LockedQp<'_>> {
        let locked = match self.locked.try_lock() {
            Ok(locked) => locked,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(LockedQp { qp: self, locked })
    }

    /// Returns the time of the next drive: [`Time::ZERO`] if the queue pair is to be driven at the
    /// next poll, and `None` if it waits until it is woken.
    fn next_drive(&self, locked: &mut LockedState) -> Option<Time> {
        let is_waiting = locked.vqps().any(|vqp| vqp.has_completions())
            || !locked.deferred.is_empty()
            || locked.pending.as_ref().is_some_and(|pending| !pending.failed)
            || locked.state == QpState::Sqd && !locked.drain_reported
            || self.is_last_wqe_report_due(locked);
        if is_waiting && !locked.destroyed {
            return Some(Time::ZERO);
        }
        let withheld = locked.peer_closed.as_ref().and_then(PeerClosed::time_left);
        let expiry = withheld.map(|left| self.now() + left);
        locked.vqps().filter_map(|vqp| vqp.next_poll()).chain(expiry).min()
    }

    fn now(&self) -> Time {
        self.domain.failover.nics()[0].provider.now()
    }
}
