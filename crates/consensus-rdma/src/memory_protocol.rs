//! The messages between a process and the CPU of a memory node: what one-sided operations cannot do.

use mitra_consensus::ProcessSet;
use serde::{Deserialize, Serialize};

/// A request to the CPU of a memory node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum MemoryRequest {
    /// Asks for a change of the permissions to a region.
    ChangePermissions { region: u8, read: ProcessSet, write: ProcessSet },
    /// Asks for the sequence numbers of `count` registers from `first`. Only a process that is the region's sole writer asks, so
    /// no write is under way meanwhile.
    ReadSeqs { region: u8, first: u16, count: u16 },
}

/// The reply to a [`MemoryRequest`]. Replies arrive in the order of the requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum MemoryReply {
    /// The request to change permissions was processed. `write` is the remote key by which the process may now write the region, if it
    /// may.
    PermissionsChanged { write: Option<Vec<u8>> },
    /// The sequence number of each register.
    Seqs { seqs: Vec<u64> },
}

/// The most registers of one [`MemoryRequest::ReadSeqs`].
pub(crate) const MAX_SEQS: u16 = 256;
/// The most bytes that a memory node scans for one [`MemoryRequest::ReadSeqs`], unless a single register is larger.
pub(crate) const MAX_SEQ_SCAN_BYTES: usize = 512 << 10;
/// The largest encoded message, in bytes. An encoded sequence number takes at most 10 bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 + 10 * MAX_SEQS as usize;
