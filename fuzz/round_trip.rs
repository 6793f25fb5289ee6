//! The property of each message that has an encoding.
#![allow(dead_code)] // Some programs use only one of the functions.

use std::fmt::Debug;

use mitra_verbs::{Codec, Malformed};

/// [`round_trip_by`] for a message that has a [`Codec`].
pub(crate) fn round_trip<T: for<'a> Codec<'a> + PartialEq + Debug>(bytes: &[u8]) {
    round_trip_by(bytes, |bytes| T::from_bytes(bytes), Codec::to_bytes);
}

/// No bytes panic the reader. A message that parses is written with the same length, and is the
/// same after it is parsed again.
pub(crate) fn round_trip_by<T: PartialEq + Debug>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> Result<T, Malformed>,
    write: impl Fn(&T) -> Vec<u8>,
) {
    if let Ok(message) = read(bytes) {
        let written = write(&message);
        assert_eq!(written.len(), bytes.len());
        assert_eq!(read(&written), Ok(message));
    }
}
