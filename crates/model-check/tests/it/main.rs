//! The tests of the public interface, one program with a module for each subject.

#[macro_use]
extern crate mitra_model_check_tests as common;

mod aligned_paxos;
mod broadcast;
mod byte_registers;
mod cheap_quorum;
mod endpoint_filter;
mod explorations;
mod fast_and_robust;
mod fast_paxos;
mod hbo;
mod heartbeat;
mod kv_store;
mod linearizability;
mod memory_nodes;
mod memory_only_omega;
mod omega;
mod paxos_and_disk_paxos;
mod protected_memory_paxos;
mod rail_negotiation;
mod rail_questions;
mod recoverable_cells;
mod replicated_log;
mod replicated_registers;
mod robust_backup;
mod shared_backup;
mod shared_objects;
mod theorems;
mod transactions;
