#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![allow(clippy::inconsistent_digit_grouping, reason = "amounts in cents have their last two digits apart")]

mod program;
pub mod smallbank;
pub mod tpcc;
mod value;

pub use program::{Corrupt, Difference, Program, replay};
pub use value::{Damaged, Fault, Text, Value};
