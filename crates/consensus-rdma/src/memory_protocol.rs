//! The messages between a process and the CPU of a memory node, for operations that a NIC cannot execute.

use mitra_consensus::ProcessSet;
use serde::{Deserialize, Serialize};

/// A request to the CPU of a memory node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum MemoryRequest {
    /// Asks for a change of the permissions to a region.
    ChangePermissions { region: u8, read: ProcessSet, write: ProcessSet },
    /// Asks for the sequence numbers of `count` registers from `first`. A correct process asks only if it alone writes these
    /// registers, so no write is in progress meanwhile.
    ReadSeqs { region: u8, first: u16, count: u16 },
}

/// The reply to a [`MemoryRequest`]. Replies arrive in the order of the requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum MemoryReply {
    /// The request to change permissions was processed. `write` is the key by which the process may now write the region, or `None` if
    /// it may not write the region.
    PermissionsChanged { write: Option<Vec<u8>> },
    /// The sequence number of each requested register.
    Seqs { seqs: Vec<u64> },
}

/// The maximum number of registers in one [`MemoryRequest::ReadSeqs`].
pub(crate) const MAX_SEQS: u16 = 256;
/// The maximum number of bytes that a process makes a memory node scan for one [`MemoryRequest::ReadSeqs`]. A single larger register
/// may exceed it.
pub(crate) const MAX_SEQ_SCAN_BYTES: usize = 512 << 10;
/// The maximum length of an encoded message, in bytes. An encoded sequence number takes at most 10 bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 + 10 * MAX_SEQS as usize;
