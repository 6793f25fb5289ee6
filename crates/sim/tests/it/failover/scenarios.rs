//! Failover scenarios with fixed schedules: each test decides when an end polls and when time
//! advances. The folder `failover_random_faults` has runs with random schedules.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Cause, CloseReason, Config, Outcome, UnresolvedError};
use mitra_sim::{DurationRange, Failure, Stage};
use mitra_verbs::{
    Access, AhId, Buffer, Data, Provider, RecvWr, SendFlags, SendOp, SendWr, UdDestination, WcStatus,
};

use crate::vqp_pair::{FULL_ACCESS, VqpPair, config};

fn inline(value: u64) -> Data {
    Data::inline(&value.to_ne_bytes())
}

/// The second end accepts the next rail and posts its receives there. The rail then fails at the
/// first end, which proposes another rail.
#[test]
fn receives_move_to_the_rail_of_the_last_ballot() {
    let mut pair = VqpPair::new(4, config());
    for i in 0..16 {
        pair.recv(0, i, 64);
        pair.recv(1, i, 64);
    }
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 0);
    pair.poll_times(&[0], 20); // the first end proposes rail 1
    pair.poll_times(&[1], 20); // the second end fences, and posts its receives on rail 1
    pair.link_down(0, 1);
    pair.poll_times(&[0, 1], 200);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [2, 2]);
    for i in 0..4 {
        pair.send_message(100 + i, 1000 + i);
        pair.poll_times(&[0, 1], 20);
        assert_eq!(pair.outcome(1, i, true), Some(Outcome::Success), "message {i} was not received");
        assert_eq!(pair.memory[1].load(i as usize * 256), 1000 + i);
    }
    // Rail 1 recovers, and the third failover moves to it. The receives that the first move posted
    // there must be gone.
    pair.link_up(0, 1);
    pair.poll_times(&[0, 1], 10);
    for rail in [2, 3] {
        pair.link_down(0, rail);
        pair.poll_times(&[0, 1], 200);
    }
    assert_eq!(
        [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
        [1, 1],
        "{:?}",
        pair.vqps[0].close_reason()
    );
    for i in 4..16 {
        pair.send_message(100 + i, 1000 + i);
        pair.poll_times(&[0, 1], 20);
        assert_eq!(pair.outcome(1, i, true), Some(Outcome::Success), "message {i} was not received");
        assert_eq!(pair.memory[1].load(i as usize * 256), 1000 + i, "message {i} is in the wrong buffer");
    }
}

/// The sender closes after its sends have completed.
#[test]
fn messages_before_peer_close_are_received() {
    let mut pair = VqpPair::new(2, config());
    for i in 0..60 {
        pair.recv(1, i, 64);
    }
    for i in 0..60 {
        pair.send(0, i, SendOp::Send, inline(i));
    }
    pair.poll_times(&[0], 40);
    assert!((0..60).all(|i| pair.outcome(0, i, false) == Some(Outcome::Success)), "all sends completed");
    pair.vqps[0].shutdown();
    pair.poll_times(&[0], 4);
    pair.vqps[0].close().expect("the NICs confirm");
    pair.poll_times(&[1], 40);
    assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::PeerClosed));
    let received = (0..60).filter(|&i| pair.outcome(1, i, true) == Some(Outcome::Success)).count();
    assert_eq!(received, 60);
}

/// A region is deregistered while an operation that uses it waits for the failover. That operation
/// fails. The reported outcome of the earlier operation must be true.
#[test]
fn failed_post_says_nothing_about_earlier_operations() {
    let mut pair = VqpPair::new(2, config());
    let other = Arc::new(Buffer::new(4096));
    let domain = Arc::clone(pair.vqps[0].domain());
    let mr = domain.register(&other, FULL_ACCESS).expect("the NICs have a free region");
    pair.poll_times(&[0, 1], 5);
    let nic = pair.testbed.nics[0][0].id();
    pair.testbed.world.fail(nic, Failure::NicDead); // the rail is fenced at once
    pair.poll_times(&[0], 40);
    assert!(!pair.vqps[0].is_active());
    let target = pair.remote(1, 0);
    pair.send(0, 1, SendOp::Write(target), inline(7));
    pair.send(0, 2, SendOp::Write(pair.remote(1, 8)), Data::sge(mr.sge(0, 8)));
    domain.deregister(&mr).expect("the NICs confirm");
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
    let (first, second) = (pair.outcome(0, 1, false), pair.outcome(0, 2, false));
    assert_eq!(second, Some(Outcome::Failed(WcStatus::LocalProtection)));
    if first == Some(Outcome::Success) {
        assert_eq!(pair.memory[1].load(0), 7, "a WRITE without effect was reported as successful");
    }
    assert!(first.is_some());
}

/// A READ fails with a local protection error after the responder has executed a later WRITE.
#[test]
fn executed_write_behind_local_error_is_not_reported_flushed() {
    let mut pair = VqpPair::new(2, config());
    let other = Arc::new(Buffer::new(4096));
    let domain = Arc::clone(pair.vqps[0].domain());
    let mr = domain.register(&other, FULL_ACCESS).expect("the NICs have a free region");
    pair.poll_times(&[0, 1], 5);
    pair.send(0, 1, SendOp::Read(pair.remote(1, 1024)), Data::sge(mr.sge(0, 2048)));
    pair.send(0, 2, SendOp::Write(pair.remote(1, 0)), inline(7));
    domain.deregister(&mr).expect("the NICs confirm");
    pair.poll_times(&[0, 1], 100);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::LocalProtection)));
    let write_outcome = pair.outcome(0, 2, false);
    let executed = pair.memory[1].load(0) == 7;
    assert!(executed, "the test needs a WRITE that was executed");
    assert_ne!(
        write_outcome,
        Some(Outcome::Failed(WcStatus::Flushed)),
        "an executed WRITE was reported as flushed"
    );
}

/// The memory of a posted receive was deregistered. When the receive is posted on the next rail,
/// the vQP closes, so that the sender does not retry forever.
#[test]
fn receive_without_memory_closes_vqp_instead_of_blocking_sender() {
    let mut pair = VqpPair::new(2, config());
    let other = Arc::new(Buffer::new(4096));
    let domain = Arc::clone(pair.vqps[0].domain());
    let mr = domain.register(&other, FULL_ACCESS).expect("the NICs have a free region");
    pair.vqps[0].post_recv(RecvWr::new(1, mr.sge(0, 64))).expect("the receive queue has room");
    pair.poll_times(&[0, 1], 5);
    domain.deregister(&mr).expect("the NICs confirm");
    pair.link_down(0, 0);
    pair.send(1, 9, SendOp::Send, inline(1));
    pair.poll_times(&[0, 1], 2000);
    assert!(pair.outcome(1, 9, false).is_some(), "the send did not complete");
    assert_eq!(pair.outcome(0, 1, true), Some(Outcome::Failed(WcStatus::LocalProtection)));
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
}

/// A host is suspended while it fences a NIC, between two polls or within a poll. The time of the
/// suspension does not show that the NIC has stalled.
#[test]
fn host_pause_during_fence_does_not_reset_nic() {
    let pause = Duration::from_millis(100);
    for reading in std::iter::once(None).chain((0..24).map(Some)) {
        let mut pair = VqpPair::new(2, config());
        for i in 0..60 {
            pair.recv(0, i, 64); // one poll does not handle all flushed receives
            pair.recv(1, i, 64);
        }
        pair.poll_times(&[0, 1], 5);
        pair.memory[0].store(32768, 5);
        let faa = SendOp::FetchAdd { remote: pair.remote(0, 32768), add: 1 };
        pair.send(1, 1, faa, Data::sge(pair.mr[1].sge(32768, 8)));
        pair.link_down(0, 0);
        let clock = pair.testbed.nics[0][0].id();
        match reading {
            Some(reading) => pair.testbed.world.jump_clock_at_reading(clock, reading, pause),
            None => {
                pair.poll_times(&[0], 1);
                pair.testbed.world.run_for(pause);
            }
        }
        pair.poll_times(&[0, 1], 400);
        assert!(
            pair.testbed.nics[0][0].query_port().is_ok(),
            "pause at reading {reading:?}: a living NIC was reset"
        );
        assert_eq!(pair.outcome(1, 1, false), Some(Outcome::Success), "pause at reading {reading:?}");
        assert_eq!(pair.memory[1].load(32768), 5);
    }
}

/// An invalid rkey is an error of the request, not a failure of the rail.
#[test]
fn invalid_rkey_closes_both_ends_without_failover() {
    let mut pair = VqpPair::new(2, config());
    for i in 0..8 {
        pair.recv(1, i, 64);
    }
    let freed = Arc::new(Buffer::new(4096));
    let region = pair.vqps[1].domain().register(&freed, FULL_ACCESS).expect("the NICs have a free region");
    pair.vqps[0].import(&region.remote()).expect("the vQP is connected");
    pair.vqps[1].domain().deregister(&region).expect("the NICs confirm");
    pair.poll_times(&[0, 1], 5);
    pair.send(0, 1, SendOp::Write(pair.remote(1, 0)), inline(7));
    pair.send(0, 2, SendOp::Write(region.remote().at(0)), inline(8));
    pair.send(0, 3, SendOp::Write(pair.remote(1, 8)), inline(9));
    pair.poll_times(&[0, 1], 200);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
    assert_eq!(pair.outcome(0, 2, false), Some(Outcome::Failed(WcStatus::RemoteAccess)));
    assert_eq!(pair.outcome(0, 3, false), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!([pair.memory[1].load(0), pair.memory[1].load(8)], [7, 0]);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
    assert!(
        matches!(pair.vqps[1].close_reason(), Some(CloseReason::RequestError | CloseReason::PeerClosed)),
        "{:?}",
        pair.vqps[1].close_reason()
    );
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [0, 0]);
}

#[test]
fn failover_times_come_from_one_clock() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 5);
    for i in 0..8 {
        pair.send(0, i, SendOp::Write(pair.remote(1, i * 8)), inline(i + 1));
    }
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], 400);
    let report = pair.vqps[0].last_failover().expect("a failover took place");
    assert_eq!((report.cause, report.from, report.to), (Cause::Device, 0, 1));
    let completed = report.completed_at.expect("the failover has completed");
    assert!(report.detected_at <= report.fenced_at && report.fenced_at <= report.decided_at, "{report:?}");
    assert!(report.decided_at <= completed, "{report:?}");
}

/// Both links fail, at the same time or one after the other. Every outcome is true.
#[test]
fn failure_of_both_rails_closes_both_ends_in_time() {
    for gap in [0, 1, 2, 3, 5, 10, 40, 100, 400] {
        for second in [0, 1] {
            let mut c = config();
            c.detector.max_missed_heartbeats = 5;
            c.detector.heartbeat_interval = Duration::from_millis(1);
            c.peer_timeout = Duration::from_millis(200);
            let mut pair = VqpPair::new(2, c);
            pair.poll_times(&[0, 1], 5);
            for i in 0..40 {
                pair.send(0, i, SendOp::Write(pair.remote(1, i * 8)), inline(i + 1));
            }
            pair.link_down(0, 0);
            pair.poll_times(&[0, 1], gap);
            pair.link_down(second, 1);
            pair.poll_times(&[0, 1], 40 * 1200);
            let close_reasons = [pair.vqps[0].close_reason(), pair.vqps[1].close_reason()];
            assert!(close_reasons.iter().all(Option::is_some), "gap {gap}: {close_reasons:?}");
            for i in 0..40 {
                let outcome = pair.outcome(0, i, false);
                let written = pair.memory[1].load(i as usize * 8);
                match outcome {
                    Some(Outcome::Success) => assert_eq!(written, i + 1),
                    Some(Outcome::Failed(WcStatus::Flushed)) => assert_eq!(written, 0),
                    Some(Outcome::Unresolved(UnresolvedError::Undecided(_))) => {}
                    other => panic!("gap {gap}: operation {i} ended in {other:?}"),
                }
            }
        }
    }
}

/// Posts a READ of a word that is 1, and a fenced WRITE of 2 to the same word.
fn read_and_overwrite(pair: &mut VqpPair) {
    pair.poll_times(&[0, 1], 5);
    pair.memory[1].store(0, 1);
    pair.send(0, 1, SendOp::Read(pair.remote(1, 0)), Data::sge(pair.mr[0].sge(0, 8)));
    let fenced = SendWr::new(2, SendOp::Write(pair.remote(1, 0)), inline(2))
        .with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    pair.vqps[0].post_send(fenced).expect("the send queue has room");
}

/// The NIC of the requester dies when the fenced WRITE is executed and the data of the READ is not
/// in memory. A repeated READ would return the data of the WRITE.
#[test]
fn read_whose_data_is_lost_behind_a_fence_is_not_repeated() {
    let mut world = mitra_sim::Config::fault_free();
    world.memory.chunk_delay = DurationRange::micros(50, 50); // longer than the WRITE takes
    let mut pair = VqpPair::with_world(2, config(), world);
    let [requester, responder] = pair.testbed.rail(0);
    let dies = [(requester, Failure::NicDead)];
    pair.testbed.world.fail_at_stage(responder, Stage::Executed, 2, &dies, None);
    read_and_overwrite(&mut pair);
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.memory[1].load(0), 2);
    assert_ne!(pair.memory[0].load(0), 2, "the READ was repeated after the fenced WRITE");
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Unresolved(UnresolvedError::ValueLost)));
    let behind = Outcome::Unresolved(UnresolvedError::ExecutedBehindError);
    assert_eq!(pair.outcome(0, 2, false), Some(behind));
}

/// The completions of a READ and of the fenced WRITE behind it are written before the link fails.
/// The fence of the rail collects both completions.
#[test]
fn read_before_executed_fenced_write_keeps_its_data() {
    let mut pair = VqpPair::new(2, config());
    read_and_overwrite(&mut pair);
    pair.testbed.world.run_for(Duration::from_micros(60)); // both operations are executed, and no end has polled
    assert_eq!(pair.memory[1].load(0), 2);
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
    assert_eq!(pair.memory[0].load(0), 1, "the READ was repeated after the fenced WRITE");
}

/// The first end has moved and has sent the rest of a torn WRITE with immediate data. The second
/// end closes before it has completed its move. The second end does not know the length of the
/// whole message, and must not report the length of the rest.
#[test]
fn torn_message_completed_before_close_reports_no_length() {
    const LEN: usize = 40_000;
    let mut pair = VqpPair::new(2, config());
    pair.recv(1, 7, 0);
    pair.poll_times(&[0, 1], 5);
    pair.memory[0].write_at(0, &[0x55; LEN]);
    let whole = Data::sge(pair.mr[0].sge(0, LEN as u32));
    pair.send(0, 1, SendOp::WriteWithImm(pair.remote(1, 8192), 9), whole);
    while pair.memory[1].load(8192) == 0 {
        pair.testbed.world.run_for(Duration::from_nanos(500));
    }
    assert_eq!(pair.memory[1].load(8192 + LEN - 8), 0, "the message is no longer torn");
    pair.link_down(0, 0);
    pair.poll_times(&[0], 20); // the first end proposes the other rail
    pair.poll_times(&[1], 40); // the second end fences and sends its evidence
    pair.poll_times(&[0], 100);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
    pair.vqps[1].shutdown();
    pair.poll_times(&[1], 4);
    assert_eq!(pair.memory[1].load(8192 + LEN - 8), 0x5555_5555_5555_5555);
    assert_eq!(pair.outcome(1, 7, true), Some(Outcome::Unresolved(UnresolvedError::ValueLost)));
}

#[test]
fn polling_once_per_heartbeat_raises_no_alarm() {
    let mut c = config();
    c.detector.heartbeat_interval = Duration::from_millis(1);
    c.detector.max_missed_heartbeats = 3;
    let mut pair = VqpPair::new(2, c);
    pair.poll_times(&[0, 1], 10);
    for _ in 0..100 {
        pair.poll_times(&[0], 41); // a little more than 1 ms
        pair.vqps[1].poll(&mut pair.completions[1]);
    }
    assert_eq!(
        [pair.vqps[0].last_failover(), pair.vqps[1].last_failover()],
        [None, None],
        "an end declared a failure"
    );
    let due = pair.vqps[1].poll_timeout().expect("the next heartbeat is scheduled");
    assert!(
        due > pair.testbed.nics[1][0].now(),
        "the end has polled, and its next heartbeat is still overdue"
    );
}

/// The answer leaves before the `peer_timeout` of the peer.
#[test]
fn rarely_polling_end_answers_proposal() {
    let mut c = config();
    c.peer_timeout = Duration::from_millis(100);
    let mut pair = VqpPair::new(2, c);
    pair.poll_times(&[0, 1], 16);
    pair.link_down(0, 0);
    for _ in 0..40 {
        pair.poll_times(&[0], 400);
        pair.poll(&[1]);
    }
    assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None, None]);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1, 1]);
}

/// The end never polls. Its answer leaves before the `peer_timeout` of the peer.
#[test]
fn rarely_progressing_end_answers_proposal() {
    let mut c = config();
    c.peer_timeout = Duration::from_millis(35);
    let mut pair = VqpPair::new(2, c);
    pair.poll_times(&[0, 1], 16);
    pair.link_down(0, 0);
    for _ in 0..40 {
        pair.poll_times(&[0], 400);
        pair.vqps[1].progress();
    }
    assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None, None]);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1, 1]);
}

/// All operations are unsignalled.
#[test]
fn progress_alone_replays_and_sends_queued_operations() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    let post_unsignalled = |pair: &mut VqpPair, i: u64| {
        let wr = SendWr::new(i, SendOp::Write(pair.remote(1, i * 8)), inline(i + 1))
            .with_flags(SendFlags::empty());
        pair.vqps[0].post_send(wr).expect("the send queue has room");
    };
    pair.link_down(0, 0);
    (0..5).for_each(|i| post_unsignalled(&mut pair, i));
    for _ in 0..400 {
        pair.vqps[0].progress();
        pair.poll(&[1]);
    }
    assert_eq!(pair.vqps[0].active_rail(), 1);
    (5..45).for_each(|i| post_unsignalled(&mut pair, i));
    for _ in 0..400 {
        pair.vqps[0].progress();
        pair.poll(&[1]);
    }
    for i in 0..45 {
        assert_eq!(pair.memory[1].load(i as usize * 8), i + 1, "operation {i} was not sent");
    }
}

/// A request that no rail can execute has no effect on other requests.
#[test]
fn invalid_requests_are_refused_when_posted() {
    let mut pair = VqpPair::new(2, config());
    let (target, own_sge) = (pair.remote(1, 0), pair.mr[0].sge(0, 8));
    let (wide_sge, long_sge) = (pair.mr[0].sge(0, 16), pair.mr[0].sge(0, 1 << 31));
    let ah = UdDestination { ah: AhId(0), qpn: pair.vqps[1].qpn(), qkey: 0 };
    for wr in [
        SendWr::new(1, SendOp::Read(target), inline(0)),
        SendWr::new(2, SendOp::FetchAdd { remote: target, add: 1 }, inline(0)),
        SendWr::new(3, SendOp::FetchAdd { remote: target, add: 1 }, Data::sge(wide_sge)),
        SendWr::new(4, SendOp::CompareSwap { remote: target, compare: 0, swap: 1 }, Data::empty()),
        SendWr::new(5, SendOp::Write(target), Data::sge(long_sge)),
        SendWr::new(6, SendOp::Write(target), Data::sge(own_sge)).to(ah),
    ] {
        assert!(pair.vqps[0].post_send(wr).is_err());
        pair.poll_times(&[0, 1], 5);
        assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None, None]);
    }
    let too_many_sges = RecvWr { wr_id: 1, sges: [own_sge; 17].into_iter().collect() };
    assert!(pair.vqps[0].post_recv(too_many_sges).is_err(), "the receive would block all later receives");
    assert!(pair.vqps[0].post_recv(RecvWr { wr_id: 1, sges: [long_sge; 2].into_iter().collect() }).is_err());
    pair.recv(0, 2, 64);
    pair.send(1, 9, SendOp::Send, inline(7));
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 2, true), Some(Outcome::Success));
    assert_eq!((pair.vqps[0].outstanding(), pair.completions[0].len()), (0, 1));
}

/// The responder's refusal is in the completion queue when the link fails and the responder's
/// Closed message arrives. A post handles both before the completion is polled.
#[test]
fn refusal_that_arrived_before_the_fence_decides_its_request() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 200);
    pair.vqps[1].set_access(Access::REMOTE_READ).unwrap();
    pair.link_down(1, 0);
    pair.send_write(1, 0, 7);
    pair.poll_times(&[0], 100);
    pair.link_up(1, 0);
    pair.testbed.world.run_for(Duration::from_millis(4)); // the request is sent again, and refused
    pair.poll_times(&[1], 20);
    assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::RequestError));
    pair.link_down(0, 0);
    pair.send_write(2, 8, 7);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerClosed), "the post ran no maintenance");
    pair.poll_times(&[0], 20);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::RemoteInvalidRequest)));
}

/// The application posts more atomics than the responder saves results for, and polls no completion
/// before the link fails. The requester gives its NIC no more atomics than the responder saves
/// results for. So the results whose acknowledgements are lost are still saved.
#[test]
fn unpolled_atomics_do_not_displace_saved_results() {
    const ATOMICS: u64 = 12;
    for nth in [1, 2] {
        let mut pair = VqpPair::new(2, Config { rd_atomic: 2, ..config() });
        pair.poll_times(&[0, 1], 5);
        let [a, b] = pair.testbed.rail(0);
        pair.testbed.world.fail_at_stage(b, Stage::AckOnWire, nth, &[(a, Failure::LinkDown)], None);
        for i in 0..ATOMICS {
            let add = SendOp::FetchAdd { remote: pair.remote(1, 0), add: 1 };
            pair.send(0, i, add, Data::sge(pair.mr[0].sge(64 + 8 * i, 8)));
        }
        pair.testbed.world.run_for(Duration::from_millis(1));
        let executed = pair.memory[1].load(0);
        assert!((1..=2).contains(&executed), "{executed} are executed, {nth}");
        pair.poll_times(&[0, 1], 4000);
        for i in 0..ATOMICS {
            assert_eq!(pair.outcome(0, i, false), Some(Outcome::Success), "atomic {i}, {nth}");
            assert_eq!(pair.memory[0].load(64 + 8 * i as usize), i);
        }
        assert_eq!((pair.memory[1].load(0), pair.vqps[0].active_rail()), (ATOMICS, 1));
    }
}
