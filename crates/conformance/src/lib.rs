#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cases;
mod endpoint;
mod fabric;
mod report;
mod stop;

pub use cases::{CASES, Case, rc_operations};
pub use fabric::Fabric;
pub use report::{Difference, Outcome, Report, run, run_all};
pub use stop::{CaseResult, Stop};
