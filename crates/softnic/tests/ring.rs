//! A ring in shared memory with one thread. `ring_orders.rs` tests the orders of two.

#[path = "../../../fuzz/properties/ring.rs"]
mod body;
#[allow(dead_code, reason = "rings need no strings")]
#[path = "../../../fuzz/bytes.rs"]
mod bytes;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[allow(dead_code, reason = "the property uses a part of it")]
#[path = "../src/shared_memory/ring.rs"]
mod ring;

use mitra_prng::Prng;

use body::Local;
use ring::{Receiver, Record, Sender};

const MAX_LEN: usize = 300;

#[test]
fn corpus_of_rings() {
    replay::replay("ring", body::run);
}

/// Random steps, in every other run without a damage.
#[test]
fn random_steps_keep_the_ring_a_queue() {
    for seed in mitra_prng::seeds(4000) {
        let mut rng = Prng::new(seed);
        let mut input: Vec<u8> = (0..600).map(|_| rng.below(256) as u8).collect();
        if seed % 2 == 0 {
            // Steps and arguments are not told apart. Byte 5 begins a damage.
            input.iter_mut().filter(|byte| **byte % 9 == 5).for_each(|byte| *byte = 2);
        }
        body::run(&input);
    }
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
