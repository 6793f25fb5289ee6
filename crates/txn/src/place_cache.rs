//! The places of records that a coordinator has found.

use std::collections::HashMap;

use crate::place::{Place, PlaceKind};
use crate::transaction::RecordKey;

/// The most records whose places are kept: about 40 bytes each.
const MAX_RECORDS: usize = 1 << 22;

/// Remembers where records were. A place may be wrong: a record there that has another key, or none, says so.
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

    pub(crate) fn remove(&mut self, key: RecordKey) {
        self.places.remove(&key);
    }
}
