//! Virtual queue pairs whose receiver has posted no receive for a message. The responder answers
//! the message with RNR NAKs.

use core::time::Duration;

use mitra_failover::{CloseReason, CompletionLogConfig, Config, Outcome, UnresolvedError};
use mitra_sim::{Failure, Noise};
use mitra_test_process::variants;
use mitra_verbs::{Data, RecvWr, SendFlags, SendOp, SendWr, WcStatus};

use crate::vqp_pair::{VqpPair, config};

/// An RNR NAK is no failure of the rail.
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

/// The peer posts the receives after the failover.
#[test]
fn message_waiting_for_receive_survives_failover() {
    for completion_log in [None, Some(CompletionLogConfig::default())] {
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

impl VqpPair {
    /// Polls these ends until the first end closes, at most for `time`. Returns the reason.
    fn drive(&mut self, ends: &[usize], time: Duration) -> Option<CloseReason> {
        for _ in 0..time.as_micros() / 25 {
            if self.vqps[0].close_reason().is_some() {
                break;
            }
            self.poll(ends);
        }
        self.vqps[0].close_reason()
    }
}

/// The time after which a silent peer counts as unreachable.
const LONG: Duration = Duration::from_secs(2);

/// Returns a configuration without heartbeats and without a limit on RNR retries.
fn patient(durable: bool) -> Config {
    let config = Config { rnr_retry: 7, peer_timeout: Duration::from_millis(100), ..config() };
    assert_eq!(config.detector.max_missed_heartbeats, 0);
    let log = CompletionLogConfig { durable: true, ..CompletionLogConfig::default() };
    Config { completion_log: durable.then_some(log), ..config }
}

/// The number of RNR retries is unlimited, and the peer's program drives its vQP. A signalled WRITE
/// follows the message.
#[test]
fn message_waits_for_ever_for_a_receive_of_a_live_peer() {
    for durable in [false, true] {
        for rails in variants(&format!("no receive, durable: {durable}"), &[1, 2, 3]) {
            let mut world = mitra_sim::Config::fault_free();
            world.capabilities.ack_after_placement = !durable;
            let mut pair = VqpPair::with_world(rails, patient(durable), world);
            pair.send_message(100, 1000);
            pair.send_write(200, 8192, 5);
            assert_eq!(pair.drive(&[0, 1], LONG), None, "{rails} rails, durable {durable}");
            assert_eq!(pair.vqps[1].close_reason(), None);
            pair.recv(1, 0, 64);
            pair.poll_times(&[0, 1], 400);
            assert_eq!((pair.received_ids(), pair.outcome(0, 200, false)), (vec![0], Some(Outcome::Success)));
        }
    }
}

/// The peer's only NIC hangs and cannot be reset, so the NIC answers the message with RNR NAKs for
/// ever. The peer's program closes, and cannot announce the close.
#[test]
fn message_to_a_hung_nic_ends_without_heartbeats() {
    for (durable, peer_runs) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut world = mitra_sim::Config::fault_free();
        (world.capabilities.ack_after_placement, world.capabilities.reset) = (!durable, false);
        let mut pair = VqpPair::with_world(1, patient(durable), world);
        pair.poll_times(&[0, 1], 10);
        pair.send_message(100, 1000);
        pair.poll_times(&[0, 1], 10);
        let nic = pair.testbed.nics[1][0].id();
        pair.testbed.world.fail(nic, Failure::NicHung);
        let ends: &[usize] = if peer_runs { &[0, 1] } else { &[0] };
        assert_eq!(pair.drive(ends, LONG), Some(CloseReason::PeerUnreachable), "the peer runs: {peer_runs}");
        let undecided = UnresolvedError::Undecided(CloseReason::PeerUnreachable);
        assert_eq!(pair.outcome(0, 100, false), Some(Outcome::Unresolved(undecided)));
    }
}

/// The peer's program has stopped. Its NICs answer with RNR NAKs.
#[test]
fn message_to_a_stopped_program_ends_without_heartbeats() {
    for rails in [1, 2, 3] {
        let mut pair = VqpPair::new(rails, patient(false));
        pair.poll_times(&[0, 1], 10);
        pair.send_message(100, 1000);
        let host = pair.testbed.hosts[1];
        pair.testbed.world.pause(host, None);
        assert_eq!(pair.drive(&[0], LONG), Some(CloseReason::PeerUnreachable), "{rails} rails");
    }
}

/// The end sleeps until `poll_timeout` each time, and nothing wakes it.
#[test]
fn sleeping_end_asks_a_stopped_program_without_heartbeats() {
    for rails in [1, 2, 3] {
        let mut pair = VqpPair::new(rails, patient(false));
        pair.poll_times(&[0, 1], 10);
        pair.send_message(100, 1000);
        let host = pair.testbed.hosts[1];
        pair.testbed.world.pause(host, None);
        pair.vqps[0].progress();
        while pair.vqps[0].close_reason().is_none() {
            let now = pair.testbed.world.now();
            let due = pair.vqps[0].poll_timeout().expect("an end that waits has a timer");
            pair.testbed.world.run_for(due.saturating_since(now));
            pair.poll(&[0]);
        }
        assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerUnreachable), "{rails} rails");
    }
}

/// Neither the message nor a request behind it is signalled, so nothing shows when the message
/// ends. The peer may have received the message long ago.
#[test]
fn unsignaled_message_is_no_reason_to_ask_a_stopped_program() {
    let mut pair = VqpPair::new(2, patient(false));
    pair.recv(1, 0, 64);
    pair.poll_times(&[0, 1], 10);
    let mut wr = SendWr::new(100, SendOp::Send, Data::inline(&1000_u64.to_ne_bytes()));
    wr.flags.remove(SendFlags::SIGNALED);
    pair.vqps[0].post_send(wr).expect("the send queue has room");
    pair.poll_times(&[0, 1], 40);
    assert_eq!(pair.received_ids(), [0]);
    assert_eq!(pair.drive(&[0], LONG), None);
}

/// With a finite `rnr_retry`, the message fails. The rail stays active, and no operation after the
/// message is executed.
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

/// The first end proposes another rail, which the second end cannot use, and stays on its unfenced
/// rail. The application posts receives before the refusal arrives.
#[test]
fn receives_posted_during_a_refused_proposal_are_posted_on_the_active_rail() {
    for recovers_before_post in [false, true] {
        let mut pair = VqpPair::new(2, Config { rnr_retry: 0, ..config() });
        pair.poll_times(&[0, 1], 10);
        pair.link_down(1, 1);
        pair.poll_times(&[1], 5);
        pair.link_down(0, 0);
        pair.poll_times(&[0], 10); // proposes rail 1
        if recovers_before_post {
            pair.link_up(0, 0);
            pair.recv(0, 0, 64);
        } else {
            pair.recv(0, 0, 64);
            pair.link_up(0, 0);
        }
        pair.send(1, 100, SendOp::Send, Data::inline(&7_u64.to_ne_bytes()));
        pair.poll_times(&[1], 10); // the message arrives before the first end handles the refusal
        pair.poll_times(&[0, 1], 200);
        assert_eq!(pair.outcome(1, 100, false), Some(Outcome::Success), "{:?}", pair.vqps[1].close_reason());
        assert_eq!(pair.outcome(0, 0, true), Some(Outcome::Success));
        assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [0, 0]);
    }
}

/// The second end has fenced the old rail and has not moved. Its application posts a receive, and
/// the first end, which has moved, sends the message on the new rail at once.
#[test]
fn receive_posted_during_a_move_is_posted_on_the_new_rail() {
    let mut pair = VqpPair::new(2, Config { rnr_retry: 0, ..config() });
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 0);
    pair.send_message(100, 1000);
    pair.poll_times(&[0], 20); // the first end proposes the other rail
    pair.poll_times(&[1], 40); // the second end fences and sends its evidence
    pair.recv(1, 0, 64);
    pair.poll_times(&[0], 100);
    assert_eq!(pair.outcome(0, 100, false), Some(Outcome::Success), "{:?}", pair.vqps[0].close_reason());
    pair.poll_times(&[0, 1], 100);
    assert_eq!(pair.received_ids(), [0]);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1, 1]);
}

impl VqpPair {
    /// Drops every packet of a rail, or none. The ports stay up, so that only exhausted retries
    /// show the failure.
    fn drop_packets(&mut self, rail: usize, drops: bool) {
        let noise: Noise =
            if drops { "drop=1000000ppm".parse().expect("valid noise") } else { Noise::default() };
        for end in 0..2 {
            let nic = self.testbed.nics[end][rail].id();
            self.testbed.world.faults(nic, |faults| {
                faults.set_noise_tx(noise);
                faults.set_noise_rx(noise);
            });
        }
    }

    /// Polls both ends in short intervals until the condition holds, at most for 100 ms.
    fn poll_until(&mut self, holds: impl Fn(&VqpPair) -> bool) {
        for _ in 0..200_000 {
            if holds(self) {
                return;
            }
            for end in 0..2 {
                self.vqps[end].poll(&mut self.completions[end]);
            }
            self.testbed.world.run_for(Duration::from_nanos(500));
        }
    }

    /// Drops the packets of the active rail until the vQP has moved and the rail works again.
    fn fail_over_by_retries(&mut self) {
        let rail = self.vqps[0].active_rail();
        self.drop_packets(rail, true);
        self.poll_times(&[0, 1], 1000);
        self.drop_packets(rail, false);
        self.poll_times(&[0, 1], 200);
        assert_eq!([self.vqps[0].close_reason(), self.vqps[1].close_reason()], [None; 2]);
        assert_ne!(self.vqps[0].active_rail(), rail);
    }
}

/// While the receiver posts no receive, the rails fail in turn. Every rail carries data.
#[test]
fn receiver_that_posts_no_receive_keeps_the_connection_of_flapping_rails() {
    let mut pair = VqpPair::new(2, Config { peer_timeout: Duration::from_millis(100), ..config() });
    pair.poll_times(&[0, 1], 10);
    pair.send_message(100, 1000);
    (0..8).for_each(|_| pair.fail_over_by_retries());
    pair.recv(1, 0, 64);
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 100, false), Some(Outcome::Success));
    assert_eq!(pair.received_ids(), [0]);
}

/// Each of several failures tears a long message. A part of the message arrived on every rail.
#[test]
fn partly_executed_message_keeps_the_connection_of_flapping_rails() {
    const LEN: u32 = 40_000;
    let mut pair = VqpPair::new(2, Config { peer_timeout: Duration::from_millis(100), ..config() });
    pair.poll_times(&[0, 1], 10);
    pair.memory[0].write_at(0, &[0x55; LEN as usize]);
    let wr = RecvWr::new(0, pair.mr[1].sge(0, LEN));
    pair.vqps[1].post_recv(wr).expect("the receive queue has room");
    let whole = Data::sge(pair.mr[0].sge(0, LEN));
    pair.send(0, 100, SendOp::Send, whole);
    for round in 0..8 {
        pair.poll_until(|pair| pair.memory[1].load(8192) != 0);
        assert_ne!(pair.memory[1].load(8192), 0, "round {round}: the message does not arrive");
        assert_eq!(pair.outcome(0, 100, false), None, "round {round}: the message is no longer torn");
        let rail = pair.vqps[0].active_rail();
        pair.drop_packets(rail, true);
        pair.testbed.world.run_for(Duration::from_micros(25));
        pair.memory[1].write_at(0, &[0; LEN as usize]);
        pair.poll_until(|pair| pair.vqps[0].active_rail() != rail);
        assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None; 2], "round {round}");
        pair.drop_packets(rail, false);
    }
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 100, false), Some(Outcome::Success));
}
