//! The number of polls that a failover takes. The peer waits for each poll.

use core::time::Duration;

use crate::vqp_pair::{VqpPair, config};

/// Cuts rail 0, which the first end notices at once. Its proposal then is at the second end's NIC
/// of rail 1.
fn propose(pair: &mut VqpPair) {
    pair.link_down(0, 0);
    pair.vqps[0].progress();
    pair.testbed.world.run_for(Duration::from_micros(25));
}

/// The proposal arrives on a standby rail, on which only every fourth run queries the device.
#[test]
fn every_run_reads_the_proposals_on_standby_rails() {
    for earlier_runs in 0..4 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 10);
        for _ in 0..earlier_runs {
            pair.vqps[1].progress();
        }
        propose(&mut pair);
        assert!(pair.vqps[1].is_active());
        pair.vqps[1].progress();
        assert!(!pair.vqps[1].is_active(), "{earlier_runs} earlier runs: the run reads the proposal");
    }
}

/// The fence takes the flushed requests of the whole queue.
#[test]
fn fence_of_a_full_queue_takes_one_poll() {
    let mut pair = VqpPair::new(2, config());
    (0..64).for_each(|id| pair.recv(1, id, 8));
    pair.poll_times(&[0, 1], 10);
    propose(&mut pair);
    pair.vqps[1].progress(); // reads the proposal and starts the fence
    pair.vqps[1].progress(); // takes the flushed receives and sends the evidence
    pair.poll_times(&[0], 10);
    assert_eq!(pair.vqps[0].active_rail(), 1, "the first end has the evidence");
}

/// The first end has 4 WRITEs in flight at the failure, and 20 more wait for the move. Each WRITE
/// changes a word of its own.
#[test]
fn operations_that_were_in_flight_are_posted_before_new_ones() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    let written = |pair: &VqpPair| (0..24).take_while(|word| pair.memory[1].load(word * 8) == 7).count();
    pair.link_down(0, 0);
    (0..4).for_each(|word| pair.send_write(word, word * 8, 7));
    while pair.vqps[0].is_active() {
        pair.poll(&[0]);
    }
    (4..24).for_each(|word| pair.send_write(word, word * 8, 7));
    pair.poll_times(&[1], 10); // fences and sends the evidence
    while pair.vqps[0].active_rail() == 0 {
        pair.vqps[0].poll(&mut pair.completions[0]);
    }
    // No time has passed since the move, so no acknowledgement has arrived.
    for _ in 0..3 {
        pair.vqps[0].poll(&mut pair.completions[0]);
    }
    pair.testbed.world.run_for(Duration::from_micros(25));
    assert_eq!(written(&pair), 4 + 3, "the replays, and one new WRITE for each further poll");
    pair.poll_times(&[0, 1], 100);
    assert_eq!(written(&pair), 24);
}
