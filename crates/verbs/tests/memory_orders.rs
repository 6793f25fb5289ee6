//! The promise of `Buffer` about torn copies, in all orders of accesses and for all values that the
//! memory model of Rust lets a relaxed load return.

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/atomic_words.rs"]
mod atomic_words;
/// The atomics of loom, which explores the orders.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

use loom::sync::Arc;
use loom::thread;

use atomic_words::AtomicWords;

const NEW: u64 = 0x0101_0101_0101_0101;

/// Writes `len` bytes from offset `at` in one thread. Another thread reads everything twice: if the
/// first read finds the last byte of the write, the second read finds all its bytes.
fn write_is_whole_after_its_last_byte(at: usize, len: usize) {
    loom::model(move || {
        let words = Arc::new(AtomicWords::new(24));
        let writer = Arc::clone(&words);
        let write = thread::spawn(move || writer.write(at, &NEW.to_ne_bytes().repeat(3)[..len]));
        let mut bytes = [0; 24];
        words.read(0, &mut bytes);
        if bytes[at + len - 1] == 1 {
            words.read(0, &mut bytes);
            assert!(bytes[at..at + len].iter().all(|&byte| byte == 1), "{bytes:?}");
        }
        write.join().expect("the writer does not panic");
    });
}

#[test]
fn whole_words_are_seen_after_the_last_one() {
    write_is_whole_after_its_last_byte(0, 24);
}

#[test]
fn whole_words_are_seen_after_the_last_part_of_a_word() {
    write_is_whole_after_its_last_byte(8, 11);
}

#[test]
fn data_is_seen_after_the_word_that_announces_it() {
    loom::model(|| {
        let words = Arc::new(AtomicWords::new(16));
        let writer = Arc::clone(&words);
        let write = thread::spawn(move || {
            writer.write(0, &NEW.to_ne_bytes());
            writer.store(8, 1);
        });
        if words.load(8) == 1 {
            let mut data = [0; 8];
            words.read(0, &mut data);
            assert_eq!(u64::from_ne_bytes(data), NEW);
        }
        write.join().expect("the writer does not panic");
    });
}
