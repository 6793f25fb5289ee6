//! Tests of both kinds of copies, with memory that is mapped and with memory that is not.

use core::ptr;
use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};

use super::*;

mod registered_memory;
#[cfg(target_arch = "x86_64")] // `process_vm` causes no signals
mod signal_handlers;

const PAGE: usize = 4096;

/// Pages that the test has mapped.
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
        // SAFETY: a mapping without MAP_FIXED replaces no other mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, PROT_READ | PROT_WRITE, flags, fd, 0) };
        assert_ne!(start, MAP_FAILED);
        Pages { start: start.cast(), len }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    fn protect(&self, page: usize, protection: i32) {
        // SAFETY: the page belongs to the test, and no Rust reference points into it.
        assert_eq!(unsafe { libc::mprotect(self.at(page * PAGE).cast(), PAGE, protection) }, 0);
    }

    fn unmap(&self, index: usize) {
        // Tests run in parallel in one process, so another test could map memory in a gap. The
        // copies fail on a page without access as on an unmapped page.
        let page = self.at(index * PAGE).cast();
        let flags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: MAP_FIXED replaces only the page, which belongs to the test and into which no
        // Rust reference points.
        assert_eq!(unsafe { libc::mmap(page, PAGE, PROT_NONE, flags, -1, 0) }, page);
    }

    fn buffer(&self, offset: usize) -> Arc<Buffer> {
        // SAFETY: the pages belong to the test, which holds no reference into them.
        unsafe { program_buffer(self.at(offset), self.len - offset, self.at(offset).addr() as u64) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages belong to the test, and no Rust reference points into them.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Memory accessed by `process_vm`, as on architectures that `copy_nofault` does not support.
struct ProcessVmMemory(*mut u8);

// SAFETY: as for `ProgramMemory`.
unsafe impl Send for ProcessVmMemory {}
// SAFETY: as for `ProgramMemory`.
unsafe impl Sync for ProcessVmMemory {}

impl ForeignMemory for ProcessVmMemory {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Unmapped> {
        // SAFETY: the pages belong to the test.
        unsafe { crate::process_vm::read(self.0.wrapping_add(offset), out) }
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Unmapped> {
        // SAFETY: the pages belong to the test.
        unsafe { crate::process_vm::write(self.0.wrapping_add(offset), data) }
    }

    fn compare_exchange(&self, offset: usize, current: u64, new: u64) -> Result<Result<u64, u64>, Unmapped> {
        // SAFETY: the pages belong to the test.
        unsafe { crate::process_vm::compare_exchange(self.0.wrapping_add(offset).cast(), current, new) }
    }
}

/// Returns the pages as two buffers, one for each kind of copies.
fn buffers_of_both_kinds(pages: &Pages) -> [Arc<Buffer>; 2] {
    let process_vm = Box::new(ProcessVmMemory(pages.start));
    [pages.buffer(0), Arc::new(Buffer::from_foreign(process_vm, pages.start.addr() as u64, pages.len))]
}

#[test]
fn copies_change_no_byte_outside_their_range() {
    const ROOM: usize = 256;
    let pages = Pages::new(1);
    for memory in buffers_of_both_kinds(&pages) {
        for offset in 0..24 {
            for len in 0..ROOM - 24 {
                memory.write_at(0, &[0xee; ROOM]);
                let data: Vec<u8> = (0..len).map(|i| (i % 200) as u8 + 1).collect();
                memory.write_at(offset, &data);
                // SAFETY: the page is mapped, and no copy runs while the slice is used.
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
fn compare_exchange_replaces_only_an_equal_word() {
    let pages = Pages::new(1);
    for memory in buffers_of_both_kinds(&pages) {
        memory.store(8, 5);
        assert_eq!(memory.try_compare_exchange(8, 4, 6), Ok(Err(5)));
        assert_eq!(memory.load(8), 5);
        assert_eq!(memory.try_compare_exchange(8, 5, 6), Ok(Ok(5)));
        assert_eq!((memory.load(0), memory.load(8), memory.load(16)), (0, 6, 0));
    }
}

#[test]
#[cfg(target_arch = "x86_64")] // exchanges of `process_vm` are not atomic with processor instructions
fn compare_exchange_is_atomic_with_processor_instructions() {
    const EACH: u64 = 20_000;
    let pages = Pages::new(1);
    let memory = pages.buffer(0);
    // SAFETY: the word is aligned and mapped, and every access to it is atomic.
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
fn access_to_unmapped_page_fails() {
    let pages = Pages::new(3);
    for memory in buffers_of_both_kinds(&pages) {
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
        assert_eq!(
            memory.try_write_at(PAGE - 100, &[9; 200]),
            Ok(()),
            "a page that is mapped again is accessible"
        );
    }
}

#[test]
fn invalid_addresses_fail_without_a_crash() {
    for start in [0_usize, usize::MAX - 4095, 1 << 47, 1 << 63] {
        let start = ptr::without_provenance_mut(start);
        // SAFETY: no mapping of this process lies there.
        let memory = unsafe { program_buffer(start, 1 << 20, 0) };
        let process_vm = Buffer::from_foreign(Box::new(ProcessVmMemory(start)), 0, 1 << 20);
        for memory in [&*memory, &process_vm] {
            assert_eq!(memory.try_write_at(3, &[1; 300]), Err(Unmapped), "{start:?}");
            assert_eq!(memory.try_read_at(0, &mut [0; 8]), Err(Unmapped), "{start:?}");
            assert_eq!(memory.try_compare_exchange(0, 0, 1), Err(Unmapped), "{start:?}");
        }
    }
}

#[test]
fn write_to_read_only_page_fails() {
    let pages = Pages::new(1);
    for memory in buffers_of_both_kinds(&pages) {
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
fn access_beyond_truncated_file_fails() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    let pages = Pages::map(2, MAP_SHARED, file.as_raw_fd());
    let buffers = buffers_of_both_kinds(&pages);
    buffers[0].write_at(PAGE - 8, &[3; 16]);
    file.set_len(PAGE as u64).unwrap();
    for memory in &buffers {
        assert_eq!(memory.try_read_at(PAGE, &mut [0; 8]), Err(Unmapped));
        assert_eq!(memory.try_write_at(PAGE - 8, &[3; 16]), Err(Unmapped));
        assert_eq!(memory.try_compare_exchange(PAGE, 0, 1), Err(Unmapped));
        assert_eq!(memory.try_write_at(PAGE - 8, &[3; 8]), Ok(()));
    }
}

#[test]
fn concurrent_faults_are_handled_in_both_threads() {
    let pages = Pages::new(2);
    let memory = pages.buffer(0);
    pages.unmap(1);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for index in 0..2_usize {
            let (memory, start) = (&memory, &start);
            scope.spawn(move || {
                let offset = index * 64;
                start.wait();
                for i in 0..2000_u64 {
                    memory.try_write_at(offset, &i.to_ne_bytes()).unwrap();
                    assert_eq!(memory.try_write_at(PAGE - 8, &[0; 16]), Err(Unmapped));
                    assert_eq!(memory.try_read_at(PAGE + offset, &mut [0; 100]), Err(Unmapped));
                    assert_eq!(memory.try_load(offset), Ok(i));
                }
            });
        }
    });
}

/// The reader polls the last byte, as `ib_write_lat` does, and then checks all bytes.
#[test]
fn last_byte_of_a_write_becomes_visible_last() {
    for len in [2, 9, 15, 16, 31, 64, 80, 129, 1024, 2055] {
        for offset in [0, 1, 6, 13] {
            let pages = Pages::new(2);
            let memory = pages.buffer(0);
            // SAFETY: the bytes are mapped; the reader accesses them as atomics, and only the
            // copies write them.
            let byte = |at: usize| unsafe { AtomicU8::from_ptr(pages.at(offset + at)) };
            let bytes: Vec<&AtomicU8> = (0..len).map(byte).collect();
            let last_seen = AtomicU8::new(0);
            let timed_out = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=100_u8 {
                        let mut polls = 0;
                        while bytes[len - 1].load(Ordering::Acquire) != round {
                            if timed_out.load(Ordering::Relaxed) {
                                return;
                            }
                            polls += 1;
                            if polls % 1000 == 0 {
                                thread::yield_now();
                            }
                        }
                        let missing =
                            bytes.iter().filter(|byte| byte.load(Ordering::Relaxed) != round).count();
                        assert_eq!(missing, 0, "of {len} bytes at {offset}");
                        last_seen.store(round, Ordering::Release);
                    }
                });
                for round in 1..=100_u8 {
                    memory.write_at(offset, &vec![round; len]);
                    let started = std::time::Instant::now();
                    while last_seen.load(Ordering::Acquire) != round {
                        if started.elapsed().as_secs() > 30 {
                            timed_out.store(true, Ordering::Relaxed);
                            panic!("the reader does not see round {round}");
                        }
                        thread::yield_now();
                    }
                }
            });
        }
    }
}
