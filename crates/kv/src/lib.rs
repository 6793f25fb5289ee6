#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod command;
pub mod resp;
mod resp_client;
mod server;
mod store_config;

pub use client::{Client, ClientError, Watch};
pub use mitra_consensus_rdma::MemoryState;
pub use resp_client::RespConnection;
pub use server::{Server, ServerConfig};
pub use store_config::{MAX_CAPACITY_MIB, StoreConfig};
