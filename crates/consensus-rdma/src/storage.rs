//! Persistent storage of a memory node: its contents in files, which outlive the process.
//!
//! The NIC writes to a file before it acknowledges a write, so acknowledged writes survive the process. They survive a reboot only if
//! they are on the disk. With [`StorageConfig::sync`], every write is on the disk before it is acknowledged (`O_DSYNC`, open(2)). This
//! corresponds to persistent memory and a NIC with the FLUSH extension (IBTA annex A19). Without `sync`, a reboot may lose acknowledged
//! writes. The files do not show whether that happened, so the node refuses to open them after a reboot.
//!
//! ```text
//! DIR/memory      the header: version, incarnation, layout, and the boot id under which the files were last open
//! DIR/lives       the incarnations of processes that have connected, 9 bytes each
//! DIR/region-0 …  the bytes of each region
//! ```

mod region_file;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mitra_consensus::ProcessId;
use mitra_verbs::Buffer;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use serde::{Deserialize, Serialize};

use self::region_file::RegionFile;
use crate::layout::Layout;

/// Where a memory node stores its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageConfig {
    /// The directory, which no other memory may use. The node creates the directory if it does not exist.
    pub directory: PathBuf,
    /// Whether writes are on the disk before they are acknowledged.
    pub sync: bool,
}

/// The reasons for which a storage directory is not usable.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused an operation on a file.
    #[error("cannot use {path}: {error}; free space, or give another directory", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason that the system gave.
        error: io::Error,
    },
    /// A running memory node uses the directory.
    #[error("{}: in use by another memory that runs", .0.display())]
    InUse(PathBuf),
    /// The directory holds a memory with other regions, or files of another version of the file format.
    #[error("{}: made for other regions, or by another version of mitra; give it a directory of its own", .0.display())]
    LayoutMismatch(PathBuf),
    /// The machine was rebooted since the files were written without [`StorageConfig::sync`].
    #[error(
        "{}: the machine was rebooted since this memory was written without --sync, so acknowledged writes may be lost. The memory \
         counts as crashed: the others go on without it while they are a majority. Do not replace it by an empty memory, which \
         would answer as if nothing had been written",
        .0.display()
    )]
    PossibleDataLoss(PathBuf),
}

/// The version of the file format.
const VERSION: u32 = 1;
/// The size of a record in the incarnation log, in bytes: the process (1) and its incarnation (8).
const INCARNATION_RECORD: usize = 9;

/// The contents of `DIR/memory`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// The memory's incarnation, which stays the same when the files are opened again.
    incarnation: u64,
    /// Whether all writes so far were made with [`StorageConfig::sync`].
    sync: bool,
    /// The kernel's boot id when the files were last opened.
    boot: String,
    /// [`Layout::shape`].
    shape: Vec<(u16, bool, usize)>,
}

/// The open files of a memory node.
#[derive(Debug)]
pub(crate) struct Storage {
    /// The bytes of each region.
    pub(crate) buffers: Vec<Arc<Buffer>>,
    /// The incarnations of processes that have connected, oldest first.
    pub(crate) process_incarnations: Vec<(ProcessId, u64)>,
    /// The incarnation of the memory.
    pub(crate) incarnation: u64,
    /// Whether the files existed before this start.
    pub(crate) reopened: bool,
    incarnation_log: File,
    /// The size of the complete records in `incarnation_log`, in bytes.
    logged_bytes: u64,
}

impl Storage {
    /// Opens or creates the files. `incarnation` is the memory's incarnation if the files are new.
    pub(crate) fn open(
        config: &StorageConfig,
        layout: &Layout,
        incarnation: u64,
    ) -> Result<Storage, StorageError> {
        let dir = &config.directory;
        let path = |name: &str| dir.join(name);
        fs::create_dir_all(dir).map_err(io_error(dir))?;
        let log_path = path("lives");
        let incarnation_log = open_options(config).open(&log_path).map_err(io_error(&log_path))?;
        match incarnation_log.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StorageError::InUse(dir.clone())),
            Err(TryLockError::Error(error)) => return Err(io_error(&log_path)(error)),
        }
        let header_path = path("memory");
        let boot = boot_id().map_err(io_error(Path::new(BOOT_ID)))?;
        let found = match fs::read(&header_path) {
            Ok(bytes) => {
                Some(postcard::from_bytes(&bytes).map_err(|_| StorageError::LayoutMismatch(dir.clone()))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io_error(&header_path)(error)),
        };
        let fresh = Header { version: VERSION, incarnation, sync: config.sync, boot, shape: layout.shape() };
        let header = match &found {
            Some(old) => reopened_header(old, &fresh).map_err(|error| error(dir.clone()))?,
            None => fresh,
        };
        let open_region = |region: u8| -> Result<Arc<Buffer>, StorageError> {
            let (path, len) = (path(&format!("region-{region}")), layout.len(region));
            let file = open_options(config).open(&path).map_err(io_error(&path))?;
            allocate(&file, len).map_err(io_error(&path))?;
            Ok(Arc::new(Buffer::from_foreign(Box::new(RegionFile::new(file)), 0, len)))
        };
        let buffers = (0..layout.regions() as u8).map(open_region).collect::<Result<_, _>>()?;
        let log = fs::read(&log_path).map_err(io_error(&log_path))?;
        let parse = |record: &[u8; INCARNATION_RECORD]| {
            let (p, incarnation) = record.split_first().expect("a record has 9 bytes");
            let incarnation = incarnation.try_into().expect("a record has 8 bytes after the process");
            (ProcessId(*p), u64::from_le_bytes(incarnation))
        };
        // A crash may leave a partial record at the end. The process of that record was not accepted, and the next record overwrites it.
        let records = log.as_chunks::<INCARNATION_RECORD>().0;
        let logged_bytes = (records.len() * INCARNATION_RECORD) as u64;
        let process_incarnations = records.iter().map(parse).collect();
        // The header is written last. After a crash before this line, the next start treats a new directory as new again.
        write_header(dir, &header).map_err(io_error(&header_path))?;
        let (incarnation, reopened) = (header.incarnation, found.is_some());
        Ok(Storage { buffers, process_incarnations, incarnation, reopened, incarnation_log, logged_bytes })
    }

    /// Records that an incarnation of a process is about to be accepted.
    pub(crate) fn record_incarnation(&mut self, p: ProcessId, incarnation: u64) -> io::Result<()> {
        let mut record = vec![p.0];
        record.extend_from_slice(&incarnation.to_le_bytes());
        self.incarnation_log.write_all_at(&record, self.logged_bytes)?;
        self.logged_bytes += INCARNATION_RECORD as u64;
        Ok(())
    }
}

/// Returns the new header of files that are opened again, or the error if they must not be used.
fn reopened_header(old: &Header, fresh: &Header) -> Result<Header, fn(PathBuf) -> StorageError> {
    if (old.version, &old.shape) != (fresh.version, &fresh.shape) {
        return Err(StorageError::LayoutMismatch);
    }
    if old.boot != fresh.boot && !old.sync {
        return Err(StorageError::PossibleDataLoss);
    }
    // The files are safe after a reboot only if both the earlier writes and the coming ones are synchronous.
    Ok(Header { incarnation: old.incarnation, sync: old.sync && fresh.sync, ..fresh.clone() })
}

fn open_options(config: &StorageConfig) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    if config.sync {
        options.custom_flags(OFlag::O_DSYNC.bits());
    }
    options
}

/// Allocates the disk space of a region in advance, because the NIC cannot report that the disk is full.
fn allocate(file: &File, len: usize) -> io::Result<()> {
    if file.metadata()?.len() == len as u64 || len == 0 {
        return Ok(());
    }
    fallocate(file, FallocateFlags::empty(), 0, len as i64)?;
    file.sync_all()
}

/// Replaces the header file atomically.
fn write_header(dir: &Path, header: &Header) -> io::Result<()> {
    let temporary = dir.join("memory.new");
    let mut file = File::create(&temporary)?;
    file.write_all(&postcard::to_stdvec(header).map_err(io::Error::other)?)?;
    file.sync_all()?;
    fs::rename(&temporary, dir.join("memory"))?;
    File::open(dir)?.sync_all()
}

/// The file in which Linux shows the random id of the current boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StorageError + use<> {
    let path = path.to_owned();
    |error| StorageError::Io { path, error }
}

#[cfg(test)]
mod tests {
    use mitra_consensus::{LegalChange, Permissions, Region, RegisterKind};

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

    fn config(directory: &tempfile::TempDir, sync: bool) -> StorageConfig {
        StorageConfig { directory: directory.path().join("m"), sync }
    }

    #[test]
    fn contents_and_incarnations_survive_reopening() {
        for sync in [false, true] {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let mut storage =
                Storage::open(&config(&dir, sync), &layout(4), 7).expect("the directory is new");
            assert!(!storage.reopened && storage.incarnation == 7 && storage.process_incarnations.is_empty());
            storage.buffers[0].write_at(100, b"held");
            assert_eq!(storage.buffers[0].try_compare_exchange(0, 1, 5), Ok(Err(0)));
            assert_eq!(storage.buffers[0].try_compare_exchange(0, 0, 5), Ok(Ok(0)));
            storage.record_incarnation(ProcessId(1), 77).expect("the log is writable");
            let end = storage.logged_bytes;
            storage.incarnation_log.write_all_at(&[2, 3], end).expect("the log is writable");
            drop(storage);
            let mut storage =
                Storage::open(&config(&dir, sync), &layout(4), 8).expect("the shape is the same");
            assert!(storage.reopened && storage.incarnation == 7);
            assert_eq!(storage.process_incarnations, [(ProcessId(1), 77)], "the partial record is ignored");
            let mut held = [0; 4];
            storage.buffers[0].read_at(100, &mut held);
            assert_eq!((&held, storage.buffers[0].load(0)), (b"held", 5));
            storage.record_incarnation(ProcessId(0), 78).expect("the log is writable");
            drop(storage);
            let storage = Storage::open(&config(&dir, sync), &layout(4), 9).expect("the shape is the same");
            assert_eq!(storage.process_incarnations, [(ProcessId(1), 77), (ProcessId(0), 78)]);
        }
    }

    #[test]
    fn directory_in_use_or_of_another_layout_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let storage = Storage::open(&config(&dir, false), &layout(4), 7).expect("the directory is new");
        let reopen = |registers| {
            Storage::open(&config(&dir, false), &layout(registers), 8).map(|storage| storage.incarnation)
        };
        assert!(matches!(reopen(4), Err(StorageError::InUse(_))));
        drop(storage);
        assert!(matches!(reopen(5), Err(StorageError::LayoutMismatch(_))));
        fs::write(dir.path().join("m/memory"), b"garbage").expect("the header is writable");
        assert!(matches!(reopen(4), Err(StorageError::LayoutMismatch(_))));
    }

    /// A reboot may lose data that was not yet on the disk.
    #[test]
    fn files_written_without_sync_are_refused_after_reboot() {
        let header = |boot: &str, sync| Header {
            version: VERSION,
            incarnation: 7,
            sync,
            boot: boot.to_owned(),
            shape: layout(4).shape(),
        };
        let reopened =
            |old: &Header, fresh: &Header| reopened_header(old, fresh).map(|header| header.sync).ok();
        assert_eq!(reopened(&header("a", true), &header("b", true)), Some(true));
        assert_eq!(reopened(&header("a", true), &header("b", false)), Some(false));
        assert_eq!(
            reopened(&header("a", false), &header("a", true)),
            Some(false),
            "the earlier writes were not synchronous"
        );
        assert_eq!(reopened(&header("a", false), &header("b", true)), None);
    }
}
