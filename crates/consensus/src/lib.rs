#![doc = include_str!("../README.md")]

pub mod aligned_paxos;
pub mod broadcast;
pub mod cheap_quorum;
mod composite;
pub mod disk_paxos;
pub mod fast_and_robust;
pub mod fast_paxos;
pub mod hbo;
pub mod heartbeat;
pub mod kv_store;
pub mod log;
mod memory;
mod memory_acceptor;
pub mod memory_only_omega;
pub mod omega;
mod outstanding_ops;
pub mod paxos;
pub mod preferential_paxos;
mod process;
pub mod protected_memory_paxos;
pub mod replicated_registers;
pub mod replicated_store;
pub mod robust_backup;
pub mod signature;
pub mod single_broadcast;

pub use composite::{Composite, Either};
pub use memory::{LegalChange, Memory, Op, Permissions, Region, RegisterKind, Response};
pub use process::{
    Action, Actions, AllRules, Input, MemoryId, OpId, Process, ProcessId, ProcessSet, RuleSet, Value,
};
