//! Locking without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
///
/// A panic under one of this crate's locks ends the process, because it cannot unwind into C. A poisoned lock is therefore
/// only seen by the test harness.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
