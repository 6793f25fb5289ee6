//! A simulated disk: files with a page cache, writes that fail or are torn, and reboots.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_consensus_memory::{Files, StoredFile};
use mitra_prng::Prng;

/// The unit in which a reboot keeps or loses bytes that are not on the disk, and in which a loss of
/// power tears a write.
const SECTOR_BYTES: usize = 8;

/// The behaviour of the next writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum WriteFault {
    #[default]
    None,
    /// Writes fail. Their bytes are in the page cache, and not on the disk.
    Fail,
    /// The machine stops during the next write. Only the sectors that end within this number of
    /// bytes, counted from the start of the write, are written.
    StopAfter(usize),
}

#[derive(Debug, Default)]
struct DiskState {
    files: BTreeMap<String, FileState>,
    boot: u64,
    fault: WriteFault,
    /// Whether the machine has stopped during a write. Until the reboot, every access through a
    /// [`DiskFile`] fails, and [`Files::replace`] fails because of `fault`.
    stopped: bool,
    /// Whether a write has failed since [`Disk::forget_failure`].
    has_failed: bool,
}

#[derive(Debug, Default)]
struct FileState {
    /// The contents that programs see.
    cached: Vec<u8>,
    /// The contents on the disk, or `None` if the directory on the disk does not have the file.
    durable: Option<Vec<u8>>,
}

/// A directory on the simulated disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_fault(&self, fault: WriteFault) {
        self.state().fault = fault;
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Returns whether a write has failed since the memory node started. After a failure, the
    /// memory node uses the files only after its next start.
    pub(super) fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    pub(super) fn forget_failure(&self) {
        self.state().has_failed = false;
    }

    /// Reboots the machine: each sector has the contents on the disk, or the newer contents in the
    /// page cache.
    pub(super) fn reboot(&self, rng: &mut Prng) {
        let mut state = self.state();
        (state.boot, state.fault, state.stopped) = (state.boot + 1, WriteFault::None, false);
        state.files.retain(|_, file| file.durable.is_some());
        for file in state.files.values_mut() {
            let mut kept = file.durable.take().unwrap_or_default();
            if rng.below(2) == 0 {
                kept.resize(kept.len().max(file.cached.len()), 0);
                for (disk, cache) in kept.chunks_mut(SECTOR_BYTES).zip(file.cached.chunks(SECTOR_BYTES)) {
                    if disk.len() == cache.len() && rng.below(2) == 0 {
                        disk.copy_from_slice(cache);
                    }
                }
            }
            *file = FileState { cached: kept.clone(), durable: Some(kept) };
        }
    }
}

fn failed() -> io::Error {
    io::Error::other("the simulated disk failed")
}

impl Files for Disk {
    type File = DiskFile;

    fn directory(&self) -> &Path {
        Path::new("memory")
    }

    fn boot_id(&self) -> io::Result<String> {
        Ok(self.state().boot.to_string())
    }

    fn open(&self, name: &str, sync: bool) -> io::Result<DiskFile> {
        self.state().files.entry(name.to_owned()).or_default();
        Ok(DiskFile { disk: self.clone(), name: name.to_owned(), sync })
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        let file = state.files.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(file.cached.clone())
    }

    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if state.fault != WriteFault::None {
            state.stopped |= state.fault != WriteFault::Fail;
            return Err(failed());
        }
        let file = state.files.entry(name.to_owned()).or_default();
        *file = FileState { cached: contents.to_vec(), durable: Some(contents.to_vec()) };
        for file in state.files.values_mut() {
            file.durable.get_or_insert_default();
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct DiskFile {
    disk: Disk,
    name: String,
    sync: bool,
}

impl DiskFile {
    fn with<T>(&self, access: impl FnOnce(&mut DiskState) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state();
        if state.stopped { Err(failed()) } else { access(&mut state) }
    }
}

fn overwrite(contents: &mut Vec<u8>, offset: usize, data: &[u8]) {
    contents.resize(contents.len().max(offset + data.len()), 0);
    contents[offset..offset + data.len()].copy_from_slice(data);
}

impl StoredFile for DiskFile {
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.with(|state| {
            let file = state.files.entry(self.name.clone()).or_default();
            if file.cached.len() as u64 != len {
                file.cached = vec![0; len as usize];
            }
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state| {
            if state.fault != WriteFault::None {
                return Err(failed());
            }
            let file = state.files.entry(self.name.clone()).or_default();
            file.durable = Some(file.cached.clone());
            Ok(())
        })
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|state| {
            let contents = state.files.get(&self.name).map(|file| &file.cached[..]).unwrap_or_default();
            let bytes = contents.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(bytes.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|state| {
            let fault = state.fault;
            let file = state.files.entry(self.name.clone()).or_default();
            let (cached, durable) = match fault {
                WriteFault::None => (data, data),
                WriteFault::Fail => (data, &[][..]),
                WriteFault::StopAfter(bytes) if bytes >= data.len() => (data, data),
                WriteFault::StopAfter(bytes) => {
                    let end = (offset as usize + bytes) / SECTOR_BYTES * SECTOR_BYTES;
                    (data, &data[..end.saturating_sub(offset as usize)])
                }
            };
            overwrite(&mut file.cached, offset as usize, cached);
            if self.sync
                && let Some(on_disk) = &mut file.durable
            {
                overwrite(on_disk, offset as usize, durable);
            }
            state.stopped = matches!(fault, WriteFault::StopAfter(_));
            state.has_failed |= fault != WriteFault::None;
            if fault == WriteFault::None { Ok(()) } else { Err(failed()) }
        })
    }
}
