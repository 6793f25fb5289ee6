//! The configuration and the start errors of a memory node.

use std::io;

use mitra_consensus::Region;
use mitra_consensus_memory::{StorageError, Token};
use mitra_verbs::Error;

use crate::storage_directory::StorageConfig;

/// The configuration of a [`MemoryNode`](crate::MemoryNode).
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// The regions of the memory and their initial permissions.
    pub regions: Vec<Region>,
    /// The capacity of a register's contents, in bytes.
    pub register_capacity: usize,
    /// The token of each process, indexed by [`ProcessId`](mitra_consensus::ProcessId). The length
    /// is the number of processes.
    pub tokens: Vec<Token>,
    /// Whether a restarted process may connect again. A restarted process has lost its promises and
    /// accepted values, which only few protocols tolerate.
    pub allow_restarts: bool,
    /// The storage of the contents, or `None` for a memory whose contents are lost when the process
    /// ends.
    pub storage: Option<StorageConfig>,
    /// The configuration of the connections. Both ends must use the same configuration.
    pub failover: mitra_failover::Config,
}

/// The reasons for which a memory node or a process node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refused a call.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The NIC refused a verb.
    #[error("the NIC: {0}")]
    Nic(#[from] Error),
    /// The storage directory is not usable.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The number of processes is outside 1 to 64. For a process node, also: the tokens, the
    /// addresses and the id do not match.
    #[error("{0} processes; 1 to 64 can share a memory")]
    ProcessCount(usize),
}

impl From<getrandom::Error> for StartError {
    fn from(error: getrandom::Error) -> StartError {
        StartError::Io(error.into())
    }
}

impl From<nix::Error> for StartError {
    fn from(error: nix::Error) -> StartError {
        StartError::Io(error.into())
    }
}
