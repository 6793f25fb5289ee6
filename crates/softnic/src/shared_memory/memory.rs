//! The memory of a ring: a memfd that both ends map.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use super::ring::RingMemory;

/// The mapped memfd of a ring.
pub(crate) struct MappedRing(MmapRegion);

/// The file system of a memfd with ordinary pages (`statfs(2)`).
const TMPFS_MAGIC: i64 = 0x0102_1994;

const INSIDE: &str = "the offsets of a ring lie inside its memory";

impl MappedRing {
    /// Makes memory of zeros for a ring.
    ///
    /// # Errors
    /// A system call fails, or no memory is left.
    pub(crate) fn create(size: usize) -> io::Result<MappedRing> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("mitra-ring", flags)?;
        // Without memory behind it, a page would end the process that touches it first.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        MappedRing::map(file, size)
    }

    /// Maps the memory that the other end has made. Its size must be `size`, and sealed: an access
    /// behind the end of a file ends the process.
    ///
    /// # Errors
    /// The file is no sealed memfd of this size, or a system call fails.
    pub(crate) fn open(file: OwnedFd, size: usize) -> io::Result<MappedRing> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW)
            || rustix::fs::fstat(&file)?.st_size != size as i64
            // The pages of another file system, such as hugetlbfs, may end elsewhere.
            || rustix::fs::fstatfs(&file)?.f_type != TMPFS_MAGIC
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
        MappedRing::map(file, size)
    }

    fn map(file: OwnedFd, size: usize) -> io::Result<MappedRing> {
        let file = FileOffset::from_arc(Arc::new(File::from(file)), 0);
        MmapRegion::from_file(file, size).map(MappedRing).map_err(io::Error::other)
    }

    /// Returns the descriptor of the memfd.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.file_offset().map(|file| file.file().as_fd())
    }
}

impl RingMemory for MappedRing {
    fn len(&self) -> usize {
        self.0.size()
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.0.as_volatile_slice().load(offset, Ordering::Acquire).expect(INSIDE)
    }

    #[inline]
    fn store(&self, offset: usize, value: u64) {
        self.0.as_volatile_slice().store(value, offset, Ordering::Release).expect(INSIDE);
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) {
        self.0.as_volatile_slice().read_slice(out, offset).expect(INSIDE);
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.as_volatile_slice().write_slice(bytes, offset).expect(INSIDE);
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
