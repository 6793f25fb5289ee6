//! A table of objects by handle.
//!
//! A handle is a slot index and a generation. The generation makes a stale handle invalid when its
//! slot is reused.

use std::collections::VecDeque;

use mitra_verbs::{Error, Result};

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// The objects of one kind. `kind` and `plural` name the kind in error messages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HandleTable<T> {
    kind: &'static str,
    plural: &'static str,
    limit: u32,
    live: u32,
    slots: Vec<Slot<T>>,
    /// The free slots. The slot that was freed first is in front.
    free: VecDeque<u32>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> HandleTable<T> {
    pub(crate) fn new(kind: &'static str, plural: &'static str, limit: u32) -> HandleTable<T> {
        HandleTable {
            kind,
            plural,
            limit: limit.min(1 << INDEX_BITS),
            live: 0,
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Result<u32> {
        if self.live == self.limit {
            return Err(Error::Limit {
                attribute: self.plural,
                requested: u64::from(self.live) + 1,
                limit: u64::from(self.limit),
            });
        }
        self.live += 1;
        // Slots that were never used are taken before freed slots, so that a handle is reused as
        // late as possible.
        let index = if self.slots.len() < self.limit as usize {
            self.slots.push(Slot { generation: 0, value: None });
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front().expect("a table with fewer objects than slots has a free slot")
        };
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Ok(index | slot.generation << INDEX_BITS)
    }

    pub(crate) fn get(&self, id: u32) -> Result<&T> {
        match self.slots.get((id & INDEX_MASK) as usize) {
            Some(Slot { generation, value: Some(value) }) if *generation == id >> INDEX_BITS => Ok(value),
            _ => Err(Error::NoSuchObject { kind: self.kind, id }),
        }
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Result<&mut T> {
        match self.slots.get_mut((id & INDEX_MASK) as usize) {
            Some(Slot { generation, value: Some(value) }) if *generation == id >> INDEX_BITS => Ok(value),
            _ => Err(Error::NoSuchObject { kind: self.kind, id }),
        }
    }

    pub(crate) fn remove(&mut self, id: u32) -> Result<T> {
        self.get(id)?;
        let index = id & INDEX_MASK;
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) & (u32::MAX >> INDEX_BITS);
        self.live -= 1;
        self.free.push_back(index);
        slot.value.take().ok_or(Error::NoSuchObject { kind: self.kind, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handle_finds_no_object() {
        let mut t = HandleTable::new("thing", "things", 2);
        let (a, b) = (t.insert('a').unwrap(), t.insert('b').unwrap());
        assert_eq!(
            t.insert('c').unwrap_err().to_string(),
            "things: 3 exceeds this device's limit; use at most 2"
        );
        assert_eq!(t.remove(a), Ok('a'));
        let c = t.insert('c').unwrap();
        assert_ne!(a, c);
        assert!(t.get(a).is_err() && t.remove(a).is_err());
        assert_eq!((t.get(b), t.get(c)), (Ok(&'b'), Ok(&'c')));
    }
}
