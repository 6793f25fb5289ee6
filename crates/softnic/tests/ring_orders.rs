//! Both ends of a ring in shared memory, in all orders of their steps. Memory is as weak as the
//! ring's orderings permit: a word without a release and an acquire may be seen late.

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/shared_memory/ring.rs"]
mod ring;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use ring::{Receiver, Record, RingMemory, Sender, ring_size};

const WORD: usize = 8;
/// The bytes of records: room for four records of one cache line, one of them behind the last.
const RECORDS: usize = 256;
const LEN: usize = 16;

/// A memory of atomics of loom. Datagrams are copied without any order.
#[derive(Clone)]
struct Words(Arc<Vec<AtomicU64>>);

impl Words {
    fn new() -> Words {
        let words = ring_size(RECORDS) / WORD;
        Words(Arc::new((0..words).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl RingMemory for Words {
    fn len(&self) -> usize {
        self.0.len() * WORD
    }

    fn load(&self, offset: usize) -> u64 {
        self.0[offset / WORD].load(Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.0[offset / WORD].store(value, Ordering::Release);
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        for (index, word) in out.chunks_mut(WORD).enumerate() {
            word.copy_from_slice(&self.0[offset / WORD + index].load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        for (index, word) in bytes.chunks(WORD).enumerate() {
            let word =
                u64::from_ne_bytes(word.try_into().expect("the datagrams of the test are whole words"));
            self.0[offset / WORD + index].store(word, Ordering::Relaxed);
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The descriptor by which the sender wakes the receiver.
#[derive(Default)]
struct WakeUp(Mutex<bool>, Condvar);

impl WakeUp {
    fn send(&self) {
        *self.0.lock().expect("no panic") = true;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut is_sent = self.0.lock().expect("no panic");
        while !*is_sent {
            is_sent = self.1.wait(is_sent).expect("no panic");
        }
        *is_sent = false;
    }
}

fn push(sender: &mut Sender<Words>, number: u8) -> bool {
    let record = Record { len: LEN, traffic_class: number, is_sealed: false };
    sender.push(record, &[number; LEN]).expect("the receiver is correct")
}

fn pop(receiver: &mut Receiver<Words>) -> Option<u8> {
    let mut datagram = [0; LEN];
    let record = receiver.pop(&mut datagram).expect("the sender is correct")?;
    assert_eq!((record.len, datagram), (LEN, [record.traffic_class; LEN]));
    Some(record.traffic_class)
}

/// The sender publishes `batches`, numbered from 0, with `before` datagrams read before. The
/// receiver reads all, and sleeps while there are none. A lost wake-up would leave it asleep: loom
/// reports a deadlock.
fn all_arrive_in_order(before: u8, batches: &'static [u8]) {
    loom::model(move || {
        let memory = Words::new();
        let (mut sender, mut receiver) = (Sender::new(memory.clone()), Receiver::new(memory, LEN));
        for number in 0..before {
            assert!(push(&mut sender, number) && !sender.publish());
            assert_eq!(pop(&mut receiver), Some(number));
        }
        let wake_up = Arc::new(WakeUp::default());
        let ends = Arc::clone(&wake_up);
        let thread = thread::spawn(move || {
            let mut number = 0;
            for batch in batches {
                for _ in 0..*batch {
                    while !push(&mut sender, number) {
                        thread::yield_now();
                    }
                    number += 1;
                }
                if sender.publish() {
                    ends.send();
                }
            }
        });
        let total: u8 = batches.iter().sum();
        let mut next = 0;
        while next < total {
            match pop(&mut receiver) {
                Some(number) => {
                    assert_eq!(number, next);
                    next += 1;
                }
                None if receiver.begin_sleep() => {
                    wake_up.wait();
                    receiver.end_sleep();
                }
                None => receiver.end_sleep(),
            }
        }
        thread.join().expect("no panic");
        assert!(receiver.is_empty());
    });
}

#[test]
fn batch_of_two_wakes_the_receiver() {
    all_arrive_in_order(0, &[2]);
}

#[test]
fn two_batches_wake_the_receiver() {
    all_arrive_in_order(0, &[1, 1]);
}

/// The second datagram lies at the start of the ring, where a datagram that was read still is.
#[test]
fn datagrams_arrive_across_the_end_of_the_ring() {
    all_arrive_in_order(3, &[2]);
}

/// The ring is full until the receiver has read one, so the fourth datagram is refused or arrives.
#[test]
fn full_ring_takes_a_datagram_once_there_is_room() {
    loom::model(|| {
        let memory = Words::new();
        let (mut sender, mut receiver) = (Sender::new(memory.clone()), Receiver::new(memory, LEN));
        assert!((0..3).all(|number| push(&mut sender, number)));
        sender.publish();
        let thread = thread::spawn(move || {
            let is_sent = push(&mut sender, 3);
            sender.publish();
            is_sent
        });
        let mut received: Vec<u8> = (0..4).filter_map(|_| pop(&mut receiver)).collect();
        let is_sent = thread.join().expect("no panic");
        received.extend(pop(&mut receiver));
        assert_eq!(received, [0, 1, 2, 3][..3 + usize::from(is_sent)]);
    });
}

/// The ring is full, and the sender sleeps until the receiver has read a record. A lost wake-up
/// would leave it asleep.
#[test]
fn sender_that_waits_for_room_is_woken() {
    loom::model(|| {
        let memory = Words::new();
        let (mut sender, mut receiver) = (Sender::new(memory.clone()), Receiver::new(memory, LEN));
        for number in 0..3 {
            assert!(push(&mut sender, number));
            sender.publish();
        }
        assert_eq!((pop(&mut receiver), pop(&mut receiver)), (Some(0), Some(1)));
        assert!(push(&mut sender, 3) && push(&mut sender, 4) && !push(&mut sender, 5));
        let room = Arc::new(WakeUp::default());
        let waits_for_room = Arc::clone(&room);
        let thread = thread::spawn(move || {
            sender.begin_wait();
            if !push(&mut sender, 5) {
                waits_for_room.wait();
                assert!(push(&mut sender, 5), "the receiver has read a record");
            }
        });
        assert_eq!(pop(&mut receiver), Some(2));
        // This call may miss the sender.
        let mut is_woken = receiver.take_wait();
        // The records behind are not visible, so the receiver sleeps.
        assert!(receiver.begin_sleep());
        is_woken |= receiver.take_wait();
        if is_woken {
            room.send();
        }
        thread.join().expect("no panic");
    });
}
