//! Reads the arguments of a structured input. Behind the end of the input, every number is 0 and
//! every string is empty.

/// The rest of an input.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Reads a string with its length (1 byte) before it.
    pub(crate) fn string(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (string, rest) = self.0.split_at(len);
        self.0 = rest;
        string
    }
}
