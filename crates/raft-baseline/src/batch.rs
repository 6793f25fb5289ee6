//! What an entry of the log holds: the requests of many clients.

use std::sync::Arc;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command<'a> {
    Get { key: &'a [u8] },
    Set { key: &'a [u8], value: &'a [u8] },
}

/// Appends a request's bytes.
pub(crate) fn put(command: Command<'_>, out: &mut Vec<u8>) {
    let mut word = |word: &[u8]| {
        out.extend_from_slice(&(word.len() as u32).to_le_bytes());
        out.extend_from_slice(word);
    };
    match command {
        Command::Get { key } => {
            word(key);
            out.extend_from_slice(&u32::MAX.to_le_bytes());
        }
        Command::Set { key, value } => {
            word(key);
            word(value);
        }
    }
}

/// The requests in these bytes, as far as they are some.
pub(crate) fn commands(mut bytes: &[u8]) -> impl Iterator<Item = Command<'_>> {
    fn len(bytes: &mut &[u8]) -> Option<u32> {
        bytes.split_off(..4)?.try_into().ok().map(u32::from_le_bytes)
    }
    std::iter::from_fn(move || {
        let of_key = len(&mut bytes)? as usize;
        let key = bytes.split_off(..of_key)?;
        Some(match len(&mut bytes)? {
            u32::MAX => Command::Get { key },
            of_value => Command::Set { key, value: bytes.split_off(..of_value as usize)? },
        })
    })
}

/// Requests, one behind the other. The log and what is sent of it share them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch(pub(crate) Arc<[u8]>);

impl Serialize for Batch {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Batch, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Batch;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Batch, E> {
                Ok(Batch(bytes.into()))
            }
        }
        from.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_put() {
        let all = [
            Command::Set { key: b"k", value: b"" },
            Command::Get { key: b"" },
            Command::Set { key: b"", value: b"value" },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|&command| put(command, &mut bytes));
        assert!(commands(&bytes).eq(all));
        assert_eq!(commands(&bytes[..bytes.len() - 1]).count(), 2);
    }
}
