#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "enabled")]
mod selection;
mod table;

pub use table::Mutant;
#[cfg(feature = "enabled")]
pub use table::{Layer, Row};

#[cfg(not(feature = "enabled"))]
impl Mutant {
    /// Returns whether the calling thread runs this mutant: never, because this program is built without mutants.
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }
}
