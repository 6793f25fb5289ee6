//! The property of each message that has a [`Codec`].

use std::fmt::Debug;

use mitra_verbs::Codec;

/// No bytes panic the reader. A message that parses is written with the same length, and is the
/// same after it is parsed again.
pub(crate) fn round_trip<T: for<'a> Codec<'a> + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = T::from_bytes(bytes) {
        let written = message.to_bytes();
        assert_eq!(written.len(), bytes.len());
        assert_eq!(T::from_bytes(&written), Ok(message));
    }
}
