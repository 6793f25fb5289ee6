//! rdma_cm
mod connection;
mod lookup;
mod message;
