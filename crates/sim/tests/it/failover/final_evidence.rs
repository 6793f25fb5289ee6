//! A vQP that closes tells its peer which of the peer's operations it executed. So the peer decides
//! its operations in flight although no acknowledgement arrives.

use core::time::Duration;

use mitra_failover::{CloseReason, Outcome, Resolution, UnresolvedError};
use mitra_sim::Failure;
use mitra_verbs::{Data, SendOp, WcStatus};

use crate::vqp_pair::{VqpPair, config};

/// The word of the second end's memory that the first end changes.
const WORD: u64 = 8192;

fn connected() -> VqpPair {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair
}

/// Lets the world go on in steps of 50 ns, which are shorter than the latency of a link, until
/// `is_done`.
fn run_until(pair: &mut VqpPair, is_done: impl Fn(&VqpPair) -> bool) {
    for _ in 0..10_000 {
        if is_done(pair) {
            return;
        }
        pair.testbed.world.run_for(Duration::from_nanos(50));
    }
    panic!("the second end does not execute the operations");
}

/// Shuts the second end down before an acknowledgement leaves rail `cut`, and polls the first end
/// until it has closed.
fn shut_down_unacknowledged(pair: &mut VqpPair, cut: usize) {
    pair.link_down(0, cut);
    pair.vqps[1].shutdown();
    pair.poll_times(&[0, 1], 40);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerClosed));
}

fn resolution(pair: &VqpPair, wr_id: u64) -> Option<Resolution> {
    pair.completions[0].iter().find(|c| c.wr_id == wr_id).map(|c| c.resolution)
}

/// The receiver of the last message closes at once, and the message's acknowledgement is lost.
#[test]
fn received_message_of_a_peer_that_closes_succeeds() {
    for fails_over in [false, true] {
        let mut pair = connected();
        if fails_over {
            pair.fail_over(400);
        }
        let rail = pair.vqps[0].active_rail();
        pair.recv(1, 1, 8);
        pair.send_message(7, 42);
        for _ in 0..1000 {
            pair.testbed.world.run_for(Duration::from_nanos(50));
            let VqpPair { vqps, completions, .. } = &mut pair;
            if vqps[1].poll(&mut completions[1]) > 0 {
                break;
            }
        }
        assert_eq!(pair.received_ids(), [1]);
        shut_down_unacknowledged(&mut pair, rail);
        assert_eq!(pair.outcome(0, 7, false), Some(Outcome::Success), "fails_over: {fails_over}");
        assert_eq!(resolution(&pair, 7), Some(Resolution::Recovered));
    }
}

/// The receiver closes before it polls the message's completion. The close collects the completion.
#[test]
fn message_that_the_close_collects_succeeds_at_both_ends() {
    let mut pair = connected();
    pair.recv(1, 1, 8);
    pair.recv(1, 2, 8);
    pair.send_message(7, 42);
    pair.send_message(8, 43);
    run_until(&mut pair, |pair| pair.memory[1].load(512) == 43);
    pair.send_message(9, 44);
    shut_down_unacknowledged(&mut pair, 0);
    assert_eq!(pair.received_ids(), [1, 2]);
    assert_eq!([7, 8].map(|id| pair.outcome(0, id, false)), [Some(Outcome::Success); 2]);
    assert_eq!(pair.outcome(0, 9, false), Some(Outcome::Failed(WcStatus::Flushed)), "not executed");
}

/// Operations that the peer executed succeed with their values, except the READ, which is flushed
/// because its value did not arrive. The other operations were not executed, and are flushed.
#[test]
fn operations_in_flight_are_decided_when_the_peer_closes() {
    for executed in [false, true] {
        let mut pair = connected();
        pair.memory[1].store(WORD as usize + 8, 5);
        pair.send_write(1, WORD, 3);
        let sge = pair.mr[0].sge(256, 8);
        let word = pair.remote(1, WORD + 8);
        pair.send(0, 2, SendOp::FetchAdd { remote: word, add: 10 }, Data::sge(sge));
        let sge = pair.mr[0].sge(512, 8);
        let word = pair.remote(1, WORD);
        pair.send(0, 3, SendOp::Read(word), Data::sge(sge));
        if executed {
            run_until(&mut pair, |pair| pair.memory[1].load(WORD as usize + 8) == 15);
        }
        shut_down_unacknowledged(&mut pair, 0);
        let outcomes = [1, 2, 3].map(|id| pair.outcome(0, id, false).expect("every operation ends"));
        let flushed = Outcome::Failed(WcStatus::Flushed);
        if executed {
            assert_eq!(
                outcomes,
                [Outcome::Success, Outcome::Success, flushed],
                "no value of the READ arrived"
            );
            assert_eq!(pair.memory[0].load(256), 5, "the value before the addition");
        } else {
            assert_eq!(outcomes, [flushed; 3]);
        }
        assert_eq!(pair.memory[1].load(WORD as usize + 8), if executed { 15 } else { 5 });
    }
}

/// The second end closes when it has given its evidence for a move. The first end may use this
/// evidence to move.
#[test]
fn peer_that_closes_during_a_move_gives_the_evidence_of_both_rails() {
    for polls in 0..24 {
        for moves in [false, true] {
            let mut pair = connected();
            (1..=2).for_each(|id| pair.recv(1, id, 8));
            pair.send_message(7, 42);
            run_until(&mut pair, |pair| pair.memory[1].load(256) == 42);
            pair.link_down(0, 0);
            pair.send_message(8, 43);
            for _ in 0..polls {
                pair.poll(if moves { &[0, 1] } else { &[1] });
            }
            pair.vqps[1].shutdown();
            pair.poll_times(&[0, 1], 40);
            assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerClosed));
            let received = pair.received_ids().len();
            let sent = [7, 8].map(|id| pair.outcome(0, id, false).expect("every operation ends"));
            let flushed = Outcome::Failed(WcStatus::Flushed);
            let expected = [0, 1].map(|i| if i < received { Outcome::Success } else { flushed });
            assert_eq!(sent, expected, "polls: {polls}, moves: {moves}");
        }
    }
}

/// The NIC of the receiver has died, so its receiver record alone decides SENDs.
#[test]
fn closing_end_with_a_dead_nic_gives_its_receiver_record() {
    let mut pair = connected();
    pair.recv(1, 1, 8);
    pair.send_message(7, 42);
    run_until(&mut pair, |pair| pair.memory[1].load(256) == 42);
    pair.link_down(0, 0);
    pair.testbed.world.run_for(Duration::from_nanos(200));
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    pair.send_write(8, WORD, 3);
    pair.vqps[1].shutdown();
    pair.poll_times(&[0, 1], 40);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerClosed));
    assert_eq!(pair.received_ids(), [1]);
    assert_eq!(pair.outcome(0, 7, false), Some(Outcome::Success));
    let unknown = Outcome::Unresolved(UnresolvedError::Indeterminate);
    assert_eq!(pair.outcome(0, 8, false), Some(unknown), "a WRITE without a log entry");
}
