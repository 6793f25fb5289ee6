//! Locking without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic in this crate ends the process, because a panic cannot unwind into C. Only tests can
/// therefore meet a poisoned lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
