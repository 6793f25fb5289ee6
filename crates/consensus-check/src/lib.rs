//! Models of the agreement protocols: the state machines that users run, in worlds whose every step an adversary chooses:
//! exhaustively, at small sizes, or from a seed. Never describes a protocol a second time.

mod byzantine;
mod catalogue;
mod claimant;
mod delays;
mod effort;
mod election;
mod exhaustive;
mod fabulist;
mod history;
mod linearizable;
mod random;
mod replica;
mod storage;
pub mod store;
pub mod traitors;
mod world;
pub mod worlds;

pub use byzantine::{Actor, Byzantine, Forge, Scribble};
pub use catalogue::{CATALOGUE, Entry};
pub use claimant::Claimant;
pub use delays::delays;
pub use effort::{Effort, effort};
pub use election::elect;
pub use exhaustive::{Exhaustive, Found};
pub use fabulist::Fabulist;
pub use history::{ExhaustiveLog, LogWorld};
pub use linearizable::{MOST_OPERATIONS, Operation, linearizable};
pub use random::{Chaos, Report, Subject, Violation, all_or_none, play, run, run_judged};
pub use replica::{Command, Replica};
pub use storage::StoreWorld;
pub use world::{Limits, Step, World};
