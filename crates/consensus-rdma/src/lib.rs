#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod handshake;
mod layout;
mod link;
mod memory_client;
mod memory_node;
mod memory_protocol;
mod peer;
mod pending_connect;
mod poller;
mod process_node;
mod storage;
mod two_slot_register;
mod word_cell;

pub use handshake::Token;
pub use memory_node::{MemoryConfig, MemoryNode, StartError};
pub use poller::ReadyCqs;
pub use process_node::{ProcessConfig, ProcessNode};
pub use storage::{StorageConfig, StorageError};
