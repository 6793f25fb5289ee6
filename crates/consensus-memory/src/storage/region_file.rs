//! The file that stores the bytes of one region of a memory.

use std::io;
use std::sync::{PoisonError, RwLock};

use mitra_mutants::Mutant;
use mitra_verbs::{ForeignMemory, Unmapped};

use super::StoredFile;

/// Registered memory whose bytes are in a file.
///
/// After a failed write, every access fails, because the page cache may contain data that never
/// reaches the disk.
pub(super) struct RegionFile<F> {
    file: F,
    /// False after a failed write. A writer holds the lock exclusively, because a READ by another
    /// NIC must not return data whose write is still in progress and may fail.
    healthy: RwLock<bool>,
}

impl<F> RegionFile<F> {
    pub(super) fn new(file: F) -> RegionFile<F> {
        RegionFile { file, healthy: RwLock::new(true) }
    }

    fn exclusively<T>(&self, access: impl FnOnce(&F) -> io::Result<T>) -> Result<T, Unmapped> {
        let mut healthy = self.healthy.write().unwrap_or_else(PoisonError::into_inner);
        let result = if *healthy { access(&self.file).map_err(|_| Unmapped) } else { Err(Unmapped) };
        *healthy = result.is_ok() || Mutant::FailedDiskRecovers.is_on();
        result
    }
}

impl<F: StoredFile> ForeignMemory for RegionFile<F> {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        match *self.healthy.read().unwrap_or_else(PoisonError::into_inner) {
            true => self.file.read_at(offset as u64, out).map_err(|_| Unmapped),
            false => Err(Unmapped),
        }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        self.exclusively(|file| file.write_at(offset as u64, data))
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        self.exclusively(|file| {
            let mut word = [0; 8];
            file.read_at(offset as u64, &mut word)?;
            let old = u64::from_ne_bytes(word);
            if old != current {
                return Ok(Err(old));
            }
            file.write_at(offset as u64, &new.to_ne_bytes())?;
            Ok(Ok(old))
        })
    }
}
