//! Virtual queue pairs whose receiver has posted no receive for a message. The responder answers the message
//! with RNR NAKs.

mod vqp_pair;

use mitra_failover::{CloseReason, Config, Outcome};
use mitra_verbs::WcStatus;

use vqp_pair::{VqpPair, config};

/// An RNR NAK is no failure of the rail. The message and the operations after it wait until a receive is
/// posted.
#[test]
fn message_waits_for_its_receive() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    (0..4).for_each(|i| pair.send_message(100 + i, 1000 + i));
    pair.send_write(200, 8192, 5);
    pair.poll_times(&[0, 1], 2000);
    assert_eq!(
        (pair.received_ids(), pair.outcome(0, 100, false), pair.memory[1].load(8192)),
        (vec![], None, 0)
    );
    for i in 0..4 {
        pair.recv(1, i, 64);
        pair.poll_times(&[0, 1], 200);
        assert_eq!(pair.received_ids().len() as u64, i + 1);
        assert_eq!(pair.memory[1].load(i as usize * 256), 1000 + i);
    }
    assert!((100..104).all(|i| pair.outcome(0, i, false) == Some(Outcome::Success)));
    assert_eq!((pair.outcome(0, 200, false), pair.memory[1].load(8192)), (Some(Outcome::Success), 5));
    assert_eq!([pair.vqps[0].last_failover(), pair.vqps[1].last_failover()], [None, None]);
}

/// The rail fails while messages wait for receives. The peer posts the receives after the failover.
#[test]
fn message_waiting_for_receive_survives_failover() {
    for completion_log in [false, true] {
        let mut pair = VqpPair::new(2, Config { completion_log, ..config() });
        pair.recv(1, 0, 64);
        pair.poll_times(&[0, 1], 10);
        (0..4).for_each(|i| pair.send_message(100 + i, 1000 + i));
        pair.send_write(200, 8192, 5);
        pair.poll_times(&[0, 1], 40);
        assert_eq!(pair.received_ids(), [0]);
        let nic = pair.testbed.nics[0][0].id();
        pair.testbed.world.set_link(nic, false);
        pair.poll_times(&[0, 1], 400);
        assert_eq!(
            [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
            [1, 1],
            "{:?}",
            pair.vqps[0].close_reason()
        );
        (1..4).for_each(|i| pair.recv(1, i, 64));
        pair.poll_times(&[0, 1], 400);
        assert_eq!(pair.received_ids(), [0, 1, 2, 3]);
        assert!((0..4).all(|i| pair.memory[1].load(i * 256) == 1000 + i as u64));
        assert!((100..104).all(|i| pair.outcome(0, i, false) == Some(Outcome::Success)));
        assert_eq!((pair.outcome(0, 200, false), pair.memory[1].load(8192)), (Some(Outcome::Success), 5));
    }
}

/// With a finite `rnr_retry`, the message fails. The rail stays active, and no operation after the message is
/// executed.
#[test]
fn exceeded_rnr_retry_fails_request_not_rail() {
    let mut pair = VqpPair::new(2, Config { rnr_retry: 2, ..config() });
    pair.recv(1, 0, 64);
    pair.poll_times(&[0, 1], 10);
    (0..3).for_each(|i| pair.send_message(100 + i, 1000 + i));
    pair.send_write(200, 8192, 5);
    pair.poll_times(&[0, 1], 2000);
    assert_eq!(pair.outcome(0, 100, false), Some(Outcome::Success));
    assert_eq!(pair.outcome(0, 101, false), Some(Outcome::Failed(WcStatus::RnrRetryExceeded)));
    assert_eq!(pair.outcome(0, 102, false), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(pair.outcome(0, 200, false), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!(pair.memory[1].load(8192), 0);
    assert_eq!(
        (pair.vqps[0].close_reason(), pair.vqps[1].close_reason()),
        (Some(CloseReason::RequestError), Some(CloseReason::PeerClosed))
    );
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [0, 0]);
}
