//! A record in the memory of a node.
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | the lock ([`LockWord`]), which only the primary's copy of the record uses |
//! | 8–15 | the version ([`Version`]) |
//! | 16–23 | the checksum over version, key, length and value; 0 while the version is 0 |
//! | 24–31 | the key |
//! | 32–39 | the length of the value |
//! | 40– | the value |
//!
//! A record begins at a multiple of 64 bytes, so lock, version and checksum lie in one line of the
//! memory. A READ during a WRITE may return parts of both values. The checksum detects the mixture.

use mitra_mutants::Mutant;
use xxhash_rust::xxh3::Xxh3;

use crate::lock_word::LockWord;

/// The length of all that comes before the value, in bytes.
pub(crate) const HEADER_BYTES: usize = 40;
pub(crate) const LOCK_BYTES: usize = 8;
pub(crate) const VERSION_BYTES: usize = 8;
pub(crate) const LOCK_AND_VERSION_BYTES: u32 = 16;

/// The version of a record. Each commit that writes the record increases it. A deleted record has a
/// version too. A new record at the same place continues from this version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(u64);

impl Version {
    /// No transaction has written the record.
    pub const UNUSED: Version = Version(0);
    const DELETED: u64 = 1 << 63;

    /// Returns the version after this one.
    #[must_use]
    pub fn next(self, is_deleted: bool) -> Version {
        Version((self.number() + 1) | if is_deleted { Version::DELETED } else { 0 })
    }

    /// Returns whether the record exists.
    pub fn is_present(self) -> bool {
        self != Version::UNUSED && self.0 & Version::DELETED == 0
    }

    /// The number of the commits that have written the record.
    pub fn number(self) -> u64 {
        self.0 & !Version::DELETED
    }

    /// Returns the version as 8 bytes in memory: the number, and bit 63 if the record is deleted.
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// A record as a READ has returned it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// The lock.
    pub lock: LockWord,
    /// The version.
    pub version: Version,
    /// The key. It has no meaning if the record does not exist.
    pub key: u64,
    /// The value. It is empty if the record does not exist.
    pub value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Header {
    pub(crate) lock: LockWord,
    pub(crate) version: Version,
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Returns `None` if `bytes` is shorter than lock and version.
pub(crate) fn decode_header(bytes: &[u8]) -> Option<Header> {
    Some(Header { lock: LockWord::from_bits(word(bytes, 0)?), version: Version(word(bytes, 8)?) })
}

/// Returns the record, or `None` if `bytes` has parts of different versions, or is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<Record> {
    let Header { lock, version } = decode_header(bytes)?;
    let (check, key, len) = (word(bytes, 16)?, word(bytes, 24)?, word(bytes, 32)?);
    if version == Version::UNUSED && check == 0 {
        return Some(Record { lock, version, key: 0, value: Vec::new() });
    }
    let value = bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(usize::try_from(len).ok()?)?)?;
    (check == checksum(version, key, value) || Mutant::TornRecordRead.is_on()).then(|| Record {
        lock,
        version,
        key,
        value: value.to_vec(),
    })
}

/// Returns all of a record but its lock.
pub(crate) fn encode_behind_lock(version: Version, key: u64, value: &[u8]) -> Vec<u8> {
    let words = [version.bits(), checksum(version, key, value), key, value.len() as u64];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(value);
    bytes
}

/// Returns the version in the result of [`encode_behind_lock`].
pub(crate) fn version_behind_lock(content: &[u8]) -> Version {
    Version(word(content, 0).unwrap_or_default())
}

fn checksum(version: Version, key: u64, value: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    for word in [version.bits(), key, value.len() as u64] {
        hasher.update(&word.to_le_bytes());
    }
    hasher.update(value);
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_memory(lock: u64, version: Version, key: u64, value: &[u8]) -> Vec<u8> {
        [&lock.to_le_bytes()[..], &encode_behind_lock(version, key, value)].concat()
    }

    #[test]
    fn whole_records_are_read_and_mixed_ones_are_not() {
        let first = Version::UNUSED.next(false);
        let old = in_memory(7, first, 5, b"old value");
        let new = in_memory(7, first.next(false), 5, b"new value");
        let record = decode(&old).unwrap();
        assert_eq!((record.lock.bits(), record.version, record.key), (7, first, 5));
        assert_eq!(record.value, b"old value");
        // A WRITE is placed in words of 8 bytes, in any order.
        for words in 1_u32..(1 << 6) - 1 {
            let mut mixed = old.clone();
            for word in 0..6 {
                let at = 8 + 8 * word;
                let end = (at + 8).min(mixed.len());
                if words & (1 << word) != 0 && at < end {
                    mixed[at..end].copy_from_slice(&new[at..end]);
                }
            }
            assert!(mixed == old || mixed == new || decode(&mixed).is_none(), "{words:b}");
        }
        assert_eq!(decode(&[0; 64]).unwrap().version, Version::UNUSED);
        assert_eq!(decode(&old[..40]), None);
        let mut long = old;
        long[32..40].fill(0xff);
        assert_eq!(decode(&long), None);
    }

    #[test]
    fn place_keeps_its_version_over_deletions() {
        let inserted = Version::UNUSED.next(false);
        let deleted = inserted.next(true);
        assert_eq!((inserted.is_present(), deleted.is_present()), (true, false));
        assert_eq!(deleted.next(false).bits(), 3);
    }
}
