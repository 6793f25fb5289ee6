#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod announcement;
mod attempt;
mod cell_error;
mod connection;
mod execution;
mod indirect_cell;
pub mod latch;
pub mod mailbox;
pub mod mutex;
mod operation;
mod path;
mod read_word;
mod recoverable_cell;
pub mod recoverable_counter;
mod request;
mod tag;

pub use announcement::{Announcements, OpenOwner, Owner, Publication};
pub use cell_error::CellError;
pub use connection::{MAX_REQUESTS, STAGING_BYTES};
pub use execution::Execution;
pub use indirect_cell::{ChangeIndirect, IndirectCell, ReadIndirect};
pub use operation::{Operation, Progress, Requests};
pub use path::{Path, PathError};
pub use read_word::ReadWord;
pub use recoverable_cell::{Change, ChangeCell, Changed, Finished, ReadCell, RecoverableCell};
pub use request::{MisalignedWord, Outcome, Request, Word, WordOp};
