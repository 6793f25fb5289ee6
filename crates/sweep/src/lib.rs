#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// A part of the program without an interface of its own (RELEASING.md).
#![allow(missing_docs)]

#[cfg(feature = "mutants")]
mod mutants;
mod repeat;
pub mod seeded;
mod shrink;
mod workload;

#[cfg(feature = "mutants")]
pub use mutants::{MutantSearch, SearchError, find_mutant, mutant_by_name};
pub use shrink::Shrunk;
pub use workload::Workload;
