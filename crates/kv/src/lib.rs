//! A linearizable key-value store on the replicated log: the server at each process, which speaks RESP to clients, and a client that
//! retries without doing anything twice. What is replicated, and how, is `agreement`'s.
#![forbid(unsafe_code)]

mod client;
mod client_connection;
mod command;
pub mod resp;
mod server;
mod store;
mod store_config;

pub use client::{Client, ClientError, RespConnection, Watch};
pub use server::{Server, ServerConfig};
pub use store_config::{MAX_CAPACITY_MIB, StoreConfig};
