#![doc = include_str!("../README.md")]

mod capture;
mod clock;
mod completion_channel;
mod completion_queues;
mod config;
mod counters;
mod delay_queue;
mod engine;
mod error;
mod fault_injection;
#[cfg(test)]
mod full_ring_tests;
mod gro_policy;
#[cfg(test)]
mod internal_tests;
mod last_hit_cache;
mod link_watch;
mod memory_regions;
mod path_cache;
mod ports_of_reset_nics;
mod progress;
mod progress_thread;
mod roce_port_users;
mod shared_memory;
mod soft_nic;
mod soft_nics;
mod thread_wakeup;
mod udp_socket;

pub use config::{Config, Offload};
pub use error::OpenError;
pub use fault_injection::RailFaults;
pub use mitra_transport::fault;
pub use mitra_verbs::Links;
pub use roce_port_users::{RocePortUser, roce_port_users};
pub use soft_nic::SoftNic;
pub use soft_nics::SoftNics;
pub use udp_socket::random_loopback_address;
