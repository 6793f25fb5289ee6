//! Tests of the ring with one thread. `tests/ring_orders.rs` tests the orders of two.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mitra_prng::Prng;

use super::memory::MappedRing;
use super::ring::{Receiver, Record, RingMemory, Sender, ring_size};

const MAX_LEN: usize = 300;

/// Memory of this process.
#[derive(Clone)]
struct Local(Rc<(RefCell<Vec<u8>>, Cell<bool>)>);

impl Local {
    fn new(records: usize) -> Local {
        Local(Rc::new((RefCell::new(vec![0; ring_size(records)]), Cell::new(true))))
    }
}

impl RingMemory for Local {
    fn len(&self) -> usize {
        self.0.0.borrow().len()
    }

    fn load(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.0.0.borrow()[offset..offset + 8].try_into().unwrap())
    }

    fn store(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.0.0.borrow()[offset..offset + out.len()]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn fence(&self) {}
}

fn record(len: usize) -> Record {
    Record { len, traffic_class: len as u8, is_sealed: len.is_multiple_of(3) }
}

/// Sends and receives in random batches. All that was sent arrives, in order.
#[test]
fn ring_is_a_queue() {
    for seed in 0..200 {
        let mut rng = Prng::new(seed);
        let memory = Local::new(1024);
        let (mut sender, mut receiver) = (Sender::new(memory.clone()), Receiver::new(memory, MAX_LEN));
        let mut sent = std::collections::VecDeque::new();
        let (mut next, mut full, mut out) = (0u8, 0, [0; MAX_LEN]);
        for _ in 0..500 {
            let visible = sent.len();
            for _ in 0..rng.below(4) {
                let len = rng.below(MAX_LEN as u64 + 1) as usize;
                if sender.push(record(len), &vec![next; len]) == Ok(true) {
                    sent.push_back((len, next));
                    next = next.wrapping_add(1);
                } else {
                    full += 1;
                }
            }
            if visible == 0 {
                assert_eq!(receiver.pop(&mut out), Ok(None), "the batch is not visible yet");
            }
            assert!(!sender.publish(), "the receiver does not sleep");
            for _ in 0..rng.below(5) {
                assert_eq!(receiver.is_empty(), sent.is_empty());
                let Some((len, byte)) = sent.pop_front() else { break };
                assert_eq!(receiver.pop(&mut out), Ok(Some(record(len))), "seed {seed}");
                assert!(out[..len].iter().all(|b| *b == byte));
            }
        }
        assert!(full > 0, "the ring was full at times");
    }
}

#[test]
fn sleeping_receiver_is_woken_once() {
    let memory = Local::new(1024);
    let (mut sender, mut receiver) = (Sender::new(memory.clone()), Receiver::new(memory, MAX_LEN));
    assert!(receiver.begin_sleep());
    assert!(!sender.publish(), "nothing was sent");
    assert_eq!(sender.push(record(8), &[1; 8]), Ok(true));
    assert!(sender.publish());
    assert_eq!(sender.push(record(8), &[1; 8]), Ok(true));
    assert!(!sender.publish());
    assert!(!receiver.begin_sleep(), "a datagram waits");
    receiver.end_sleep();
    let mut out = [0; MAX_LEN];
    assert!(receiver.pop(&mut out).unwrap().is_some() && receiver.pop(&mut out).unwrap().is_some());
    assert!(receiver.begin_sleep());
    receiver.end_sleep();
    assert_eq!(sender.push(record(8), &[1; 8]), Ok(true));
    assert!(!sender.publish());
}

#[test]
fn memory_is_mapped_twice_and_checked() {
    const SIZE: usize = ring_size(4096);
    let own = MappedRing::create(SIZE).unwrap();
    let duplicate = |ring: &MappedRing| ring.as_fd().unwrap().try_clone_to_owned().unwrap();
    let other = MappedRing::open(duplicate(&own), SIZE).unwrap();
    let (mut sender, mut receiver) = (Sender::new(own), Receiver::new(other, MAX_LEN));
    assert_eq!(sender.push(record(77), &[5; 77]), Ok(true));
    sender.publish();
    let mut out = [0; MAX_LEN];
    assert_eq!(receiver.pop(&mut out), Ok(Some(record(77))));
    assert_eq!(out[..77], [5; 77]);

    let ring = MappedRing::create(SIZE).unwrap();
    assert!(MappedRing::open(duplicate(&ring), 2 * SIZE).is_err(), "the file is too short");
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, SIZE as u64).unwrap();
    assert!(MappedRing::open(unsealed, SIZE).is_err(), "the owner may shorten the file");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(MappedRing::open(file.into(), SIZE).is_err(), "the file is no memfd");
}
