//! The representation of a cell as one 8-byte word, on which a NIC can execute a compare-and-swap.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a cell as a non-zero word. The first byte is the length of the encoded cell plus one.
/// The encoded cell follows, in at most seven bytes. Returns `None` if the encoded cell is longer.
pub(crate) fn encode_word<C: Serialize>(cell: &C) -> Option<u64> {
    let mut bytes = [0; 8];
    let len = postcard::to_slice(cell, &mut bytes[1..]).ok()?.len();
    bytes[0] = len as u8 + 1;
    Some(u64::from_le_bytes(bytes))
}

/// Decodes a word. 0 and invalid encodings decode to the default cell.
pub(crate) fn decode_word<C: DeserializeOwned + Default>(word: u64) -> C {
    let bytes = word.to_le_bytes();
    let contents = bytes[0].checked_sub(1).and_then(|len| bytes[1..].get(..usize::from(len)));
    contents.and_then(|contents| postcard::from_bytes(contents).ok()).unwrap_or_default()
}
