#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod model;
mod transaction;

pub use model::{Model, ModelTransaction};
pub use transaction::{Abort, Access, RecordKey, TableId, Transaction};
