//! The log entry of an attempt: all that it writes.
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | the checksum over the rest |
//! | 8–15 | the lock word of the attempt |
//! | 16–23 | the length of what follows |
//! | 24– | for each written record: table, kind, partition and index of its place, and the length and the bytes of what is written behind its lock |

use xxhash_rust::xxh3::xxh3_64;

use crate::TableId;
use crate::lock_word::LockWord;
use crate::place::{Place, PlaceKind};
use crate::record;

/// The length of what comes before the records, in bytes.
pub(crate) const HEADER_BYTES: usize = 24;
/// The length of what comes before the content of a record.
const RECORD_HEADER_BYTES: usize = 15;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Logged {
    pub(crate) place: Place,
    /// Version, checksum, key, length and value, as in the memory.
    pub(crate) content: Vec<u8>,
}

/// Returns the bytes that a record with a value of this length takes in an entry.
pub(crate) fn record_bytes(value_bytes: usize) -> usize {
    RECORD_HEADER_BYTES + record::HEADER_BYTES - record::LOCK_BYTES + value_bytes
}

pub(crate) fn encode_entry(attempt: LockWord, records: &[Logged]) -> Vec<u8> {
    let mut body = Vec::new();
    for Logged { place, content } in records {
        body.extend_from_slice(&place.table.0.to_le_bytes());
        body.push(u8::from(place.kind == PlaceKind::Record));
        for word in [place.partition, place.index, content.len() as u32] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        body.extend_from_slice(content);
    }
    let mut entry = vec![0; 8];
    entry.extend_from_slice(&attempt.bits().to_le_bytes());
    entry.extend_from_slice(&(body.len() as u64).to_le_bytes());
    entry.extend_from_slice(&body);
    let check = xxh3_64(&entry[8..]);
    entry[..8].copy_from_slice(&check.to_le_bytes());
    entry
}

/// Returns the entry at the beginning of `slot`, or `None` if there is no complete entry.
pub(crate) fn decode_entry(slot: &[u8]) -> Option<(LockWord, Vec<Logged>)> {
    let word = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let (check, attempt, len) = (word(0)?, word(8)?, usize::try_from(word(16)?).ok()?);
    let entry = slot.get(8..HEADER_BYTES.checked_add(len)?)?;
    if attempt == 0 || xxh3_64(entry) != check {
        return None;
    }
    let mut rest = &entry[HEADER_BYTES - 8..];
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (table, kind) = (u16::from_le_bytes(rest.get(..2)?.try_into().ok()?), *rest.get(2)?);
        let number = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let (partition, index, len) = (number(3)?, number(7)?, number(11)? as usize);
        let kind = if kind == 0 { PlaceKind::Bucket } else { PlaceKind::Record };
        let place = Place { table: TableId(table), partition, kind, index };
        let end = RECORD_HEADER_BYTES.checked_add(len)?;
        records.push(Logged { place, content: rest.get(RECORD_HEADER_BYTES..end)?.to_vec() });
        rest = &rest[end..];
    }
    Some((LockWord::from_bits(attempt), records))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_word::Life;

    #[test]
    fn whole_entries_are_read_and_parts_are_not() {
        let attempt = LockWord::new(Life { coordinator: 3, incarnation: 2 }, 9);
        let place = Place { table: TableId(4), partition: 5, kind: PlaceKind::Bucket, index: 6 };
        let other = Place { kind: PlaceKind::Record, ..place };
        let records =
            vec![Logged { place, content: vec![1; 40] }, Logged { place: other, content: Vec::new() }];
        let entry = encode_entry(attempt, &records);
        let slot = [entry.clone(), vec![7; 50]].concat();
        assert_eq!(decode_entry(&slot), Some((attempt, records)));
        for len in 0..entry.len() {
            let mut part = entry.clone();
            part[len] ^= 1;
            assert_eq!(decode_entry(&part), None);
            assert_eq!(decode_entry(&entry[..len]), None);
        }
        assert_eq!(decode_entry(&[0; 64]), None);
        assert_eq!(decode_entry(&[0xff; 64]), None);
    }
}
