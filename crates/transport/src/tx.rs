use mitra_verbs::Gid;

/// Datagrams for one destination, back to back: BTH up to the pad, then four zero bytes where the driver puts the ICRC,
/// which needs the IP header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxBatch {
    /// Where they go.
    pub destination: Gid,
    /// The bytes of all of them.
    pub bytes: Vec<u8>,
    /// Where each ends.
    pub ends: Vec<u32>,
}

impl TxBatch {
    /// No datagrams.
    pub fn new() -> TxBatch {
        TxBatch { destination: Gid([0; 16]), bytes: Vec::new(), ends: Vec::new() }
    }

    /// Forgets the datagrams, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Each datagram's bytes, with room for the ICRC at its end.
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
