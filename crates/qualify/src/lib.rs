#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod connection;
mod objects;
mod probe;
mod qualification;
mod qualify;
mod store;
mod stream;
pub mod testing;

pub use probe::{ProbeFinding, ProbeReport, probe};
pub use qualification::{FenceCounts, Qualification, Verdict};
pub use qualify::{QualifyConfig, QualifyError, qualify};
pub use store::{Hardware, QualificationStore, StoreError};
