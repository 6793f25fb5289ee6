//! The send queue of a vQP in SQD: it drains, also across a failover, and restarts.

use core::time::Duration;

use mitra_failover::Outcome;
use mitra_verbs::{Data, SendFlags, SendOp, SendWr};

use crate::vqp_pair::{VqpPair, config};

const WORD: u64 = 8192;
/// The length of a WRITE that takes longer than a poll.
const LONG: u32 = 40_000;

fn pair() -> VqpPair {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair
}

fn drain(pair: &mut VqpPair) {
    for _ in 0..1000 {
        pair.poll(&[0, 1]);
        if pair.vqps[0].are_sends_drained() {
            return;
        }
    }
    panic!("the send queue does not drain");
}

fn succeeded(pair: &VqpPair) -> Vec<u64> {
    assert!(pair.completions[0].iter().all(|c| c.outcome == Outcome::Success));
    pair.completions[0].iter().map(|c| c.wr_id).collect()
}

#[test]
fn unsignalled_request_ends_before_the_queue_has_drained() {
    let mut pair = pair();
    let data = Data::sge(pair.mr[0].sge(0, LONG));
    pair.memory[0].write_at(0, &[0x55; LONG as usize]);
    let write = SendWr::new(1, SendOp::Write(pair.remote(1, WORD)), data).with_flags(SendFlags::empty());
    pair.vqps[0].post_send(write).expect("the queue has room");
    pair.testbed.world.run_for(Duration::from_micros(2)); // the NIC has begun
    pair.vqps[0].drain_sends().expect("the vQP is open");
    pair.vqps[0].drain_sends().expect("the vQP is open");
    assert!(!pair.vqps[0].are_sends_drained());
    drain(&mut pair);
    assert_eq!(pair.memory[1].load(WORD as usize + LONG as usize - 8), 0x5555_5555_5555_5555);
    pair.send_write(2, 0, 7);
    pair.poll_times(&[0, 1], 100);
    assert_eq!((pair.memory[1].load(0), succeeded(&pair)), (0, vec![]));
    pair.vqps[0].restart_sends().expect("the vQP is open");
    assert!(!pair.vqps[0].are_sends_drained());
    pair.poll_times(&[0, 1], 100);
    assert_eq!((pair.memory[1].load(0), succeeded(&pair)), (7, vec![2]));
}

/// The requests that began before the drain end on the new rail. No other request begins.
#[test]
fn queue_drains_across_a_failover() {
    for at in 0..40 {
        let mut pair = pair();
        let data = Data::sge(pair.mr[0].sge(0, LONG));
        pair.memory[0].write_at(0, &[0x55; LONG as usize]);
        pair.send(0, 1, SendOp::Write(pair.remote(1, WORD)), data);
        pair.send_write(2, 0, 5);
        pair.testbed.world.run_for(Duration::from_nanos(500 * at));
        pair.vqps[0].drain_sends().expect("the vQP is open");
        pair.send_write(3, 0, 7);
        pair.link_down(0, 0);
        drain(&mut pair);
        pair.poll(&[0]); // takes the completions of the requests that have ended
        let begun = succeeded(&pair);
        let word = pair.memory[1].load(0);
        pair.poll_times(&[0, 1], 400);
        assert_eq!((succeeded(&pair), pair.memory[1].load(0)), (begun, word), "the queue has drained");
        assert_eq!(pair.vqps[0].active_rail(), 1);
        assert_ne!(word, 7, "request 3 was posted to a queue that drained");
        pair.vqps[0].restart_sends().expect("the vQP is open");
        pair.poll_times(&[0, 1], 400);
        assert_eq!((succeeded(&pair), pair.memory[1].load(0)), (vec![1, 2, 3], 7));
        assert_eq!(pair.memory[1].load(WORD as usize + LONG as usize - 8), 0x5555_5555_5555_5555);
    }
}

/// The rail fails after the queue has drained, or fails and heals. Nothing is posted on the next
/// rail before the restart.
#[test]
fn drained_queue_stays_drained_across_failovers() {
    let mut pair = pair();
    pair.vqps[0].drain_sends().expect("the vQP is open");
    drain(&mut pair);
    pair.send_write(1, 0, 7);
    for rail in [1, 0] {
        pair.fail_over(400);
        assert_eq!((pair.vqps[0].active_rail(), pair.memory[1].load(0)), (rail, 0));
        assert!(pair.vqps[0].are_sends_drained());
    }
    pair.vqps[0].restart_sends().expect("the vQP is open");
    pair.poll_times(&[0, 1], 100);
    assert_eq!((pair.memory[1].load(0), succeeded(&pair)), (7, vec![1]));
}

#[test]
fn closed_queue_does_not_drain() {
    let mut pair = pair();
    pair.vqps[0].shutdown();
    assert!(pair.vqps[0].drain_sends().is_err() && pair.vqps[0].restart_sends().is_err());
}
