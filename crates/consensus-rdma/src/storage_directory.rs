//! The storage of a memory node in a directory of the file system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mitra_consensus_memory::{Files, StorageError, StoredFile};
use nix::fcntl::{FallocateFlags, OFlag, fallocate};

/// The storage of a memory node's contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageConfig {
    /// The directory, which no other memory may use. The node creates the directory if it does not
    /// exist.
    pub directory: PathBuf,
    /// Whether writes are on the disk before they are acknowledged.
    pub sync: bool,
}

const LOCK: &str = "lock";

/// A directory that no other memory node uses while this value lives.
#[derive(Debug)]
pub(crate) struct StorageDirectory {
    path: PathBuf,
    _lock: File,
}

impl StorageDirectory {
    /// Creates the directory if it does not exist, and locks it.
    pub(crate) fn open(path: &Path) -> Result<StorageDirectory, StorageError> {
        let failed = |error| StorageError::Io { path: path.to_owned(), error };
        fs::create_dir_all(path).map_err(failed)?;
        let lock = open_options(false).open(path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(StorageDirectory { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StorageError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

fn open_options(sync: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    if sync {
        options.custom_flags(OFlag::O_DSYNC.bits());
    }
    options
}

/// The file in which Linux shows the random id of the current boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl Files for StorageDirectory {
    type File = RegularFile;

    fn directory(&self) -> &Path {
        &self.path
    }

    fn boot_id(&self) -> io::Result<String> {
        Ok(fs::read_to_string(BOOT_ID)?.trim().to_owned())
    }

    fn open(&self, name: &str, sync: bool) -> io::Result<RegularFile> {
        Ok(RegularFile(open_options(sync).open(self.path.join(name))?))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    fn replace(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let temporary = self.path.join(format!("{name}.new"));
        let mut file = File::create(&temporary)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&temporary, self.path.join(name))?;
        File::open(&self.path)?.sync_all()
    }
}

#[derive(Debug)]
pub(crate) struct RegularFile(File);

impl StoredFile for RegularFile {
    fn allocate(&self, len: u64) -> io::Result<()> {
        if self.0.metadata()?.len() == len || len == 0 {
            return Ok(());
        }
        Ok(fallocate(&self.0, FallocateFlags::empty(), 0, len as i64)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

#[cfg(test)]
mod tests {
    use mitra_consensus::{LegalChange, Permissions, ProcessId, Region, RegisterKind};
    use mitra_consensus_memory::{Layout, Storage};
    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    fn layout(registers: u16) -> Layout {
        let region = Region {
            registers,
            permissions: Permissions::read_only(2),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        };
        Layout::new(&[region], 64)
    }

    fn open(path: &Path, sync: bool, layout: &Layout) -> Result<Storage<StorageDirectory>, StorageError> {
        Storage::open(StorageDirectory::open(path)?, sync, layout, 7)
    }

    #[test]
    fn contents_and_incarnations_survive_reopening() {
        for sync in [false, true] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let path = dir.path().join("m");
            let mut storage = open(&path, sync, &layout(4)).expect("the directory is new");
            assert!(storage.process_incarnations().is_empty());
            storage.buffers()[0].write_at(100, b"held");
            assert_eq!(storage.buffers()[0].try_compare_exchange(0, 1, 5), Ok(Err(0)));
            assert_eq!(storage.buffers()[0].try_compare_exchange(0, 0, 5), Ok(Ok(0)));
            storage.record_incarnation(ProcessId(1), 77).expect("the log is writable");
            drop(storage);
            let log = OpenOptions::new().append(true).open(path.join("lives"));
            log.and_then(|mut log| log.write_all(&[2, 3])).expect("the log is writable");
            let mut storage = open(&path, sync, &layout(4)).expect("the shape is the same");
            assert_eq!(storage.process_incarnations(), [(ProcessId(1), 77)], "the partial record is ignored");
            let mut held = [0; 4];
            storage.buffers()[0].read_at(100, &mut held);
            assert_eq!((&held, storage.buffers()[0].load(0)), (b"held", 5));
            storage.record_incarnation(ProcessId(0), 78).expect("the log is writable");
            drop(storage);
            let storage = open(&path, sync, &layout(4)).expect("the shape is the same");
            assert_eq!(storage.process_incarnations(), [(ProcessId(1), 77), (ProcessId(0), 78)]);
        }
    }

    #[test]
    fn directory_in_use_or_of_another_layout_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("m");
        let storage = open(&path, false, &layout(4)).expect("the directory is new");
        let reopen = |registers| open(&path, false, &layout(registers)).map(|_| ());
        assert!(matches!(reopen(4), Err(StorageError::InUse(_))));
        drop(storage);
        assert!(matches!(reopen(5), Err(StorageError::LayoutMismatch(_))));
        fs::write(path.join("memory"), b"garbage").expect("the header is writable");
        assert!(matches!(reopen(4), Err(StorageError::LayoutMismatch(_))));
    }

    #[test]
    fn memory_of_which_a_file_is_missing_or_cut_is_refused() {
        for (name, cut) in [
            ("region-0", None),
            ("region-0", Some(0)),
            ("region-0", Some(100)),
            ("lives", None),
            ("lives", Some(0)),
            ("lives", Some(13)),
            ("memory", None),
        ] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let path = dir.path().join("m");
            let mut storage = open(&path, false, &layout(4)).expect("the directory is new");
            for incarnation in [77, 78] {
                storage.record_incarnation(ProcessId(1), incarnation).expect("the log is writable");
            }
            drop(storage);
            drop(open(&path, false, &layout(4)).expect("all files are there"));
            let file = path.join(name);
            match cut {
                None => fs::remove_file(&file).expect("the file exists"),
                Some(len) => {
                    let file = OpenOptions::new().write(true).open(&file).expect("the file exists");
                    file.set_len(len).expect("the file is writable");
                }
            }
            for _ in 0..2 {
                let refused = open(&path, false, &layout(4)).map(|_| ());
                let is_named = matches!(&refused, Err(StorageError::Damaged(at)) if *at == file);
                assert!(is_named, "{name} cut to {cut:?}: {refused:?}");
            }
        }
    }

    /// A crash during the first start leaves no header and no record of a process.
    #[test]
    fn memory_whose_first_start_was_cut_off_is_new() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("m");
        drop(open(&path, true, &layout(4)).expect("the directory is new"));
        fs::remove_file(path.join("memory")).expect("the file exists");
        let storage = open(&path, true, &layout(4)).expect("nothing was written");
        assert!(storage.process_incarnations().is_empty());
    }

    /// A test on a running machine cannot show that a write survives a power loss. This test shows
    /// that the node asks the system for synchronous writes.
    #[test]
    fn file_has_o_dsync_exactly_if_writes_are_synchronous() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let directory = StorageDirectory::open(dir.path()).expect("the directory is new");
        for sync in [false, true] {
            let file = directory.open("file", sync).expect("the directory is writable");
            let flags = fcntl(&file.0, FcntlArg::F_GETFL).expect("the file is open");
            assert_eq!(OFlag::from_bits_retain(flags).contains(OFlag::O_DSYNC), sync);
        }
    }
}
