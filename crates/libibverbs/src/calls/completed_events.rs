//! The counts of acknowledged events in the C structures, which programs may read: as rdma-core's
//! library, a count changes under the mutex of its structure, with a signal on the structure's
//! condition variable.

/// The fields of a C structure that count its acknowledged events.
pub(crate) struct CompletedEvents {
    pub(crate) mutex: *mut libc::pthread_mutex_t,
    pub(crate) cond: *mut libc::pthread_cond_t,
    pub(crate) count: *mut u32,
}

/// Names the fields of the C structure at `$object` whose count is `$count`.
macro_rules! completed_events {
    ($object:expr, $count:ident) => {
        $crate::calls::completed_events::CompletedEvents {
            mutex: &raw mut (*$object).mutex,
            cond: &raw mut (*$object).cond,
            count: &raw mut (*$object).$count,
        }
    };
}
pub(crate) use completed_events;

impl CompletedEvents {
    /// # Safety
    /// The fields belong to an object that is not destroyed during the call.
    pub(crate) unsafe fn add(self, n: u32) {
        // SAFETY: the object exists (`# Safety` above). An object is created with zeros in both
        // fields, which is the value of `PTHREAD_MUTEX_INITIALIZER` and `PTHREAD_COND_INITIALIZER`
        // of the C library on Linux, and verbs access the count only under this mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.count = (*self.count).wrapping_add(n);
            libc::pthread_cond_signal(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}
