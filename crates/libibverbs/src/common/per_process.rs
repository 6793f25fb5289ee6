//! State of one process. A forked child begins with new state, because another thread of the parent
//! may have held the lock of the parent's state.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use mitra_os_util::fork_generation;

pub(crate) struct PerProcess<T>(AtomicPtr<Owned<T>>);

struct Owned<T> {
    /// The owner's number in [`fork_generation`].
    owner: u32,
    value: T,
}

impl<T: Default + Send + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of this process, or `None` before the first [`get`](Self::get).
    pub(crate) fn existing(&'static self) -> Option<&'static T> {
        // SAFETY: a pointer in the field came from `Box::into_raw` in `get`, and is never freed.
        let known = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        known.filter(|owned| owned.owner == fork_generation::current()).map(|owned| &owned.value)
    }

    /// Returns the value of this process, at first the default value. The parent's value is not
    /// dropped.
    pub(crate) fn get(&'static self) -> &'static T {
        let known = self.0.load(Ordering::Acquire);
        if let Some(value) = self.existing() {
            return value;
        }
        let owner = fork_generation::current();
        let new = Box::into_raw(Box::new(Owned { owner, value: T::default() }));
        let kept = match self.0.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(newer) => {
                // SAFETY: `new` came from `Box::into_raw` above, and no other thread knows it.
                drop(unsafe { Box::from_raw(new) });
                newer
            }
        };
        // SAFETY: a pointer that was in the field is never freed.
        unsafe { &(*kept).value }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::common::lock::lock;

    static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();

    #[test]
    fn value_is_the_same_in_all_threads() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| *lock(VALUE.get()) += 1));
            }
        });
        assert_eq!(*lock(VALUE.get()), 400);
    }
}
