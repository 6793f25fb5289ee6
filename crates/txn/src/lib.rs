#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attempt;
mod coordinator;
mod detector;
mod execution;
mod index;
mod inspection;
mod joined_reads;
mod layout;
mod life_word;
mod load;
mod lock_word;
mod log_entry;
mod model;
mod place;
mod place_cache;
mod record;
mod recovery;
mod remote_transaction;
mod request;
mod scan;
mod serial_order;
mod session;
mod store_number;
mod takeover;
mod transaction;

pub use attempt::{Attempt, Conflict, Step, Write};
pub use coordinator::{Coordinator, Ticket};
pub use detector::{Detector, LIFE_LINE_BYTES};
pub use execution::Footprint;
pub use inspection::{Findings, HeldLock, IndexError, Inspection, Inspector, PlaceCopy};
pub use layout::{InvalidSchema, Layout, Schema, TableSchema};
pub use life_word::{LifeState, LifeWord, NoIncarnation};
pub use load::{LoadError, Loader};
pub use lock_word::{Life, LockWord};
pub use model::{Model, ModelTransaction};
pub use place::{Copies, Location, Place, PlaceKind};
pub use record::{Record, Version};
pub use recovery::{Recovery, RecoveryStep, free_stale_lock, logged_attempt};
pub use remote_transaction::{Client, Committed, NotCommitted, RemoteTransaction};
pub use request::{NodeId, Op, Outcome, Request};
pub use serial_order::{Event, Violation, serial_order};
pub use session::{Command, Ending, Session, Timing};
pub use store_number::StoreError;
pub use takeover::{Log, Takeover, TakeoverStep};
pub use transaction::{Abort, Access, RecordKey, TableId, Transaction};
