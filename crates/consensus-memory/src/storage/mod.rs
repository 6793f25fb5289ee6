//! Persistent storage of a memory node: its contents in files, which outlive the process.
//!
//! The NIC writes to a file before it acknowledges a write, so acknowledged writes survive the
//! process. Acknowledged writes survive a reboot only if they are on the disk. With `sync`, every
//! write is on the disk before it is acknowledged, which corresponds to persistent memory and a NIC
//! with the FLUSH extension (IBTA annex A19). Without `sync`, a reboot or a failing disk may lose
//! acknowledged writes. The files do not show whether a reboot lost writes. After a reboot, the
//! node therefore refuses to open files that were written without `sync`.
//!
//! ```text
//! DIR/lock        locked while a memory node runs
//! DIR/memory      the header: version, incarnation, layout, and the boot id under which the files were last open
//! DIR/lives       the incarnations of processes that have connected, 13 bytes each
//! DIR/region-0 …  the bytes of each region
//! ```

mod files;
mod incarnation_log;
mod region_file;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use mitra_consensus::ProcessId;
use mitra_mutants::Mutant;
use mitra_verbs::Buffer;
use serde::{Deserialize, Serialize};

pub use self::files::{Files, StoredFile};
use self::incarnation_log::{RECORD_BYTES, encode_record};
use self::region_file::RegionFile;
use crate::layout::Layout;

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
    /// The directory holds a memory with other regions, or files of another version of the file
    /// format.
    #[error("{}: made for other regions, or by another version of mitra; give it a directory of its own", .0.display())]
    LayoutMismatch(PathBuf),
    /// A file is missing, shorter than this memory has written it, or damaged.
    #[error(
        "{}: missing, shorter than this memory has written it, or damaged. Restore the directory as it was, or let the memory count as crashed: the \
         others go on without it while they are a majority. Do not replace it by an empty memory, which would answer as if nothing had \
         been written",
        .0.display()
    )]
    Damaged(PathBuf),
    /// The machine was rebooted since the files were written without synchronous writes.
    #[error(
        "{}: the machine was rebooted since this memory was written without --sync, so acknowledged writes may be lost. The memory \
         counts as crashed: the others go on without it while they are a majority. Do not replace it by an empty memory, which \
         would answer as if nothing had been written",
        .0.display()
    )]
    PossibleDataLoss(PathBuf),
}

/// The version of the file format.
const VERSION: u32 = 2;

/// The size in bytes of one write of [`write_again`].
const REWRITE_BYTES: usize = 1 << 20;

/// The contents of `DIR/memory`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Header {
    version: u32,
    /// The memory's incarnation, which stays the same when the files are opened again.
    incarnation: u64,
    /// Whether all writes so far were made synchronously.
    sync: bool,
    /// The kernel's boot id when the files were last opened.
    boot: String,
    /// The number of records in the incarnation log when the files were last opened.
    records: u64,
    /// [`Layout::shape`].
    shape: Vec<(u16, bool, usize)>,
}

const HEADER: &str = "memory";

/// The open files of a memory node.
#[derive(Debug)]
pub struct Storage<F: Files> {
    buffers: Vec<Arc<Buffer>>,
    process_incarnations: Vec<(ProcessId, u64)>,
    incarnation: u64,
    reopened: bool,
    incarnation_log: F::File,
    /// The size of the complete records in `incarnation_log`, in bytes.
    logged_bytes: u64,
    /// Whether the last write of a record failed, so that the file may have this record behind the
    /// complete records.
    has_failed_record: bool,
    /// Kept open, because it may hold a lock.
    _files: F,
}

impl<F: Files> Storage<F> {
    /// Opens or creates the files of a memory with this layout. `incarnation` is the memory's
    /// incarnation if the files are new. With `sync`, writes are on the disk before they are
    /// acknowledged.
    ///
    /// # Errors
    /// [`StorageError`] if the files are unusable.
    pub fn open(files: F, sync: bool, layout: &Layout, incarnation: u64) -> Result<Storage<F>, StorageError> {
        let failed = |name: &str| {
            let path = files.directory().join(name);
            move |error| StorageError::Io { path, error }
        };
        let damaged = |name: &str| StorageError::Damaged(files.directory().join(name));
        let boot = files.boot_id().map_err(failed(""))?;
        let found = match files.read(HEADER) {
            Ok(bytes) => Some(
                postcard::from_bytes(&bytes)
                    .map_err(|_| StorageError::LayoutMismatch(files.directory().to_owned()))?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(HEADER)(error)),
        };
        let fresh = Header { version: VERSION, incarnation, sync, boot, records: 0, shape: layout.shape() };
        let mut header = match &found {
            Some(old) => reopened_header(old, &fresh).map_err(|error| error(files.directory().to_owned()))?,
            None => fresh,
        };
        let log = match files.read(incarnation_log::NAME) {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound && found.is_none() => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged(incarnation_log::NAME));
            }
            Err(error) => return Err(failed(incarnation_log::NAME)(error)),
        };
        // The node records a process after it writes the header, and before the process can write.
        // A log without a header therefore belongs to a memory that lost its header.
        if found.is_none() && !log.is_empty() {
            return Err(damaged(HEADER));
        }
        let process_incarnations =
            incarnation_log::decode(&log).filter(|records| records.len() as u64 >= header.records);
        let process_incarnations = process_incarnations.ok_or_else(|| damaged(incarnation_log::NAME))?;
        header.records = process_incarnations.len() as u64;
        let write_again = |file: &F::File, len: usize| match found.is_some()
            && header.sync
            && !Mutant::FilesNotWrittenAgain.is_on()
        {
            true => write_again(file, len),
            false => Ok(()),
        };
        let open_region = |region: u8| -> Result<Arc<Buffer>, StorageError> {
            let (name, len) = (format!("region-{region}"), layout.len(region));
            let file =
                files.open(&name, sync && !Mutant::RegionsNotSynchronous.is_on()).map_err(failed(&name))?;
            // The header is written after the regions have their lengths, so no region of a
            // directory with a header is shorter.
            if found.is_some() && len > 0 {
                file.read_at(len as u64 - 1, &mut [0]).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => damaged(&name),
                    _ => failed(&name)(error),
                })?;
            }
            file.allocate(len as u64).map_err(failed(&name))?;
            if found.is_none() {
                // Also necessary if the file already has its length: an earlier start may have
                // ended before the length was on the disk.
                file.sync().map_err(failed(&name))?;
            }
            write_again(&file, len).map_err(failed(&name))?;
            Ok(Arc::new(Buffer::from_foreign(Box::new(RegionFile::new(file)), 0, len)))
        };
        let buffers = (0..layout.regions() as u8).map(open_region).collect::<Result<_, _>>()?;
        let log_file = files
            .open(incarnation_log::NAME, sync && !Mutant::LogNotSynchronous.is_on())
            .map_err(failed(incarnation_log::NAME))?;
        write_again(&log_file, log.len()).map_err(failed(incarnation_log::NAME))?;
        let logged_bytes = header.records * RECORD_BYTES as u64;
        // The header is written last. After a crash before this line, the next start treats a new
        // directory as new again.
        let encoded = postcard::to_stdvec(&header).expect("postcard encodes any Header");
        files.replace(HEADER, &encoded).map_err(failed(HEADER))?;
        let (incarnation, reopened) = (header.incarnation, found.is_some());
        Ok(Storage {
            buffers,
            process_incarnations,
            incarnation,
            reopened,
            incarnation_log: log_file,
            logged_bytes,
            has_failed_record: false,
            _files: files,
        })
    }

    /// Returns the bytes of each region.
    pub fn buffers(&self) -> &[Arc<Buffer>] {
        &self.buffers
    }

    /// Returns the incarnations of processes that had connected when the files were opened, oldest
    /// first.
    pub fn process_incarnations(&self) -> &[(ProcessId, u64)] {
        if Mutant::LogNotRead.is_on() { &[] } else { &self.process_incarnations }
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns whether the files existed before this start.
    pub(crate) fn reopened(&self) -> bool {
        self.reopened
    }

    /// Returns whether the log may have a record of an incarnation that was not accepted. The next
    /// record replaces it.
    pub(crate) fn has_failed_record(&self) -> bool {
        self.has_failed_record
    }

    /// Records that an incarnation of a process is about to be accepted.
    ///
    /// # Errors
    /// If the file refuses the record. The process must then not be accepted.
    pub fn record_incarnation(&mut self, p: ProcessId, incarnation: u64) -> io::Result<()> {
        self.has_failed_record = true;
        self.incarnation_log.write_at(self.logged_bytes, &encode_record(p, incarnation))?;
        self.has_failed_record = false;
        self.logged_bytes += RECORD_BYTES as u64;
        Ok(())
    }
}

/// Writes the contents of a file again. If a write failed in an earlier run, the page cache may
/// show bytes that are not on the disk, and Linux does not write them later by itself (fsync(2),
/// Rebello et al., USENIX ATC 2020). Processes would then read these bytes now, but not after a
/// reboot.
fn write_again(file: &impl StoredFile, len: usize) -> io::Result<()> {
    let mut chunk = vec![0; len.min(REWRITE_BYTES)];
    for offset in (0..len).step_by(REWRITE_BYTES) {
        let chunk = &mut chunk[..(len - offset).min(REWRITE_BYTES)];
        file.read_at(offset as u64, chunk)?;
        file.write_at(offset as u64, chunk)?;
    }
    Ok(())
}

/// Returns the new header of files that are opened again, or the error if they must not be used.
fn reopened_header(old: &Header, fresh: &Header) -> Result<Header, fn(PathBuf) -> StorageError> {
    if (old.version, &old.shape) != (fresh.version, &fresh.shape) {
        return Err(StorageError::LayoutMismatch);
    }
    if old.boot != fresh.boot && !old.sync && !Mutant::RebootIgnored.is_on() {
        return Err(StorageError::PossibleDataLoss);
    }
    // The files are safe after a reboot only if both the earlier writes and the later writes are
    // synchronous.
    Ok(Header {
        incarnation: old.incarnation,
        sync: old.sync && fresh.sync,
        records: old.records,
        ..fresh.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_written_without_sync_are_refused_after_reboot() {
        let header = |boot: &str, sync| Header {
            version: VERSION,
            incarnation: 7,
            sync,
            boot: boot.to_owned(),
            records: 0,
            shape: vec![(4, false, 64)],
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
