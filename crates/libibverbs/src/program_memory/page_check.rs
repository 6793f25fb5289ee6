//! Checks at registration that the memory is mapped with the rights that the registration needs.
//!
//! A NIC that pins pages finds a missing mapping when it pins them (`ib_umem_get` in the kernel's
//! `drivers/infiniband/core/umem.c`). A software NIC pins nothing. The check touches each page of a
//! short range. In a long range, the check touches the first and the last page, and the beginning
//! of each part for which `/proc/self/maps` does not show the rights. The cost for a long range
//! depends on the number of mappings.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use mitra_verbs::{Error, Result};

use super::copy;
use crate::common::cancellation;

/// On machines with larger pages, some pages are touched more than once.
const PAGE: u64 = 4096;
/// The maximum length of a short range, in pages.
const TOUCHED: u64 = 64;
/// The size in bytes of the user part of the address space with four-level page tables on x86-64
/// (`Documentation/arch/x86/x86_64/mm.rst`). On aarch64 the size is by default at most this value.
const ADDRESS_SPACE: u64 = 1 << 48;

/// # Errors
/// `TooLarge` if the machine's memory, or with on-demand paging the address space, has fewer than
/// `len` bytes.
pub(crate) fn check_size(len: u64, on_demand: bool) -> Result<()> {
    /// The machine's memory in bytes, or 0 until it is known. Each thread that finds 0 determines
    /// the size itself. A thread to wait for might not exist in the child of a fork.
    static MACHINE: AtomicU64 = AtomicU64::new(0);
    let limit = match MACHINE.load(Ordering::Relaxed) {
        _ if on_demand => ADDRESS_SPACE,
        0 => machine_memory(),
        known => known,
    };
    if !on_demand {
        MACHINE.store(limit, Ordering::Relaxed);
    }
    if len > limit { Err(Error::TooLarge { len, limit }) } else { Ok(()) }
}

/// Returns the size of the machine's memory, or of the address space if the former is unknown.
fn machine_memory() -> u64 {
    // SAFETY: both calls only read constants of the system.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (u64::try_from(pages), u64::try_from(size)) {
        (Ok(pages), Ok(size)) if pages > 0 => pages.saturating_mul(size),
        _ => ADDRESS_SPACE,
    }
}

/// Checks that all pages of the range are mapped, readable, and writable if `write` is set.
///
/// # Errors
/// `Inaccessible` with an address that lacks the right.
///
/// # Safety
/// The requirement of [`super::program_buffer`] for the pages of the range.
pub(crate) unsafe fn check(start: u64, len: u64, write: bool) -> Result<()> {
    // The last byte. For an empty region, `start`, so that the page at `start` is checked.
    let last = start.saturating_add(len.saturating_sub(1));
    let touch = |addr: u64| {
        // SAFETY: `addr` is in the range, and the caller upholds the requirement.
        match unsafe { touch(addr, write) } {
            true => Ok(()),
            false => Err(Error::Inaccessible { addr, right: if write { "writing" } else { "reading" } }),
        }
    };
    let pages = (last / PAGE) - (start / PAGE) + 1;
    // Only `copy_nofault` can touch a page for writing without a change of its content.
    if pages <= TOUCHED && (!write || cfg!(target_arch = "x86_64")) {
        return (start / PAGE..=last / PAGE).try_for_each(|page| touch((page * PAGE).max(start)));
    }
    touch(start)?;
    touch(last)?;
    let mut at = start;
    let mut mappings = Mappings::open();
    while let Some(mapping) = mappings.covering_or_next(at) {
        if mapping.start > at {
            touch(at)?; // A gap, or a mapping that was added after the list was read.
            at = mapping.start;
            if at > last {
                break;
            }
            continue;
        }
        if !(mapping.readable && (mapping.writable || !write)) {
            touch(at)?;
            if !cfg!(target_arch = "x86_64") {
                return Err(Error::Inaccessible { addr: at, right: "writing" });
            }
        }
        at = mapping.end.max(at.saturating_add(1));
        if at > last {
            break;
        }
    }
    // Without /proc, the loop ends at once, so only the first and the last page are checked.
    Ok(())
}

/// Makes the pages of a range present, as an access of the program would.
///
/// # Errors
/// `Inaccessible` if part of the range is not mapped with the right.
pub(crate) fn make_present(start: u64, len: u64, write: bool) -> Result<()> {
    let first = start / PAGE * PAGE;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the advice only makes pages present (`madvise(2)`), and the kernel checks the range.
    let failed =
        unsafe { libc::madvise(first as *mut libc::c_void, (start - first + len) as usize, advice) } != 0;
    // EINVAL: a kernel before Linux 5.14, which makes pages present when they are accessed.
    if failed && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL) {
        return Err(Error::Inaccessible { addr: start, right: if write { "writing" } else { "reading" } });
    }
    Ok(())
}

/// Returns whether the program may read the byte at `addr`, and write it if `write` is set. The
/// byte's value does not change.
///
/// # Safety
/// The requirement of [`super::program_buffer`] for the aligned word that the byte is in.
unsafe fn touch(addr: u64, write: bool) -> bool {
    copy::install_handler();
    if write && cfg!(target_arch = "x86_64") {
        // SAFETY: the handler is installed. The word may be written, and an exchange of 0 for 0
        // leaves every value as it is.
        return unsafe { copy::compare_exchange((addr & !7) as *mut u64, 0, 0) }.is_ok();
    }
    // SAFETY: the handler is installed, and the byte may be read.
    unsafe { copy::read(addr as *mut u8, &mut [0]) }.is_ok()
}

#[derive(Clone, Copy)]
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

/// The mappings of the process, from /proc/self/maps.
struct Mappings {
    file: Option<File>,
    /// All mappings in ascending order, if the kernel cannot look up a single mapping.
    all: Option<Vec<Mapping>>,
}

/// The argument of the request `PROCMAP_QUERY` (`struct procmap_query` in
/// `include/uapi/linux/fs.h`, since Linux 6.11).
#[repr(C)]
#[derive(Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    /// Fields about the mapped file and its name.
    file: [u64; 7],
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 0xc068_6611;
const VMA_READABLE: u64 = 1;
const VMA_WRITABLE: u64 = 2;
const COVERING_OR_NEXT_VMA: u64 = 0x10;

impl Mappings {
    fn open() -> Mappings {
        Mappings { file: cancellation::held_off(|| File::open("/proc/self/maps")).ok(), all: None }
    }

    /// Returns the mapping that covers `addr`, or the next mapping. Returns `None` if neither
    /// exists, or if the mappings are unknown.
    fn covering_or_next(&mut self, addr: u64) -> Option<Mapping> {
        if self.all.is_none() {
            match self.query(addr) {
                Some(found) => return found,
                None => self.all = Some(self.read()),
            }
        }
        let all = self.all.as_ref()?;
        all.get(all.partition_point(|mapping| mapping.end <= addr)).copied()
    }

    /// Returns `None` if the kernel cannot look up a single mapping, and `Some(None)` if no mapping
    /// covers or follows `addr`.
    fn query(&self, addr: u64) -> Option<Option<Mapping>> {
        let mut query = ProcmapQuery {
            size: size_of::<ProcmapQuery>() as u64,
            query_flags: COVERING_OR_NEXT_VMA,
            query_addr: addr,
            ..ProcmapQuery::default()
        };
        let fd = self.file.as_ref()?.as_raw_fd();
        // SAFETY: the request reads and writes one `ProcmapQuery`.
        if unsafe { libc::ioctl(fd, PROCMAP_QUERY as _, &raw mut query) } != 0 {
            let none_left = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
            return none_left.then_some(None);
        }
        let has = |flag| query.vma_flags & flag != 0;
        Some(Some(Mapping {
            start: query.vma_start,
            end: query.vma_end,
            readable: has(VMA_READABLE),
            writable: has(VMA_WRITABLE),
        }))
    }

    fn read(&mut self) -> Vec<Mapping> {
        let mut text = String::new();
        // After an error, the mappings that were read before the error are used.
        let _ = self.file.as_mut().map(|file| file.read_to_string(&mut text));
        text.lines().filter_map(parse).collect()
    }
}

/// Parses a line of /proc/self/maps, such as `7f00-8f00 rw-p ...` (`proc_pid_maps(5)`).
fn parse(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        readable: rest.starts_with('r'),
        writable: rest.as_bytes().get(1) == Some(&b'w'),
    })
}
