//! The entry points that are refused for all arguments, for the test that calls each of them.

pub use crate::calls::refused::{REFUSED_SLOTS, RefusedSlot};

/// Returns the names of the exported functions that are refused.
pub fn refused_functions() -> impl Iterator<Item = &'static str> {
    let verbs = crate::calls::refused::REFUSED_FUNCTIONS.iter();
    let provider = crate::calls::provider_symbols::REFUSED_FUNCTIONS.iter();
    verbs.chain(provider).chain(crate::rdmacm::REFUSED_FUNCTIONS).copied()
}
