//! What each way of access does with memory that is there, and with memory that is not.

use core::ptr;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};

use super::*;

mod nic;
#[cfg(target_arch = "x86_64")] // elsewhere no signal is taken
mod signals;

const PAGE: usize = 4096;

/// Pages that are the test's own.
struct Pages {
    start: *mut u8,
    len: usize,
}

impl Pages {
    fn new(count: usize) -> Pages {
        Pages::map(count, MAP_PRIVATE | MAP_ANONYMOUS, -1)
    }

    fn map(count: usize, flags: i32, fd: i32) -> Pages {
        let len = count * PAGE;
        // SAFETY: a new mapping touches no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, PROT_READ | PROT_WRITE, flags, fd, 0) };
        assert_ne!(start, MAP_FAILED);
        Pages { start: start.cast(), len }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    fn protect(&self, page: usize, protection: i32) {
        // SAFETY: the page is ours, and nothing refers to it.
        assert_eq!(unsafe { libc::mprotect(self.at(page * PAGE).cast(), PAGE, protection) }, 0);
    }

    fn unmap(&self, page: usize) {
        // Tests run side by side in one process: a page that may not be touched keeps the place from the others'
        // mappings, and to the copies it is the same.
        let place = self.at(page * PAGE).cast();
        let flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: as in `protect`.
        assert_eq!(unsafe { libc::mmap(place, PAGE, PROT_NONE, flags, -1, 0) }, place);
    }

    fn lend(&self, offset: usize) -> Arc<Buffer> {
        // SAFETY: the pages are this test's, and it holds no reference into them.
        unsafe { lend(self.at(offset), self.len - offset, self.at(offset).addr() as u64) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they are ours.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// The same by the kernel, as on processors that `copy_nofault` does not support.
struct ByTheKernel(*mut u8);

// SAFETY: as for `ProgramMemory`.
unsafe impl Send for ByTheKernel {}
// SAFETY: as for `ProgramMemory`.
unsafe impl Sync for ByTheKernel {}

impl ForeignMemory for ByTheKernel {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        // SAFETY: the test's own pages.
        unsafe { crate::process_vm::read(self.0.wrapping_add(offset), out) }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        // SAFETY: the test's own pages.
        unsafe { crate::process_vm::write(self.0.wrapping_add(offset), data) }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        // SAFETY: the test's own pages.
        unsafe { crate::process_vm::compare_exchange(self.0.wrapping_add(offset).cast(), current, new) }
    }
}

/// The pages, lent each way.
fn both_ways(pages: &Pages) -> [Arc<Buffer>; 2] {
    let by_the_kernel = Box::new(ByTheKernel(pages.start));
    [pages.lend(0), Arc::new(Buffer::from_foreign(by_the_kernel, pages.start.addr() as u64, pages.len))]
}

#[test]
fn every_range_is_copied_and_keeps_its_neighbours() {
    const ROOM: usize = 256;
    let pages = Pages::new(1);
    for memory in both_ways(&pages) {
        for offset in 0..24 {
            for len in 0..ROOM - 24 {
                memory.write_at(0, &[0xee; ROOM]);
                let data: Vec<u8> = (0..len).map(|i| (i % 200) as u8 + 1).collect();
                memory.write_at(offset, &data);
                // SAFETY: the page is there, and nobody else writes it now.
                let all = unsafe { core::slice::from_raw_parts(pages.start, ROOM) };
                assert_eq!(all[offset..offset + len], data, "offset {offset} length {len}");
                assert!(all[..offset].iter().chain(&all[offset + len..]).all(|&byte| byte == 0xee));
                let mut out = [0x11; ROOM];
                memory.read_at(offset, &mut out[1..=len]);
                assert_eq!(out[1..=len], data, "offset {offset} length {len}");
                assert!(out[0] == 0x11 && out[len + 1..].iter().all(|&byte| byte == 0x11));
            }
        }
    }
}

#[test]
fn words_are_exchanged() {
    let pages = Pages::new(1);
    for memory in both_ways(&pages) {
        memory.store(8, 5);
        assert_eq!(memory.try_compare_exchange(8, 4, 6), Ok(Err(5)));
        assert_eq!(memory.load(8), 5);
        assert_eq!(memory.try_compare_exchange(8, 5, 6), Ok(Ok(5)));
        assert_eq!((memory.load(0), memory.load(8), memory.load(16)), (0, 6, 0));
    }
}

#[test]
#[cfg(target_arch = "x86_64")] // `process_vm` promises less
fn exchanges_lose_nothing_to_each_other_nor_to_the_processor() {
    const EACH: u64 = 20_000;
    let pages = Pages::new(1);
    let memory = pages.lend(0);
    // SAFETY: an aligned word of the page, which only atomics touch.
    let word = unsafe { core::sync::atomic::AtomicU64::from_ptr(pages.start.cast()) };
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..EACH {
                word.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..EACH {
            let mut old = memory.load(0);
            while let Err(now) = memory.compare_exchange(0, old, old + 1) {
                old = now;
            }
        }
    });
    assert_eq!(memory.load(0), 2 * EACH);
}

#[test]
fn what_is_unmapped_is_told() {
    let pages = Pages::new(3);
    for memory in both_ways(&pages) {
        memory.write_at(PAGE - 100, &[7; 100]);
        pages.unmap(1);
        let mut out = vec![0; 2 * PAGE];
        for (offset, len) in
            [(PAGE - 100, 200), (PAGE - 100, 101), (PAGE, 1), (PAGE + 8, 8), (2 * PAGE - 1, 2), (0, 2 * PAGE)]
        {
            assert_eq!(memory.try_read_at(offset, &mut out[..len]), Err(Unmapped), "{len} at {offset}");
            assert_eq!(memory.try_write_at(offset, &out[..len]), Err(Unmapped), "{len} at {offset}");
        }
        assert_eq!(memory.try_load(PAGE), Err(Unmapped));
        assert_eq!(memory.try_compare_exchange(PAGE, 0, 1), Err(Unmapped));
        assert_eq!(memory.try_write_at(PAGE - 100, &[8; 100]), Ok(()));
        assert_eq!(memory.try_read_at(2 * PAGE, &mut out[..PAGE]), Ok(()));
        pages.protect(1, PROT_READ | PROT_WRITE);
        assert_eq!(memory.try_write_at(PAGE - 100, &[9; 200]), Ok(()), "what is mapped again is as before");
    }
}

#[test]
fn no_address_ends_the_process() {
    for start in [0_usize, usize::MAX - 4095, 1 << 47, 1 << 63] {
        let start = ptr::without_provenance_mut(start);
        // SAFETY: nothing of ours is there.
        let memory = unsafe { lend(start, 1 << 20, 0) };
        let by_the_kernel = Buffer::from_foreign(Box::new(ByTheKernel(start)), 0, 1 << 20);
        for memory in [&*memory, &by_the_kernel] {
            assert_eq!(memory.try_write_at(3, &[1; 300]), Err(Unmapped), "{start:?}");
            assert_eq!(memory.try_read_at(0, &mut [0; 8]), Err(Unmapped), "{start:?}");
            assert_eq!(memory.try_compare_exchange(0, 0, 1), Err(Unmapped), "{start:?}");
        }
    }
}

#[test]
fn what_may_only_be_read_is_not_written() {
    let pages = Pages::new(1);
    for memory in both_ways(&pages) {
        pages.protect(0, PROT_READ | PROT_WRITE);
        memory.store(0, 7);
        pages.protect(0, PROT_READ);
        assert_eq!(memory.try_load(0), Ok(7));
        assert_eq!(memory.try_write_at(0, &[1]), Err(Unmapped));
        assert_eq!(memory.try_compare_exchange(0, 7, 8), Err(Unmapped));
        assert_eq!(memory.try_load(0), Ok(7));
        pages.protect(0, PROT_NONE);
        assert_eq!(memory.try_load(0), Err(Unmapped));
    }
}

#[test]
fn a_file_that_was_cut_is_told() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    let pages = Pages::map(2, MAP_SHARED, file.as_raw_fd());
    let ways = both_ways(&pages);
    ways[0].write_at(PAGE - 8, &[3; 16]);
    file.set_len(PAGE as u64).unwrap();
    for memory in &ways {
        assert_eq!(memory.try_read_at(PAGE, &mut [0; 8]), Err(Unmapped));
        assert_eq!(memory.try_write_at(PAGE - 8, &[3; 16]), Err(Unmapped));
        assert_eq!(memory.try_compare_exchange(PAGE, 0, 1), Err(Unmapped));
        assert_eq!(memory.try_write_at(PAGE - 8, &[3; 8]), Ok(()));
    }
}

#[test]
fn two_threads_fault_at_once() {
    let pages = Pages::new(2);
    let memory = pages.lend(0);
    pages.unmap(1);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for mine in 0..2_usize {
            let (memory, start) = (&memory, &start);
            scope.spawn(move || {
                let place = mine * 64;
                start.wait();
                for i in 0..2000_u64 {
                    memory.try_write_at(place, &i.to_ne_bytes()).unwrap();
                    assert_eq!(memory.try_write_at(PAGE - 8, &[0; 16]), Err(Unmapped));
                    assert_eq!(memory.try_read_at(PAGE + place, &mut [0; 100]), Err(Unmapped));
                    assert_eq!(memory.try_load(place), Ok(i));
                }
            });
        }
    });
}

/// The reader spins on the last byte, as `ib_write_lat` does, and then looks at all others.
#[test]
fn who_sees_the_last_byte_sees_all() {
    for len in [2, 9, 15, 16, 31, 64, 80, 129, 1024, 2055] {
        for offset in [0, 1, 6, 13] {
            let pages = Pages::new(2);
            let memory = pages.lend(0);
            // SAFETY: bytes of the pages, which are read as atomics and written by the copies alone.
            let byte = |at: usize| unsafe { AtomicU8::from_ptr(pages.at(offset + at)) };
            let bytes: Vec<&AtomicU8> = (0..len).map(byte).collect();
            let seen = AtomicU8::new(0);
            let give_up = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=100_u8 {
                        let mut looks = 0;
                        while bytes[len - 1].load(Ordering::Acquire) != round {
                            if give_up.load(Ordering::Relaxed) {
                                return;
                            }
                            looks += 1;
                            if looks % 1000 == 0 {
                                thread::yield_now();
                            }
                        }
                        let late = bytes.iter().filter(|byte| byte.load(Ordering::Relaxed) != round).count();
                        assert_eq!(late, 0, "of {len} bytes at {offset}");
                        seen.store(round, Ordering::Release);
                    }
                });
                for round in 1..=100_u8 {
                    memory.write_at(offset, &vec![round; len]);
                    let started = std::time::Instant::now();
                    while seen.load(Ordering::Acquire) != round {
                        if started.elapsed().as_secs() > 30 {
                            give_up.store(true, Ordering::Relaxed);
                            panic!("the reader does not see round {round}");
                        }
                        thread::yield_now();
                    }
                }
            });
        }
    }
}
