#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod command;
mod log_store;
mod memories;
pub mod resp;
mod resp_client;
mod server;
mod server_config;
mod store;
mod store_config;

pub use client::{Client, ClientError, Watch};
pub use mitra_consensus_rdma::MemoryState;
pub use resp_client::RespConnection;
pub use server::Server;
pub use server_config::ServerConfig;
pub use store_config::{MAX_CAPACITY_MIB, StoreConfig};
