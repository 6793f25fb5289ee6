#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod frame;
mod handshake;
mod link;
mod memory_client;
mod memory_node;
mod peer;
mod pending_connect;
mod poller;
mod process_node;
mod storage_directory;

pub use memory_node::{MemoryConfig, MemoryNode, StartError};
pub use mitra_consensus_memory::{StorageError, Token};
pub use poller::ReadyCqs;
pub use process_node::{ProcessConfig, ProcessNode};
pub use storage_directory::StorageConfig;
