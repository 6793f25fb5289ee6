#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bulk;
mod channels;
mod driver;
mod hello;
mod links;
mod memory_node;
mod tcp_request;

pub use bulk::{LoadError, StateError, inspect, load, round_trips, store_state};
pub use channels::{Channels, Counters, Link, LostNode, PostError};
pub use driver::Driver;
pub use hello::{Answer, Ask, Hello, Refusal, Token, VERSION};
pub use links::{ConnectError, Fenced, Links, LinksConfig};
pub use memory_node::{MemoryNode, Node, NodeConfig, StartError};
pub use mitra_driver::{ConnectionError, QpInfo, QpKind};
pub use tcp_request::CallError;
