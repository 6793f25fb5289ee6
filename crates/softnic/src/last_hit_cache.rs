//! A bounded map for keys that are looked up many times in a row.

use std::collections::HashMap;
use std::hash::Hash;

/// The capacity of a map, in entries.
const CAPACITY: usize = 4096;

/// A bounded map that finds the entry of the last lookup without hashing. A full map is cleared.
pub(crate) struct LastHitCache<K, V> {
    index: HashMap<K, usize>,
    entries: Vec<(K, V)>,
    last_hit: usize,
}

impl<K: Copy + Eq + Hash, V> LastHitCache<K, V> {
    pub(crate) fn new() -> LastHitCache<K, V> {
        LastHitCache { index: HashMap::new(), entries: Vec::new(), last_hit: 0 }
    }

    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if self.entries.get(self.last_hit).is_none_or(|(last, _)| *last != key) {
            self.last_hit = match self.index.get(&key) {
                Some(&index) => index,
                None => self.insert(key, make()),
            };
        }
        &mut self.entries[self.last_hit].1
    }

    fn insert(&mut self, key: K, value: V) -> usize {
        if self.entries.len() >= CAPACITY {
            self.index.clear();
            self.entries.clear();
        }
        self.index.insert(key, self.entries.len());
        self.entries.push((key, value));
        self.entries.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_is_bounded_and_finds_its_entries() {
        let mut map = LastHitCache::new();
        for key in 0..=u16::MAX {
            assert_eq!(*map.get_or_insert_with(key, || u32::from(key)), u32::from(key));
            assert_eq!(*map.get_or_insert_with(key, || 0), u32::from(key));
            assert!(map.entries.len() <= CAPACITY && map.index.len() <= CAPACITY);
        }
    }
}
