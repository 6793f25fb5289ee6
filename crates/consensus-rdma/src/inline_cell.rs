//! A cell as a word of eight bytes, which a NIC compares and swaps.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A cell as a word that is not 0: its length, and at most seven bytes. None if it is longer.
pub(crate) fn word<C: Serialize>(cell: &C) -> Option<u64> {
    let mut bytes = [0; 8];
    let len = postcard::to_slice(cell, &mut bytes[1..]).ok()?.len();
    bytes[0] = len as u8 + 1;
    Some(u64::from_le_bytes(bytes))
}

/// What a word holds; 0, and what cannot be, is the default.
pub(crate) fn cell_of<C: DeserializeOwned + Default>(word: u64) -> C {
    let bytes = word.to_le_bytes();
    let contents = bytes[0].checked_sub(1).and_then(|len| bytes[1..].get(..usize::from(len)));
    contents.and_then(|contents| postcard::from_bytes(contents).ok()).unwrap_or_default()
}
