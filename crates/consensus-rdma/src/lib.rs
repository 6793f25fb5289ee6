//! Runs agreement over NICs: memory nodes, whose regions others reach by one-sided operations, and the driver that carries out what
//! the state machines of `agreement` ask for. Knows no protocol, and NICs by the [`mitra_verbs::Provider`] trait alone.
#![forbid(unsafe_code)]

mod handshake;
mod inline_cell;
mod layout;
mod link;
mod memory_node;
mod peer;
mod pending_connect;
mod poller;
mod port;
mod process_node;
mod register;
mod storage;

pub use handshake::Token;
pub use memory_node::{MemoryConfig, MemoryNode, StartError};
pub use poller::ReadyCqs;
pub use process_node::{ProcessConfig, ProcessNode};
pub use storage::{StorageConfig, StorageError};
