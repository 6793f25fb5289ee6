//! Models of the agreement protocols: the state machines that users run, in worlds whose every step an adversary chooses:
//! exhaustively, at small sizes, or from a seed. Never describes a protocol a second time.

mod broadcaster;
mod byzantine;
mod catalogue;
mod claimant;
mod delays;
mod election;
mod exhaustive;
mod fabulist;
mod random;
pub mod traitors;
mod world;
pub mod worlds;

pub use broadcaster::Broadcaster;
pub use byzantine::{Actor, Byzantine, Forge, Scribble};
pub use catalogue::{CATALOGUE, Entry};
pub use claimant::Claimant;
pub use delays::delays;
pub use election::elect;
pub use exhaustive::{Exhaustive, Found};
pub use fabulist::Fabulist;
pub use random::{Chaos, Report, Violation, all_or_none, run, run_judged};
pub use world::{Limits, Step, World};
