//! A ring in shared memory whose ends are hostile: words of the memory change at any time. No end
//! panics or reads beyond the ring. Until a word has changed, the ring is a queue.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::bytes::Bytes;
use super::ring::{Broken, Receiver, Record, RingMemory, Sender, limit_within, ring_size};

/// The bytes of records.
const RECORDS: usize = 1024;
const MAX_LEN: usize = 300;
const WORD: usize = 8;

/// Memory of this process.
#[derive(Clone)]
pub(crate) struct Local(Rc<RefCell<Vec<u8>>>);

impl Local {
    /// Makes memory of zeros for a ring with room for `records` bytes of records.
    pub(crate) fn new(records: usize) -> Local {
        Local(Rc::new(RefCell::new(vec![0; ring_size(records)])))
    }
}

impl RingMemory for Local {
    fn len(&self) -> usize {
        self.0.borrow().len()
    }

    fn load(&self, offset: usize) -> u64 {
        let mut word = [0; WORD];
        self.read(offset, &mut word);
        u64::from_le_bytes(word)
    }

    fn store(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0.borrow()[offset..offset + out.len()]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn fence(&self) {}
}

impl Local {
    /// Frees the memory from an offset on, except one word, as pages are freed.
    fn free(&self, from: usize, kept: usize) {
        for offset in (from..self.len()).step_by(WORD).filter(|offset| *offset != kept) {
            self.store(offset, 0);
        }
    }
}

/// Each step is a byte and its arguments: push (length: 2 bytes, content: 1), publish, pop, sleep,
/// wake, change a word (its number: 1 byte, its highest and its lowest two bytes), give up the
/// memory behind the limit (1 byte), grow, or wait for room.
pub(crate) fn run(data: &[u8]) {
    let memory = Local::new(RECORDS);
    let (mut sender, mut receiver) = (Sender::new(memory.clone()), Receiver::new(memory.clone(), MAX_LEN));
    let (mut unpublished, mut waiting) = (VecDeque::new(), VecDeque::new());
    let (mut is_damaged, mut sleeps, mut waits) = (false, false, false);
    let mut out = [0; MAX_LEN];
    let mut input = Bytes(data);
    while !input.0.is_empty() {
        match input.byte() % 9 {
            0 => {
                let len = usize::from(input.word()) % (MAX_LEN + 1);
                let content = input.byte();
                let record = Record { len, traffic_class: content, is_sealed: content % 2 == 0 };
                match sender.push(record, &vec![content; len]) {
                    Ok(true) => unpublished.push_back(record),
                    Ok(false) => {}
                    Err(Broken) => return assert!(is_damaged),
                }
            }
            1 => {
                let has_batch = !unpublished.is_empty();
                let wakes = sender.publish();
                assert!(is_damaged || wakes == (has_batch && sleeps));
                sleeps &= !wakes;
                waiting.append(&mut unpublished);
            }
            2 => match receiver.pop(&mut out) {
                Ok(found) => {
                    assert!(found.is_none_or(|record| record.len <= MAX_LEN));
                    if !is_damaged {
                        assert_eq!(found, waiting.pop_front());
                        let is_whole = |r: Record| out[..r.len].iter().all(|byte| *byte == r.traffic_class);
                        assert!(found.is_none_or(is_whole));
                    }
                }
                Err(Broken) => return assert!(is_damaged),
            },
            3 => {
                sleeps = receiver.begin_sleep();
                assert!(is_damaged || sleeps == waiting.is_empty());
                if !sleeps {
                    receiver.end_sleep();
                }
            }
            4 => {
                receiver.end_sleep();
                sleeps = false;
            }
            6 => {
                let len = 512 + 64 * (usize::from(input.byte()) % 8);
                match sender.shrink(limit_within(len)) {
                    Ok(Some(kept)) => {
                        assert!(is_damaged || unpublished.is_empty() && waiting.is_empty());
                        memory.free(len, kept);
                    }
                    Ok(None) => assert!(is_damaged || !unpublished.is_empty() || !waiting.is_empty()),
                    Err(Broken) => return assert!(is_damaged),
                }
            }
            7 => sender.grow((sender.limit() + 64).min(RECORDS)),
            8 => {
                waits |= input.byte() % 2 == 0;
                if waits {
                    sender.begin_wait();
                }
                assert!(is_damaged || receiver.take_wait() == waits);
                waits = false;
            }
            _ => {
                let offset = usize::from(input.byte()) * WORD % memory.len();
                let value = u64::from(input.word()) << 48 | u64::from(input.word());
                is_damaged |= value != memory.load(offset);
                memory.store(offset, value);
            }
        }
    }
}
