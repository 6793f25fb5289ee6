//! The tests of the public interface, one program with a module for each subject.

#[path = "../hooked_nic/mod.rs"]
mod hooked_nic;
#[path = "../shared_word/mod.rs"]
mod shared_word;
#[path = "../vqp_pair/mod.rs"]
mod vqp_pair;

mod byte_model;
mod conformance;
mod corpus;
mod examples;
mod failover;
mod failover_random_faults;
mod failover_second_failure;
mod failover_shared_backup;
mod failover_spans;
mod failover_telemetry;
mod failover_xrc;
mod filter_connections;
mod link_faults;
mod memory_visibility;
mod objects_paths;
mod packet_capture;
mod rc_delivery;
mod rc_failure_stages;
mod txn_atomics;
mod user_programs;
mod workload_verdict;
