//! The contents of a log entry: the encoded commands of several clients.

use std::sync::Arc;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command<'a> {
    Get { key: &'a [u8] },
    Set { key: &'a [u8], value: &'a [u8] },
}

pub(crate) fn encode(command: Command<'_>, out: &mut Vec<u8>) {
    let mut field = |field: &[u8]| {
        out.extend_from_slice(&(field.len() as u32).to_le_bytes());
        out.extend_from_slice(field);
    };
    match command {
        Command::Get { key } => {
            field(key);
            out.extend_from_slice(&u32::MAX.to_le_bytes());
        }
        Command::Set { key, value } => {
            field(key);
            field(value);
        }
    }
}

/// Decodes commands until the bytes end or are malformed.
pub(crate) fn decode(mut bytes: &[u8]) -> impl Iterator<Item = Command<'_>> {
    fn len(bytes: &mut &[u8]) -> Option<u32> {
        bytes.split_off(..4)?.try_into().ok().map(u32::from_le_bytes)
    }
    std::iter::from_fn(move || {
        let key_len = len(&mut bytes)? as usize;
        let key = bytes.split_off(..key_len)?;
        Some(match len(&mut bytes)? {
            u32::MAX => Command::Get { key },
            value_len => Command::Set { key, value: bytes.split_off(..value_len as usize)? },
        })
    })
}

/// Encoded commands. The log and the messages that carry an entry share the bytes.
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
    fn encoded_commands_decode_back() {
        let all = [
            Command::Set { key: b"k", value: b"" },
            Command::Get { key: b"" },
            Command::Set { key: b"", value: b"value" },
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|&command| encode(command, &mut bytes));
        assert!(decode(&bytes).eq(all));
        assert_eq!(decode(&bytes[..bytes.len() - 1]).count(), 2);
    }
}
