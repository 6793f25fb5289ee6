use mitra_verbs::Gid;

/// Datagrams for one destination, stored back to back.
///
/// Each datagram runs from the BTH to the pad bytes, followed by four zero bytes. The driver
/// replaces the zero bytes by the ICRC, which covers IP header fields that only the driver knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxBatch {
    /// The destination of all datagrams.
    pub destination: Gid,
    /// The traffic class of all datagrams: the class of their UD address handle, else 0.
    pub traffic_class: u8,
    /// The bytes of all datagrams.
    pub bytes: Vec<u8>,
    /// The end of each datagram, as an offset into `bytes`.
    pub ends: Vec<u32>,
}

impl TxBatch {
    /// Creates an empty batch.
    pub fn new() -> TxBatch {
        TxBatch { destination: Gid([0; 16]), traffic_class: 0, bytes: Vec::new(), ends: Vec::new() }
    }

    /// Removes all datagrams and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns whether the batch has no datagrams.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Iterates over the datagrams. The last four bytes of each datagram are reserved for the ICRC.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter()).map(|(start, &end)| &self.bytes[start as usize..end as usize])
    }
}

impl Default for TxBatch {
    fn default() -> TxBatch {
        TxBatch::new()
    }
}
