//! A linearizable key-value store on the replicated log: the server at each process, which speaks RESP to clients, and a client that
//! retries without doing anything twice. What is replicated, and how, is `agreement`'s.
#![forbid(unsafe_code)]

mod client;
mod command;
mod connection;
pub mod resp;
mod server;
mod sizes;
mod store;

pub use client::{Client, ClientError, Connection, Watch};
pub use server::{Server, ServerConfig};
pub use sizes::{MEGABYTES, Sizes};
