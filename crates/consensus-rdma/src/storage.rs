//! Memory that lies in files, and so outlives the process that lends it.
//!
//! A NIC's write is a write to a file, and is acknowledged after it. What is in a file survives the process; it survives the machine only
//! once it is on the disk: with `sync` each write is (`O_DSYNC`, open(2)) before it is acknowledged, as persistent memory behind a NIC
//! with the FLUSH extension has it (IBTA annex A19). Without, a restart of the machine may have lost acknowledged writes, which nobody can
//! tell from the files: they are then refused, and never guessed at.
//!
//! ```text
//! DIR/memory      what it is: its number, its shape, and the boot of the machine in which it was last open
//! DIR/lives       the lives of processes that were let in: nine bytes each
//! DIR/region-0 …  what it holds
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use mitra_consensus::ProcessId;
use mitra_verbs::{Buffer, ForeignMemory, Unmapped};
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use serde::{Deserialize, Serialize};

use crate::layout::Layout;

/// Where a memory keeps what it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StorageConfig {
    /// Its directory, of which no other memory is to know. Made if there is none.
    pub directory: PathBuf,
    /// Whether what is acknowledged is on the disk.
    pub sync: bool,
}

/// Why files cannot be a memory.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The system refused something.
    #[error("{path}: {error}", path = path.display())]
    Io {
        /// On which file.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// Another memory lies there.
    #[error("{}: in use by another memory that runs", .0.display())]
    InUse(PathBuf),
    /// It was made for something else.
    #[error("{}: made for other regions, or by another version of mitra; give it a directory of its own", .0.display())]
    LayoutMismatch(PathBuf),
    /// It may lack writes that were acknowledged.
    #[error(
        "{}: the machine was started anew since it was written, without --sync: it may have lost what was acknowledged, so it \
         counts as crashed; the other memories go on without it for as long as they are a majority, and an empty one in its \
         place would be taken for one that holds nothing",
        .0.display()
    )]
    PossibleDataLoss(PathBuf),
}

/// The version of the files.
const VERSION: u32 = 1;
/// Bytes of a life in its file: the process and the number.
const LIFE: usize = 9;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Title {
    version: u32,
    /// The memory's life, which goes on.
    life: u64,
    sync: bool,
    /// Of the machine, as the kernel names it.
    boot: String,
    /// Registers of each region, whether they are words, and bytes of each.
    shape: Vec<(u16, bool, usize)>,
}

/// A memory's files, open.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) buffers: Vec<Arc<Buffer>>,
    /// Lives of processes that have been here, in order.
    pub(crate) lives: Vec<(ProcessId, u64)>,
    pub(crate) life: u64,
    /// Whether they were there.
    pub(crate) reopened: bool,
    /// The lives, and the bytes of those that are whole.
    log: File,
    noted: u64,
}

impl Files {
    /// Opens them, or makes them, for a memory that is to have this life if it is new.
    pub(crate) fn open(disk: &StorageConfig, layout: &Layout, life: u64) -> Result<Files, StorageError> {
        let dir = &disk.directory;
        let at = |name: &str| dir.join(name);
        fs::create_dir_all(dir).map_err(named(dir))?;
        let log = options(disk).open(at("lives")).map_err(named(&at("lives")))?;
        match log.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StorageError::InUse(dir.clone())),
            Err(TryLockError::Error(error)) => return Err(named(&at("lives"))(error)),
        }
        let title = at("memory");
        let boot = boot().map_err(named(Path::new(BOOT)))?;
        let found = match fs::read(&title) {
            Ok(bytes) => {
                Some(postcard::from_bytes(&bytes).map_err(|_| StorageError::LayoutMismatch(dir.clone()))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(named(&title)(error)),
        };
        let fresh = Title { version: VERSION, life, sync: disk.sync, boot, shape: layout.shape() };
        let now = match &found {
            Some(old) => after(old, &fresh).map_err(|why| why(dir.clone()))?,
            None => fresh,
        };
        let region = |region: u8| -> Result<Arc<Buffer>, StorageError> {
            let (path, len) = (at(&format!("region-{region}")), layout.len(region));
            let file = options(disk).open(&path).map_err(named(&path))?;
            room(&file, len).map_err(named(&path))?;
            Ok(Arc::new(Buffer::from_foreign(Box::new(InFile { file, works: RwLock::new(true) }), 0, len)))
        };
        let buffers = (0..layout.regions() as u8).map(region).collect::<Result<_, _>>()?;
        let bytes = fs::read(at("lives")).map_err(named(&at("lives")))?;
        let life_of = |bytes: &[u8; LIFE]| {
            let (p, number) = bytes.split_first().expect("nine bytes");
            (ProcessId(*p), u64::from_le_bytes(number.try_into().expect("eight of them")))
        };
        // At the end may be a part of one that was not let in yet: the next is written over it.
        let whole = bytes.as_chunks::<LIFE>().0;
        let (noted, lives) = ((whole.len() * LIFE) as u64, whole.iter().map(life_of).collect());
        // The last: what has no title was never a memory.
        write_title(dir, &now).map_err(named(&title))?;
        Ok(Files { buffers, lives, life: now.life, reopened: found.is_some(), log, noted })
    }

    /// Notes that a life of a process is let in.
    pub(crate) fn let_in(&mut self, p: ProcessId, life: u64) -> io::Result<()> {
        let mut record = vec![p.0];
        record.extend_from_slice(&life.to_le_bytes());
        self.log.write_all_at(&record, self.noted)?;
        self.noted += LIFE as u64;
        Ok(())
    }
}

/// What the title is once a memory is opened again, if it may be.
fn after(old: &Title, fresh: &Title) -> Result<Title, fn(PathBuf) -> StorageError> {
    if (old.version, &old.shape) != (fresh.version, &fresh.shape) {
        return Err(StorageError::LayoutMismatch);
    }
    // Both: what is written without it from now on may be lost, and what was written before may have been.
    if old.boot != fresh.boot && !old.sync {
        return Err(StorageError::PossibleDataLoss);
    }
    Ok(Title { life: old.life, sync: old.sync && fresh.sync, ..fresh.clone() })
}

fn options(disk: &StorageConfig) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    if disk.sync {
        options.custom_flags(OFlag::O_DSYNC.bits());
    }
    options
}

/// Makes a file as long as a region, all of it on the disk: a write that finds no room would be one that the NIC has no answer to.
fn room(file: &File, len: usize) -> io::Result<()> {
    if file.metadata()?.len() == len as u64 || len == 0 {
        return Ok(());
    }
    fallocate(file, FallocateFlags::empty(), 0, len as i64)?;
    file.sync_all()
}

/// Replaces the title, whole.
fn write_title(dir: &Path, title: &Title) -> io::Result<()> {
    let fresh = dir.join("memory.new");
    let mut file = File::create(&fresh)?;
    file.write_all(&postcard::to_stdvec(title).map_err(io::Error::other)?)?;
    file.sync_all()?;
    fs::rename(&fresh, dir.join("memory"))?;
    File::open(dir)?.sync_all()
}

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string(BOOT)?.trim().to_owned())
}

fn named(path: &Path) -> impl FnOnce(io::Error) -> StorageError + use<> {
    let path = path.to_owned();
    |error| StorageError::Io { path, error }
}

/// A region. A disk that fails takes the memory away, for good: what its cache shows then may never be on it.
struct InFile {
    file: File,
    /// Whether the disk works. Who writes has it alone: what is read must be there to stay, and a NIC beside this one may read.
    works: RwLock<bool>,
}

impl InFile {
    fn alone<T>(&self, act: impl FnOnce(&File) -> io::Result<T>) -> Result<T, Unmapped> {
        let mut works = self.works.write().unwrap_or_else(PoisonError::into_inner);
        let done = if *works { act(&self.file).map_err(|_| Unmapped) } else { Err(Unmapped) };
        *works = done.is_ok();
        done
    }
}

impl ForeignMemory for InFile {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        match *self.works.read().unwrap_or_else(PoisonError::into_inner) {
            true => self.file.read_exact_at(out, offset as u64).map_err(|_| Unmapped),
            false => Err(Unmapped),
        }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        self.alone(|file| file.write_all_at(data, offset as u64))
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        self.alone(|file| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, offset as u64)?;
            let old = u64::from_ne_bytes(word);
            if old != current {
                return Ok(Err(old));
            }
            file.write_all_at(&new.to_ne_bytes(), offset as u64)?;
            Ok(Ok(old))
        })
    }
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

    fn disk(directory: &tempfile::TempDir, sync: bool) -> StorageConfig {
        StorageConfig { directory: directory.path().join("m"), sync }
    }

    #[test]
    fn what_it_holds_is_there_when_it_is_opened_again() {
        for sync in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut files = Files::open(&disk(&dir, sync), &layout(4), 7).expect("new");
            assert!(!files.reopened && files.life == 7 && files.lives.is_empty());
            files.buffers[0].write_at(100, b"held");
            assert_eq!(files.buffers[0].try_compare_exchange(0, 1, 5), Ok(Err(0)));
            assert_eq!(files.buffers[0].try_compare_exchange(0, 0, 5), Ok(Ok(0)));
            files.let_in(ProcessId(1), 77).expect("noted");
            files.log.write_all_at(&[2, 3], files.noted).expect("a part of one");
            drop(files);
            let mut files = Files::open(&disk(&dir, sync), &layout(4), 8).expect("again");
            assert!(files.reopened && files.life == 7);
            assert_eq!(files.lives, [(ProcessId(1), 77)]);
            let mut held = [0; 4];
            files.buffers[0].read_at(100, &mut held);
            assert_eq!((&held, files.buffers[0].load(0)), (b"held", 5));
            files.let_in(ProcessId(0), 78).expect("noted");
            drop(files);
            let files = Files::open(&disk(&dir, sync), &layout(4), 9).expect("again");
            assert_eq!(files.lives, [(ProcessId(1), 77), (ProcessId(0), 78)]);
        }
    }

    #[test]
    fn it_is_nobody_elses_and_of_one_shape() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = Files::open(&disk(&dir, false), &layout(4), 7).expect("new");
        let again =
            |registers| Files::open(&disk(&dir, false), &layout(registers), 8).map(|files| files.life);
        assert!(matches!(again(4), Err(StorageError::InUse(_))));
        drop(files);
        assert!(matches!(again(5), Err(StorageError::LayoutMismatch(_))));
        fs::write(dir.path().join("m/memory"), b"garbage").expect("written");
        assert!(matches!(again(4), Err(StorageError::LayoutMismatch(_))));
    }

    /// Of a machine that was started anew nobody knows what it has not written to its disk.
    #[test]
    fn after_a_boot_only_what_was_on_the_disk_counts() {
        let title = |boot: &str, sync| Title {
            version: VERSION,
            life: 7,
            sync,
            boot: boot.to_owned(),
            shape: layout(4).shape(),
        };
        let opens = |old: &Title, fresh: &Title| after(old, fresh).map(|title| title.sync).ok();
        assert_eq!(opens(&title("a", true), &title("b", true)), Some(true));
        assert_eq!(opens(&title("a", true), &title("b", false)), Some(false));
        assert_eq!(opens(&title("a", false), &title("a", true)), Some(false), "what was written before");
        assert_eq!(opens(&title("a", false), &title("b", true)), None);
    }
}
