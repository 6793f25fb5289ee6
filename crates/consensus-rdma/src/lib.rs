#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod extra_timeout;
mod link;
mod link_poller;
mod memory_client;
mod memory_node;
mod peer;
mod pending_connect;
mod process_node;
mod storage_directory;

pub use extra_timeout::ExtraTimeout;
pub use memory_client::MemoryState;
pub use memory_node::{MemoryConfig, MemoryNode, StartError};
pub use mitra_consensus_memory::{StorageError, Token};
pub use process_node::{ProcessConfig, ProcessNode};
pub use storage_directory::StorageConfig;
