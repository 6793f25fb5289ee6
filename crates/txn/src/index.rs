//! A bucket of a table's index. A bucket has a number of places for records, and contains the keys
//! of the records in these places.
//!
//! Bucket b of a partition, with K keys, has the places b K to b K + K − 1. A key that finds no
//! place in its own bucket goes to a later bucket, and marks each full bucket that it passes. The
//! search for a key ends at the first bucket without a mark. Marks are never removed.
//!
//! | bytes of the value | content |
//! |---|---|
//! | 0–7 | bit i: place i has a record; bit 63: a record that belongs here is in a later bucket |
//! | 8 + 8 i | the key of place i |

/// The limit of [`TableSchema::group_bits`](crate::TableSchema::group_bits).
pub(crate) const MAX_GROUP_BITS: u8 = 4;
const PASSED: u64 = 1 << 63;

/// The number of keys of a bucket. If whole groups of keys share a bucket, it has room for several
/// groups.
pub(crate) fn bucket_records(group_bits: u8) -> u32 {
    if group_bits == 0 { 16 } else { 48 }
}

/// The length of a bucket's value, in bytes.
pub(crate) fn bucket_bytes(records: u32) -> usize {
    8 + 8 * records as usize
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Bucket {
    keys: Vec<Option<u64>>,
    /// Whether the search goes on in the next bucket.
    pub(crate) is_passed: bool,
}

impl Bucket {
    pub(crate) fn empty(records: u32) -> Bucket {
        Bucket { keys: vec![None; records as usize], is_passed: false }
    }

    /// Decodes the value of a bucket with this many places. An empty value is a bucket that was
    /// never written. Returns `None` if the value is not a bucket.
    pub(crate) fn decode(value: &[u8], records: u32) -> Option<Bucket> {
        if value.is_empty() {
            return Some(Bucket::empty(records));
        }
        let mut words =
            value.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let bits = words.next().filter(|_| value.len() == bucket_bytes(records))?;
        let keys = words.enumerate().map(|(place, key)| (bits & 1 << place != 0).then_some(key)).collect();
        Some(Bucket { keys, is_passed: bits & PASSED != 0 })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let used = self.keys.iter().enumerate().filter(|(_, key)| key.is_some());
        let bits =
            used.fold(0, |bits, (place, _)| bits | 1 << place) | if self.is_passed { PASSED } else { 0 };
        let keys = self.keys.iter().map(|key| key.unwrap_or_default());
        [bits].into_iter().chain(keys).flat_map(u64::to_le_bytes).collect()
    }

    /// Returns the place of a key, counted within the bucket.
    pub(crate) fn find(&self, key: u64) -> Option<u32> {
        self.keys.iter().position(|&found| found == Some(key)).map(|place| place as u32)
    }

    pub(crate) fn key(&self, place: u32) -> Option<u64> {
        self.keys.get(place as usize).copied().flatten()
    }

    /// Adds a key. Returns its place, or `None` if the bucket is full.
    pub(crate) fn add(&mut self, key: u64) -> Option<u32> {
        let place = self.keys.iter().position(Option::is_none)?;
        self.keys[place] = Some(key);
        Some(place as u32)
    }

    pub(crate) fn remove(&mut self, place: u32) {
        if let Some(key) = self.keys.get_mut(place as usize) {
            *key = None;
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (u32, u64)> {
        (0..).zip(&self.keys).filter_map(|(place, key)| Some((place, (*key)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_read_as_they_were_written() {
        let mut bucket = Bucket::decode(&[], 3).unwrap();
        assert_eq!([5, 0, 7, 8].map(|key| bucket.add(key)), [Some(0), Some(1), Some(2), None]);
        bucket.is_passed = true;
        bucket.remove(2);
        let value = bucket.encode();
        assert_eq!(value.len(), bucket_bytes(3));
        let read = Bucket::decode(&value, 3).unwrap();
        assert_eq!(read, bucket);
        assert_eq!([5, 0, 7].map(|key| read.find(key)), [Some(0), Some(1), None]);
        assert_eq!(read.keys().collect::<Vec<_>>(), [(0, 5), (1, 0)]);
        assert_eq!(Bucket::decode(&value, 4), None);
        assert_eq!(Bucket::decode(&value[..31], 3), None);
        assert_eq!(Bucket::decode(&[1], 3), None);
    }
}
