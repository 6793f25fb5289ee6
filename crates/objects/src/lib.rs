#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod announcement;
mod attempt;
mod cell_error;
mod execution;
mod indirect_cell;
pub mod latch;
pub mod mailbox;
pub mod mutex;
mod operation;
mod path;
mod rc_session;
mod read_word;
mod recoverable_cell;
pub mod recoverable_counter;
mod request;
mod scratch;
mod tag;
mod vqp_session;

pub use announcement::{Announcements, OpenOwner, Owner, Publication};
pub use cell_error::CellError;
pub use execution::Execution;
pub use indirect_cell::{ChangeIndirect, IndirectCell, ReadIndirect};
pub use operation::{Operation, Progress, Requests};
pub use path::{Path, PathError};
pub use rc_session::{RcPath, RcSession};
pub use read_word::ReadWord;
pub use recoverable_cell::{Change, ChangeCell, Changed, Finished, ReadCell, RecoverableCell};
pub use request::{MisalignedWord, Outcome, Request, Word, WordOp};
pub use scratch::{MAX_REQUESTS, SCRATCH_BYTES};
pub use vqp_session::{VqpPath, VqpSession};
