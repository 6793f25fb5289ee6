#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod connection;
mod objects;
mod probe;
pub mod testing;

pub use probe::{ProbeFinding, ProbeReport, probe};
