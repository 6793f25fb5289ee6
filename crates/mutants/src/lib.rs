#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// A part of the program without an interface of its own (RELEASING.md).
#![allow(missing_docs)]

#[cfg(feature = "enabled")]
mod selection;
mod table;

pub use table::Mutant;
#[cfg(feature = "enabled")]
pub use table::{Layer, Row};

/// The mutant that a thread runs, if any. Other threads that work for this thread run it too.
#[derive(Clone, Copy)]
pub struct Running(#[cfg(feature = "enabled")] Option<Mutant>);

#[cfg(not(feature = "enabled"))]
impl Running {
    /// Returns what the calling thread runs: no mutant.
    #[inline(always)]
    pub fn now() -> Running {
        Running()
    }

    /// Calls a function.
    #[inline(always)]
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        f()
    }
}

#[cfg(not(feature = "enabled"))]
impl Mutant {
    /// Returns whether the calling thread runs this mutant: never, because this program is built
    /// without mutants.
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }
}
