//! Models of the agreement protocols: the state machines that users run, in worlds whose every step an adversary chooses:
//! exhaustively, at small sizes, or from a seed. Never describes a protocol a second time.

mod catalogue;
mod delays;
mod election;
mod exhaustive;
mod history;
mod linearizable;
mod random;
mod replica;
mod storage;
pub mod store;
mod world;
pub mod worlds;

pub use catalogue::{CATALOGUE, Entry};
pub use delays::delays;
pub use election::elect;
pub use exhaustive::{Exhaustive, Found};
pub use history::{ExhaustiveLog, LogWorld};
pub use linearizable::{MOST_OPERATIONS, Operation, linearizable};
pub use random::{Chaos, Report, Subject, Violation, play, run};
pub use replica::{Command, Replica};
pub use storage::StoreWorld;
pub use world::{Limits, Step, World};
