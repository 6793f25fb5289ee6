//! The trait through which a client acts on its connection.

/// A process's end of one connection to a memory node.
///
/// Work requests complete in any order. The driver passes each outcome to
/// [`Client::on_completion`](crate::Client::on_completion). The memory node's NIC may write the
/// bytes of a WRITE in any order, and more than once before the WRITE completes.
pub trait ClientLink {
    /// A remote key of the memory, imported into this connection.
    type Key;

    /// Connects this end to the memory node's end. `info` is
    /// [`Welcome::info`](crate::Welcome::info). Returns false if this end does not connect.
    fn connect(&mut self, info: &[u8]) -> bool;

    /// Imports the encoded key of a region of `len` bytes. Returns `None` if the key is malformed
    /// or is for a region of a different length.
    fn import(&mut self, encoded: &[u8], len: u64) -> Option<Self::Key>;

    /// Returns how many work requests can be posted now.
    fn free_send_slots(&self) -> usize;

    /// Posts a WRITE of `data`, and returns whether it was posted.
    fn write(&mut self, wr_id: u64, key: &Self::Key, offset: u64, data: &[u8]) -> bool;

    /// Posts a READ of `len` bytes, and returns whether it was posted.
    fn read(&mut self, wr_id: u64, key: &Self::Key, offset: u64, len: usize) -> bool;

    /// Posts a compare-and-swap of the 8-byte word at `offset`, and returns whether it was posted.
    fn compare_swap(&mut self, wr_id: u64, key: &Self::Key, offset: u64, compare: u64, swap: u64) -> bool;

    /// Sends a message to the memory node's CPU. Messages arrive in order while the connection
    /// lasts. Returns false if the message was not accepted.
    fn send(&mut self, message: Vec<u8>) -> bool;
}
