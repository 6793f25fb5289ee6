#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod call;
mod channels;
mod hello;
mod links;
mod memory_node;
mod queue_pair;

pub use call::CallError;
pub use channels::{Channels, Counters, Link, LostNode, PostError};
pub use hello::{Answer, Ask, Hello, Refusal, Token, VERSION};
pub use links::{ConnectError, Fenced, Links, LinksConfig};
pub use memory_node::{MemoryNode, Node, NodeConfig, StartError};
pub use queue_pair::{LinkError, QpInfo, QpKind};
