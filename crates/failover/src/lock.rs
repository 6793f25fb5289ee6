use std::sync::{Mutex, MutexGuard, PoisonError};

/// A poisoned lock is taken too, because no code panics while the data is inconsistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
