#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bulk;
mod call;
mod driver;
mod hello;
mod links;
mod memory_node;
mod queue_pair;

pub use bulk::{inspect, round_trips, write_all};
pub use call::CallError;
pub use driver::Driver;
pub use hello::{Refusal, Token};
pub use links::{ConnectError, Counters, Fenced, Links, LinksConfig, LostNode, PostError};
pub use memory_node::{MemoryNode, NodeConfig, StartError};
pub use queue_pair::{LinkError, QpKind};
