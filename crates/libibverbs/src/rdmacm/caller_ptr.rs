//! Pointers of the program as keys and values of the manager's state.

use std::hash::{Hash, Hasher};
use std::ptr;

/// A pointer that the program holds or passed in. The manager dereferences the pointer only in a
/// call of the program, never in the manager's thread.
pub struct CallerPtr<T>(pub *mut T);

impl<T> PartialEq for CallerPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for CallerPtr<T> {}

impl<T> Hash for CallerPtr<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.hash(hasher);
    }
}

impl<T> Clone for CallerPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for CallerPtr<T> {}

impl<T> Default for CallerPtr<T> {
    fn default() -> Self {
        Self(ptr::null_mut())
    }
}

// SAFETY: sending the pointer to another thread is harmless by itself, because this type offers no
// access through it. Each place that dereferences the raw pointer has its own SAFETY comment.
unsafe impl<T> Send for CallerPtr<T> {}
