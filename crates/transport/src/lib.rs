#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod batch_writer;
mod config;
pub mod fault;
mod ip_path;
mod memory;
mod nic;
mod packet_of_message;
mod qp;
mod scatter_gather;
mod tx_batch;

pub use config::{NicConfig, Tuning};
pub use ip_path::IpPath;
pub use memory::{AtomicOp, Memory, MemoryFault, VecMemory};
pub use nic::Nic;
pub use qp::pending_send::PendingSend;
pub use tx_batch::TxBatch;
