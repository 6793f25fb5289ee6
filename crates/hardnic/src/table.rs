//! A table of objects by handle.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mitra_verbs::{Error, Result};

const INDEX_BITS: u32 = 20;

/// Objects of one kind. A handle is a slot index and a generation, which makes the handle of a
/// removed object invalid when its slot is reused.
///
/// An object is used under the lock or through an `Arc`, so no call uses an object that another
/// thread has destroyed.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: &'static str,
    slots: RwLock<Slots<T>>,
}

#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    /// Creates an empty table. `kind` names the objects in errors.
    pub(crate) fn new(kind: &'static str) -> Table<T> {
        Table { kind, slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Slots<T>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots<T>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the object that `make` returns for its handle.
    pub(crate) fn insert_with(&self, make: impl FnOnce(u32) -> Result<T>) -> Result<u32> {
        let mut slots = self.write();
        let index = match slots.free.last() {
            Some(&index) => index,
            None => {
                let index = u32::try_from(slots.slots.len()).unwrap_or(u32::MAX);
                if index >= 1 << INDEX_BITS {
                    let limit = 1 << INDEX_BITS;
                    return Err(Error::Limit { attribute: self.kind, requested: limit + 1, limit });
                }
                slots.slots.push((0, None));
                slots.free.push(index);
                index
            }
        };
        let handle = slots.slots[index as usize].0 << INDEX_BITS | index;
        let value = make(handle)?;
        slots.free.pop();
        slots.slots[index as usize].1 = Some(value);
        Ok(handle)
    }

    /// # Errors
    /// `NoSuchObject`.
    pub(crate) fn get(&self, handle: u32) -> Result<T>
    where
        T: Clone,
    {
        self.read().get(handle).cloned().ok_or_else(|| self.no_such_object(handle))
    }

    /// Removes an object, if `is_free` does not refuse it.
    ///
    /// # Errors
    /// `NoSuchObject`, and the error of `is_free`.
    pub(crate) fn remove_if(&self, handle: u32, is_free: impl FnOnce(&T) -> Result<()>) -> Result<T> {
        let mut slots = self.write();
        is_free(slots.get(handle).ok_or_else(|| self.no_such_object(handle))?)?;
        let index = handle & ((1 << INDEX_BITS) - 1);
        let slot = &mut slots.slots[index as usize];
        slot.0 = (slot.0 + 1) & (u32::MAX >> INDEX_BITS);
        let value = slot.1.take();
        slots.free.push(index);
        value.ok_or_else(|| self.no_such_object(handle))
    }

    /// Removes all objects.
    pub(crate) fn drain(&self) -> Vec<T> {
        let mut slots = self.write();
        let mut drained = Vec::new();
        for index in 0..slots.slots.len() {
            if let Some(value) = slots.slots[index].1.take() {
                slots.slots[index].0 = (slots.slots[index].0 + 1) & (u32::MAX >> INDEX_BITS);
                slots.free.push(index as u32);
                drained.push(value);
            }
        }
        drained
    }

    pub(crate) fn no_such_object(&self, handle: u32) -> Error {
        Error::NoSuchObject { kind: self.kind, id: handle }
    }
}

impl<T> Slots<T> {
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let (generation, value) = self.slots.get((handle & ((1 << INDEX_BITS) - 1)) as usize)?;
        value.as_ref().filter(|_| *generation == handle >> INDEX_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_removed_object_is_invalid_after_its_slot_is_reused() {
        let table = Table::new("thing");
        let old = table.insert_with(|_| Ok(1)).unwrap();
        assert_eq!(table.get(old), Ok(1));
        assert_eq!(table.remove_if(old, |_| Ok(())), Ok(1));
        let new = table.insert_with(|_| Ok(2)).unwrap();
        assert_eq!(table.get(old), Err(Error::NoSuchObject { kind: "thing", id: old }));
        assert_eq!(table.get(new), Ok(2));
    }

    #[test]
    fn failed_insertion_and_refused_removal_change_nothing() {
        let table = Table::new("thing");
        assert_eq!(table.insert_with(|_| Err::<u8, _>(Error::DeviceFatal)), Err(Error::DeviceFatal));
        let handle = table.insert_with(|_| Ok(7)).unwrap();
        assert_eq!(table.remove_if(handle, |_| Err(Error::DeviceFatal)), Err(Error::DeviceFatal));
        assert_eq!(table.get(handle), Ok(7));
        assert_eq!(table.drain(), [7]);
        assert!(table.get(handle).is_err());
    }
}
