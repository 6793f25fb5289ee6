//! The agreement between the progress thread and the callers on which of them runs the NIC's next
//! work.
//!
//! The thread records, under the NIC's lock, when it will wake. A caller that finds work which is
//! due earlier wakes the thread. The thread writes the record before it releases the lock. A caller
//! that adds work after the thread's last look for work therefore sees the record.

use core::ops::DerefMut;

use mitra_verbs::Time;

/// When the progress thread runs its next round without a signal. The NIC's lock protects it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ThreadWakeup(
    /// `None` if the thread sleeps until another thread wakes it.
    Option<Time>,
);

/// The state that callers and a progress thread share behind a lock.
pub(crate) trait HasThread {
    fn thread_wakeup(&mut self) -> &mut ThreadWakeup;
}

impl ThreadWakeup {
    /// Returns whether the caller must wake the thread for work that is due at `due`. If so,
    /// records `due` as the time of the wake-up, so that no later caller wakes the thread for work
    /// that is due then or later.
    pub(crate) fn must_wake(&mut self, due: Time) -> bool {
        let is_late = self.0.is_none_or(|wakeup| due < wakeup);
        if is_late {
            self.0 = Some(due);
        }
        is_late
    }
}

/// Runs one round of the progress thread with the locked state, records when the thread wakes, and
/// releases the lock. Returns the conditions of the thread's sleep, or `None` if the thread runs
/// another round first. `until` returns the end of the sleep.
pub(crate) fn run_round<G: DerefMut<Target: HasThread>, C>(
    mut state: G,
    round: impl FnOnce(&mut G::Target) -> Option<C>,
    until: impl FnOnce(&C) -> Option<Time>,
) -> Option<C> {
    let sleep = round(&mut state);
    state.thread_wakeup().0 = match &sleep {
        Some(conditions) => until(conditions),
        None => Some(Time::ZERO),
    };
    sleep
}
