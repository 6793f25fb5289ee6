#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod layout;
mod messages;
mod node;
mod storage;
mod two_slot_register;
mod word_cell;

pub use client::{Client, ClientLink, MAX_READ_BYTES};
pub use layout::Layout;
pub use messages::{
    Hello, MAX_MESSAGE_BYTES, MemoryReply, MemoryRequest, RegionGrant, Token, VERSION, Welcome,
};
pub use node::{Node, NodeConfig, NodeNic};
pub use storage::{Files, Storage, StorageError, StoredFile};
