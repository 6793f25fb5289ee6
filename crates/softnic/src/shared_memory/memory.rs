//! The memory of a ring: a memfd that both ends map. Neither end keeps its descriptor.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use vm_memory::{Bytes, VolatileSlice};

use super::ring::RingMemory;

/// The mapped memfd of a ring.
pub(crate) struct MappedRing(MmapRaw);

/// The file system of a memfd with ordinary pages (`statfs(2)`).
const TMPFS_MAGIC: i64 = 0x0102_1994;

const INSIDE: &str = "the offsets of a ring lie inside its memory";

/// The memory of a new ring.
pub(crate) struct NewRing {
    pub(crate) ring: MappedRing,
    /// The memfd, to be passed to the other end.
    pub(crate) file: OwnedFd,
    /// The bytes, from the start, that have pages.
    pub(crate) allocated: usize,
}

impl MappedRing {
    /// Makes memory of zeros for a ring, of which the first `allocated` bytes have pages. A kernel
    /// before Linux 5.14 cannot add pages later, so all bytes have pages there.
    ///
    /// # Errors
    /// A system call fails, or no memory is left.
    pub(crate) fn create(size: usize, allocated: usize) -> io::Result<NewRing> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("mitra-ring", flags)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let ring = MappedRing::map(&file, size)?;
        let allocated = match ring.allocate(0, allocated) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
                size
            }
            result => result.map(|()| allocated)?,
        };
        Ok(NewRing { ring, file, allocated })
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
        MappedRing::map(&file, size)
    }

    fn map(file: &OwnedFd, size: usize) -> io::Result<MappedRing> {
        MmapOptions::new().len(size).map_raw(file.as_raw_fd()).map(MappedRing)
    }

    /// Adds the pages of a range. An access to memory without a page may end the process, because
    /// no memory is left.
    ///
    /// # Errors
    /// No memory is left, or the kernel cannot.
    pub(crate) fn allocate(&self, offset: usize, len: usize) -> io::Result<()> {
        self.0.advise_range(Advice::PopulateWrite, offset, len)
    }

    /// Frees the whole pages of a range, except that of the byte at `kept`. Both ends see zeros
    /// there. The pages stay if the kernel cannot free them.
    #[expect(unsafe_code, reason = "the only way to free pages of a mapped file")]
    pub(crate) fn free(&self, offset: usize, kept: usize) {
        let page = rustix::param::page_size();
        let kept = kept / page * page;
        let (start, end) = (offset.next_multiple_of(page), self.0.len());
        for (from, to) in [(start, kept.min(end)), (start.max(kept + page), end)] {
            if from < to {
                // SAFETY: The range consists of whole pages of the mapping, which is shared and
                // writable, and lives as long as `self`. The contents become zeros. All accesses to
                // them are volatile, by `slice`, and no reference to them exists.
                let _ = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::Remove, from, to - from) };
            }
        }
    }

    #[inline]
    #[expect(unsafe_code, reason = "the mapping is only known by its address")]
    fn slice(&self) -> VolatileSlice<'_> {
        // SAFETY: The mapping has this address and length, and lives as long as the borrow of
        // `self`. Its file is sealed against a change of its length, so all of it is accessible.
        // All accesses go through such a slice, and are volatile.
        unsafe { VolatileSlice::new(self.0.as_mut_ptr(), self.0.len()) }
    }
}

impl RingMemory for MappedRing {
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.slice().load(offset, Ordering::Acquire).expect(INSIDE)
    }

    #[inline]
    fn store(&self, offset: usize, value: u64) {
        self.slice().store(value, offset, Ordering::Release).expect(INSIDE);
    }

    #[inline]
    fn read(&self, offset: usize, out: &mut [u8]) {
        self.slice().read_slice(out, offset).expect(INSIDE);
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.slice().write_slice(bytes, offset).expect(INSIDE);
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
