//! Runs agreement over NICs: memory nodes, whose regions others reach by one-sided operations, and the driver that carries out what
//! the state machines of `agreement` ask for. Knows no protocol, and NICs by the [`mitra_verbs::Provider`] trait alone.
#![forbid(unsafe_code)]

mod call;
mod files;
mod greeting;
mod layout;
mod link;
mod memory;
mod node;
mod peer;
mod port;
mod register;
mod rest;
mod secret;
mod word;

pub use files::{Disk, DiskError};
pub use greeting::Token;
pub use memory::{MemoryConfig, MemoryNode, StartError};
pub use node::{Node, NodeConfig};
pub use rest::Heard;
