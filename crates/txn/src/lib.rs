#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attempt;
mod detector;
mod life_word;
mod lock_word;
mod log_entry;
mod model;
mod place;
mod record;
mod recovery;
mod request;
mod takeover;
mod transaction;

pub use attempt::{Attempt, Conflict, Step, Write};
pub use detector::{Detector, LIFE_LINE_BYTES};
pub use life_word::{LifeState, LifeWord, NoIncarnation};
pub use lock_word::{Life, LockWord};
pub use model::{Model, ModelTransaction};
pub use place::{Copies, Location, Place, PlaceKind};
pub use record::{Record, Version};
pub use recovery::{Recovery, RecoveryStep, free_stale_lock};
pub use request::{NodeId, Op, Outcome, Request};
pub use takeover::{Log, Takeover, TakeoverStep};
pub use transaction::{Abort, Access, RecordKey, TableId, Transaction};
