//! The order in which receives complete.

use mitra_failover::{Outcome, UnresolvedError};
use mitra_verbs::{Data, SendOp, WcStatus};

use crate::vqp_pair::{VqpPair, config};

/// A message that is too long for its receive fails behind the notification of a WRITE with
/// immediate. The notification waits for the sender's Resume and completes first, because it
/// arrived first.
#[test]
fn failed_receive_completes_after_held_notification() {
    let mut pair = VqpPair::new(2, config());
    pair.recv(1, 1, 0);
    pair.recv(1, 2, 8);
    pair.recv(1, 3, 8);
    pair.poll_times(&[0, 1], 5);
    pair.link_down(0, 0);
    pair.send(0, 10, SendOp::WriteWithImm(pair.remote(1, 8192), 9), Data::inline(&[7; 8]));
    pair.poll_times(&[0], 20); // the first end proposes the other rail
    pair.poll_times(&[1], 40); // the second end fences, and sends its evidence
    pair.send(0, 11, SendOp::Send, Data::inline(&[8; 64]));
    pair.poll_times(&[0], 100); // the first end moves, and sends both messages
    pair.poll_times(&[1], 4);
    let completed: Vec<_> = pair.completions[1].iter().map(|c| (c.wr_id, c.outcome)).collect();
    let expected = [
        (1, Outcome::Unresolved(UnresolvedError::ValueLost)),
        (2, Outcome::Failed(WcStatus::LocalLength)),
        (3, Outcome::Failed(WcStatus::Flushed)),
    ];
    assert_eq!(completed, expected);
}

#[test]
fn failed_receive_keeps_its_error_if_nothing_is_held() {
    let mut pair = VqpPair::new(2, config());
    pair.recv(1, 2, 8);
    pair.poll_times(&[0, 1], 5);
    pair.link_down(0, 0);
    pair.send(0, 11, SendOp::Send, Data::inline(&[8; 64]));
    pair.poll_times(&[0], 20);
    pair.poll_times(&[1], 40);
    pair.poll_times(&[0], 100);
    pair.poll_times(&[1], 4);
    assert_eq!(pair.outcome(1, 2, true), Some(Outcome::Failed(WcStatus::LocalLength)));
    assert_eq!(pair.completions[1].len(), 1);
}

/// A message that fits only the second receive succeeds. This shows that each receive was posted
/// once.
#[test]
fn receives_that_are_added_one_at_a_time_take_messages_in_order() {
    let mut pair = VqpPair::new(2, config());
    pair.recv(1, 1, 8);
    pair.recv(1, 2, 64);
    pair.recv(1, 3, 8);
    for (id, len) in [(10, 8), (11, 64), (12, 8)] {
        pair.send(0, id, SendOp::Send, Data::inline(&[7; 64][..len]));
    }
    pair.poll_times(&[0, 1], 20);
    let completed: Vec<_> = pair.completions[1].iter().map(|c| (c.wr_id, c.outcome)).collect();
    assert_eq!(completed, [1, 2, 3].map(|id| (id, Outcome::Success)));
}
