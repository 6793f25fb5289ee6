#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod execution;
mod operation;
mod path;
mod rc_session;
mod read_word;
mod request;
mod scratch;
mod vqp_session;

pub use execution::Execution;
pub use operation::{Operation, Progress, Requests};
pub use path::{Path, PathError};
pub use rc_session::{RcPath, RcSession};
pub use read_word::ReadWord;
pub use request::{MisalignedWord, Outcome, Request, Word, WordOp};
pub use scratch::{MAX_REQUESTS, SCRATCH_BYTES};
pub use vqp_session::{VqpPath, VqpSession};
