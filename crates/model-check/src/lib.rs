#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bit_filter_world;
mod byzantine;
pub mod byzantine_worlds;
mod call_log;
mod catalogue;
pub mod cell_scenario;
pub mod cell_worlds;
pub mod counter_scenario;
mod delay_count;
mod election;
mod exhaustive;
mod filter_world;
pub mod filter_worlds;
mod forged_history;
mod forged_proof;
pub mod latch_scenario;
mod linearizability;
mod log_replica;
mod log_world;
pub mod mailbox_scenario;
mod memory_world;
mod message_cost;
mod model_checker;
pub mod mutex_scenario;
pub mod object_world;
pub mod protocol_worlds;
mod rail_model;
mod rail_settling;
mod rail_world;
mod resend_world;
mod seeded_run;
mod shared_backup_model;
mod shared_backup_step;
mod shared_backup_world;
pub mod store_nodes;
mod store_world;
mod theorems;
mod transaction_nodes;
mod transaction_order;
mod transaction_step;
mod transaction_world;
pub mod transaction_worlds;
mod world;

pub use bit_filter_world::{BitFilterLimits, BitFilterStep, BitFilterWorld, exhaustive_bit_filter};
pub use byzantine::{Actor, ByzantineProcess, Forge, SingleWrite};
pub use catalogue::{CATALOGUE, CatalogueEntry};
pub use delay_count::decision_delays;
pub use election::run_election;
pub use exhaustive::{ExhaustiveWorld, Explorable};
pub use filter_world::{FilterLimits, FilterStep, FilterWorld, Packet, exhaustive_filter, run_filter};
pub use forged_history::ForgedHistory;
pub use forged_proof::ForgedProof;
pub use linearizability::{MAX_OPERATIONS, Operation, is_linearizable};
pub use log_replica::{Command, Replica};
pub use log_world::{LogWorld, exhaustive_log, run_log_restarts_from_seed};
pub use memory_world::run_memory_node;
pub use message_cost::{MessageCost, message_cost};
pub use mitra_failover::rail_negotiation::RailFailure;
pub use model_checker::{Exhaustive, Exploration, bounded};
pub use rail_model::{exhaustive_rails, run_rails_from_seed};
pub use rail_world::{RailFaultLimits, RailRule, RailStep, RailWorld};
pub use resend_world::{Atomic, MAX_RAILS, Recovery, ResendSetup, ResendStep, ResendWorld};
pub use seeded_run::{
    RunLimits, RunReport, SeedResult, TestedSystem, Violation, run_adversary, run_agreement,
    run_agreement_with, totality_violation,
};
pub use shared_backup_model::{exhaustive_shared_backup, run_shared_backup_from_seed};
pub use shared_backup_step::{SharedBackupLimits, SharedBackupRule, SharedBackupStep};
pub use shared_backup_world::SharedBackupWorld;
pub use store_world::{StoreWorld, run_competing_leaders_from_seed, run_store_from_seed};
pub use theorems::{Shown, THEOREMS, Theorem, replay_example};
pub use transaction_step::{LostAnswers, RecordUse, TransactionConfig, TransactionProgram, TransactionStep};
pub use transaction_world::TransactionWorld;
pub use world::{FaultLimits, Step, World};
