//! The exported functions of librdmacm.

mod addrinfo;
mod connect;
mod device_list;
mod endpoint;
mod event;
mod event_channel;
mod identifier;
mod multicast;
mod queue_pair;
mod resolve;
pub mod unsupported;
