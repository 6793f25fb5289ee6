//! The messages between a process and a memory node: the handshake, and the requests to the memory
//! node's CPU.

use mitra_consensus::{ProcessId, ProcessSet};
use serde::{Deserialize, Serialize};

/// The shared secret that authenticates a process to a peer or to a memory node.
///
/// The handshake sends the token in clear text. The token therefore protects only on a network on
/// which no other party can read the traffic.
pub type Token = [u8; 16];

/// The first frame of a handshake, from the process that connects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// The process that connects.
    pub from: ProcessId,
    /// The token of the process.
    pub token: Token,
    /// A random number that the process draws at each start, so that a restart is recognisable.
    pub incarnation: u64,
    /// The data by which the acceptor connects its end to the sender's end: an encoded
    /// `ConnectInfo` of `mitra-failover`.
    pub info: Vec<u8>,
}

/// The second frame of a handshake, from the acceptor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The data by which the process connects its end to the acceptor's end: an encoded
    /// `ConnectInfo` of `mitra-failover`.
    pub info: Vec<u8>,
    /// A random number that identifies the contents of a memory. A memory with a new incarnation
    /// has lost its contents. 0 between processes.
    pub incarnation: u64,
    /// The capacity of a register's contents, in bytes. 0 between processes.
    pub register_capacity: u32,
    /// The memory's regions with the permissions of the connecting process. Empty between
    /// processes.
    pub regions: Vec<RegionGrant>,
}

/// The remote keys of one region that the connecting process may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionGrant {
    /// The encoded key by which the process may read the region.
    pub read: Option<Vec<u8>>,
    /// The encoded key by which the process may write the region.
    pub write: Option<Vec<u8>>,
}

/// The version of the handshake and of the messages on the connections that it sets up.
pub const VERSION: u32 = 2;

/// A request to the CPU of a memory node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemoryRequest {
    /// Asks for a change of the permissions to a region.
    ChangePermissions {
        /// The region.
        region: u8,
        /// The processes that may read it.
        read: ProcessSet,
        /// The processes that may write it.
        write: ProcessSet,
    },
    /// Asks for the sequence numbers of `count` registers from `first`. A returned number may
    /// belong to an incomplete write. A correct process asks only for registers that no other
    /// process writes, and only while none of its own writes to these registers is in progress.
    ReadSeqs {
        /// The region.
        region: u8,
        /// The first register.
        first: u16,
        /// The number of registers.
        count: u16,
    },
}

/// The reply to a [`MemoryRequest`]. Replies arrive in the order of the requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemoryReply {
    /// The request to change permissions was processed. `write` is the key by which the process may
    /// now write the region, or `None` if the process may not write the region.
    PermissionsChanged {
        /// The encoded key.
        write: Option<Vec<u8>>,
    },
    /// The sequence number of each requested register.
    Seqs {
        /// The sequence numbers, in the order of the registers.
        seqs: Vec<u64>,
    },
}

/// The maximum number of registers in one [`MemoryRequest::ReadSeqs`].
pub(crate) const MAX_SEQS: u16 = 256;
/// The maximum number of bytes that a process makes a memory node scan for one
/// [`MemoryRequest::ReadSeqs`]. A single larger register may exceed it.
pub(crate) const MAX_SEQ_SCAN_BYTES: usize = 512 << 10;
/// The maximum length of an encoded message, in bytes. An encoded sequence number takes at most 10
/// bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 + 10 * MAX_SEQS as usize;
