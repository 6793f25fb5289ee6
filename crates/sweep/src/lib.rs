#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

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
