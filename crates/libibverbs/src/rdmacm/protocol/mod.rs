//! The connection manager's protocol without I/O: messages, and the state machines of connections
//! and service lookups.

pub mod connection;
pub mod encoding;
pub mod message;
pub mod service_lookup;
mod timeouts;
