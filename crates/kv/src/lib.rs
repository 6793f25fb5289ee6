#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod client;
mod client_connection;
mod command;
mod replicated_store;
pub mod resp;
mod resp_connection;
mod server;
mod store_config;

pub use client::{Client, ClientError, Watch};
pub use resp_connection::RespConnection;
pub use server::{Server, ServerConfig};
pub use store_config::{MAX_CAPACITY_MIB, StoreConfig};
