//! The places of records that a coordinator has found.

use std::collections::HashMap;

use crate::execution::record_of;
use crate::index::Bucket;
use crate::layout::Layout;
use crate::lock_word::LockWord;
use crate::place::{Place, PlaceKind};
use crate::record;
use crate::scan::Piece;
use crate::transaction::RecordKey;

/// The largest number of records in the cache, at about 40 bytes each.
const MAX_RECORDS: usize = 1 << 22;

/// The last known places of records. A place may be outdated: the record there then has another
/// key, or does not exist.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PlaceCache {
    /// Partition and index.
    places: HashMap<RecordKey, (u32, u32)>,
}

impl PlaceCache {
    pub(crate) fn get(&self, key: RecordKey) -> Option<Place> {
        let &(partition, index) = self.places.get(&key)?;
        Some(Place { table: key.table, partition, kind: PlaceKind::Record, index })
    }

    pub(crate) fn insert(&mut self, key: RecordKey, place: Place) {
        if self.places.len() >= MAX_RECORDS {
            // All places can be found again.
            self.places.clear();
        }
        self.places.insert(key, (place.partition, place.index));
    }

    /// Adds the places of the keys in a piece of an index, until the cache is full. Torn and locked
    /// buckets are left out.
    pub(crate) fn learn(&mut self, layout: &Layout, piece: &Piece) {
        for (place, copies) in piece.places() {
            let Some((_, bucket_records)) = layout.buckets(place.table) else { return };
            let record = copies.first().and_then(|(_, bytes)| record::decode(bytes));
            let value = record.filter(|record| record.lock == LockWord::FREE).map(|record| record.value);
            let Some(bucket) = value.and_then(|value| Bucket::decode(&value, bucket_records)) else {
                continue;
            };
            for (slot, key) in bucket.keys() {
                if self.places.len() < MAX_RECORDS {
                    self.insert(RecordKey { table: place.table, key }, record_of(layout, place, slot));
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, key: RecordKey) {
        self.places.remove(&key);
    }
}
