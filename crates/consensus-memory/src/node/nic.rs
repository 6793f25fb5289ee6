//! The trait through which a memory node acts on its NICs.

use std::sync::Arc;

use mitra_consensus::ProcessId;
use mitra_verbs::{Access, Buffer};

/// The NICs of a memory node. Each process has a protection domain of its own, so that the NIC
/// refuses a process that uses another process's key.
pub trait NodeNic {
    /// A memory region with a remote key.
    type Key;

    /// Connects to the end of process `p`. `info` is [`Hello::info`](crate::Hello::info). Returns
    /// [`Welcome::info`](crate::Welcome::info), or `None` if the NIC refuses a resource.
    fn connect(&mut self, p: ProcessId, info: &[u8]) -> Option<Vec<u8>>;

    /// Closes the connection of process `p`, if there is one. The close is no fence: the NIC may
    /// finish a packet that it has begun, and a NIC that does not confirm the close may keep the
    /// queue pair. Both can access nothing once the keys are revoked.
    fn close(&mut self, p: ProcessId);

    /// Registers a buffer for access by process `p`. Returns `None` if the NIC refuses a resource.
    fn register(&mut self, p: ProcessId, buffer: &Arc<Buffer>, access: Access) -> Option<Self::Key>;

    /// Encodes a key for the process.
    fn encode(&self, key: &Self::Key) -> Vec<u8>;

    /// Revokes a key of process `p`. Returns true after all NICs have confirmed the revocation: no
    /// access by this key is in progress, and the NICs refuse later accesses. Otherwise, the caller
    /// calls again.
    fn deregister(&mut self, p: ProcessId, key: &Self::Key) -> bool;
}
