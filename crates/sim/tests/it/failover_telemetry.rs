//! What vQPs publish for monitoring: counts, events and durations of failovers, and latency
//! samples.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use mitra_failover::telemetry::{EventKind, MAX_EVENTS, TelemetrySnapshot, VqpPhase};
use mitra_failover::{Cause, CloseReason, Config, Outcome, VirtualQp};

use crate::vqp_pair::{VqpPair, config};
use mitra_verbs::{Data, SendOp};

fn snapshot(vqp: &VirtualQp) -> TelemetrySnapshot {
    vqp.domain().telemetry().snapshot(10)
}

fn kinds(snapshot: &TelemetrySnapshot) -> Vec<&'static str> {
    let name = |kind: EventKind| match kind {
        EventKind::Detected { .. } => "detected",
        EventKind::Stayed { .. } => "stayed",
        EventKind::Fenced { .. } => "fenced",
        EventKind::Decided { .. } => "decided",
        EventKind::Recovered { .. } => "recovered",
        EventKind::Closed { .. } => "closed",
    };
    snapshot.events.iter().map(|event| name(event.kind)).collect()
}

#[test]
fn failover_ends_with_the_operations_that_were_in_flight_when_it_was_detected() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 20);
    pair.send_write(1, 0, 1);
    pair.link_down(0, 0);
    while pair.vqps[0].is_active() {
        pair.poll(&[0]);
    }
    // The peer has no receive for this message, so it stays outstanding.
    pair.send(0, 2, SendOp::Send, Data::inline(&[2; 8]));
    pair.poll_times(&[0, 1], 400);
    let report = pair.vqps[0].last_failover().expect("the vQP has moved");
    assert!(report.completed_at.is_some());
    assert_eq!((pair.outcome(0, 1, false), pair.outcome(0, 2, false)), (Some(Outcome::Success), None));
}

#[test]
fn failover_is_counted_and_its_steps_are_events_in_order() {
    let mut pair = VqpPair::new(2, config());
    for i in 0..10 {
        pair.send_write(i, i * 8, i);
    }
    pair.poll_times(&[0, 1], 20);
    for i in 10..14 {
        pair.send_write(i, i * 8, i);
    }
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], 200);
    assert!((0..14).all(|i| pair.outcome(0, i, false) == Some(Outcome::Success)));

    let report = pair.vqps[0].last_failover().expect("the vQP has moved");
    let snapshot = snapshot(&pair.vqps[0]);
    assert_eq!(kinds(&snapshot), ["detected", "fenced", "decided", "recovered"]);
    assert!(snapshot.events.is_sorted_by_key(|event| (event.number, event.at)));
    assert!(snapshot.events.iter().all(|event| event.vqp == pair.vqps[0].qpn()));
    assert_eq!(snapshot.events[0].kind, EventKind::Detected { rail: 0, cause: report.cause });
    assert_eq!(snapshot.events[1].kind, EventKind::Fenced { rail: 0 });
    let EventKind::Decided { from: 0, to: 1, ballot, is_failback: false, stats } = snapshot.events[2].kind
    else {
        panic!("{:?}", snapshot.events[2])
    };
    assert_eq!((ballot.epoch, stats), (2, report.stats));

    let [vqp] = snapshot.vqps[..] else { panic!("one vQP: {:?}", snapshot.vqps) };
    assert_eq!((vqp.phase, vqp.active_rail, vqp.epoch), (VqpPhase::Active, 1, 2));
    assert_eq!((vqp.posted, vqp.completed), (14, 14));
    assert_eq!(vqp.qpn, pair.vqps[0].qpn());
    let counts = vqp.counts;
    assert_eq!(counts.detected.iter().sum::<u64>(), 1);
    assert_eq!(counts.detected[report.cause.detector().expect("a failure")], 1);
    assert_eq!((counts.fenced, counts.failovers, counts.recovered), (1, 1, 1));
    assert_eq!((counts.failbacks, counts.stayed), (0, 0));
    assert_eq!(counts.in_flight, u64::from(report.stats.in_flight));
    assert_eq!(counts.executed, u64::from(report.stats.executed));
    assert_eq!(counts.replayed, u64::from(report.stats.replayed));
    assert!(counts.in_flight > 0 && counts.replayed + counts.executed > 0, "{counts:?}");
    assert_eq!(snapshot.rails[0], counts, "the totals of the old rail");
    assert_eq!(snapshot.rails[1], Default::default());

    let completed_at = report.completed_at.expect("all operations have completed");
    for (histogram, duration) in [
        (snapshot.durations.negotiate, report.fence_began_at - report.detected_at),
        (snapshot.durations.fence, report.fenced_at - report.fence_began_at),
        (snapshot.durations.decide, report.decided_at - report.fenced_at),
        (snapshot.durations.replay, completed_at - report.decided_at),
        (snapshot.durations.total, completed_at - report.detected_at),
    ] {
        assert_eq!((histogram.count(), histogram.sum()), (1, duration));
    }
}

#[test]
fn move_to_a_rail_that_was_left_is_a_failback() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair.fail_over(200);
    pair.fail_over(200);
    assert_eq!(pair.vqps[0].active_rail(), 0);
    let snapshot = snapshot(&pair.vqps[0]);
    let failbacks = snapshot.rails.iter().map(|rail| rail.failbacks).collect::<Vec<_>>();
    assert_eq!(failbacks[..2], [1, 0], "the failback belongs to the new rail");
    assert_eq!([snapshot.rails[0].failovers, snapshot.rails[1].failovers], [1, 1]);
    assert_eq!((snapshot.vqps[0].counts.failovers, snapshot.vqps[0].counts.failbacks), (2, 1));
    let is_failback: Vec<bool> = snapshot
        .events
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Decided { is_failback, .. } => Some(is_failback),
            _ => None,
        })
        .collect();
    assert_eq!(is_failback, [false, true]);
}

#[test]
fn closing_is_an_event_once_and_a_dropped_vqp_leaves_its_totals() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair.fail_over(200);
    let telemetry = Arc::clone(pair.vqps[1].domain().telemetry());
    pair.vqps[0].shutdown();
    pair.poll_times(&[0, 1], 40);
    pair.vqps[0].close().expect("the NICs confirm");
    assert_eq!(snapshot(&pair.vqps[0]).closed, BTreeMap::from([(CloseReason::Closed, 1)]));
    let before = telemetry.snapshot(10);
    assert_eq!(before.closed, BTreeMap::from([(CloseReason::PeerClosed, 1)]));
    assert_eq!(before.vqps[0].phase, VqpPhase::Closed);
    let reason = CloseReason::PeerClosed;
    assert_eq!(before.events.last().map(|event| event.kind), Some(EventKind::Closed { reason }));
    assert_eq!(kinds(&before).iter().filter(|kind| **kind == "closed").count(), 1);
    drop(pair);
    let after = telemetry.snapshot(10);
    assert_eq!((after.vqp_count, after.vqps.len()), (0, 0));
    assert_eq!(after.rails, before.rails);
    assert_eq!(after.rails[0].failovers, 1);
}

/// `mitra watch` showed the uptime of the machine as the age of this event.
#[test]
fn closing_of_a_vqp_that_was_never_polled_has_the_time_of_the_closing() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    let domain = Arc::clone(pair.vqps[0].domain());
    let made_at = pair.testbed.world.now();
    let mut vqp = VirtualQp::builder(&domain).build().expect("the NICs have room");
    pair.poll_times(&[0, 1], 10);
    let published = domain.telemetry().snapshot(10).vqps;
    let published = published.iter().find(|published| published.qpn == vqp.qpn()).expect("it has its number");
    assert_eq!((published.phase, published.published_at), (VqpPhase::Unconnected, made_at));
    let closed_at = pair.testbed.world.now();
    assert!(closed_at > made_at);
    vqp.close().expect("the NICs confirm");
    let snapshot = domain.telemetry().snapshot(10);
    let event = snapshot.events.last().expect("the closing");
    let kind = EventKind::Closed { reason: CloseReason::Closed };
    assert_eq!((event.kind, event.vqp, event.at), (kind, vqp.qpn(), closed_at));
}

#[test]
fn failover_has_recovered_when_its_last_operation_completes() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    // The second message waits for a receive.
    pair.recv(1, 0, 8);
    pair.send_message(0, 1);
    pair.send_message(1, 2);
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], 200);
    let counts = |pair: &VqpPair| snapshot(&pair.vqps[0]).vqps[0].counts;
    assert_eq!(pair.received_ids(), [0]);
    assert_eq!((counts(&pair).failovers, counts(&pair).recovered), (1, 0));
    pair.recv(1, 1, 8);
    pair.poll_times(&[0, 1], 200);
    assert_eq!(pair.received_ids(), [0, 1]);
    assert_eq!((counts(&pair).failovers, counts(&pair).recovered), (1, 1));
}

#[test]
fn failure_during_which_the_vqp_closes_is_no_stay() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 1);
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 0);
    for _ in 0..20 {
        if snapshot(&pair.vqps[0]).recovering == 0 {
            pair.poll(&[0, 1]);
        }
    }
    assert_eq!(snapshot(&pair.vqps[0]).recovering, 1);
    pair.vqps[0].close().expect("the NICs confirm");
    assert_eq!(kinds(&snapshot(&pair.vqps[0])), ["detected", "closed"]);
}

/// The link comes back before the vQP can move, because no other rail is usable.
#[test]
fn failure_without_a_move_is_counted_as_stayed() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 1);
    pair.poll_times(&[0, 1], 10);
    pair.link_down(0, 0);
    for _ in 0..20 {
        if snapshot(&pair.vqps[0]).recovering == 0 {
            pair.poll(&[0, 1]);
        }
    }
    assert_eq!(snapshot(&pair.vqps[0]).vqps[0].phase, VqpPhase::Recovering);
    assert_eq!(snapshot(&pair.vqps[0]).recovering, 1);
    pair.link_up(0, 0);
    pair.poll_times(&[0, 1], 100);
    let snapshot = snapshot(&pair.vqps[0]);
    assert_eq!(kinds(&snapshot)[..2], ["detected", "stayed"]);
    assert_eq!(snapshot.events[0].kind, EventKind::Detected { rail: 0, cause: Cause::Device });
    assert_eq!((snapshot.rails[0].stayed, snapshot.rails[0].failovers), (1, 0));
    assert_eq!((snapshot.recovering, snapshot.vqps[0].phase), (0, VqpPhase::Active));
}

#[test]
fn events_are_bounded_and_numbered() {
    // The pauses between moves stay short.
    let mut pair = VqpPair::new(2, Config { peer_timeout: Duration::from_millis(20), ..config() });
    pair.poll_times(&[0, 1], 10);
    let moves = MAX_EVENTS / 4 + 2;
    for _ in 0..moves {
        pair.fail_over(200);
    }
    let snapshot = snapshot(&pair.vqps[0]);
    assert_eq!(snapshot.vqps[0].counts.failovers, moves as u64);
    assert_eq!(snapshot.events.len(), MAX_EVENTS);
    assert!(snapshot.events[0].number > 1, "the oldest events were dropped");
    let numbers = snapshot.events.iter().map(|event| event.number);
    assert!(numbers.clone().zip(numbers.skip(1)).all(|(a, b)| b == a + 1));
}

#[test]
fn latencies_are_sampled_only_on_request() {
    let mut pair = VqpPair::new(2, config());
    let telemetry = Arc::clone(pair.vqps[0].domain().telemetry());
    pair.poll_times(&[0, 1], 10);
    pair.send_write(0, 0, 1);
    pair.poll_times(&[0, 1], 20);
    assert_eq!(telemetry.snapshot(1).latency.count(), 0);
    telemetry.sample_latency(true);
    pair.poll_times(&[0, 1], 10);
    for i in 1..4 {
        pair.send_write(i, 0, 1);
        pair.send_write(100 + i, 0, 1); // not measured, because the first one is
        pair.poll_times(&[0, 1], 20);
    }
    let sampled = telemetry.snapshot(1);
    assert!(sampled.samples_latency);
    assert_eq!(sampled.latency.count(), 3);
    assert!(sampled.latency.quantile(1.0).is_some_and(|latency| !latency.is_zero()));
    telemetry.sample_latency(false);
    pair.poll_times(&[0, 1], 10);
    pair.send_write(9, 0, 1);
    pair.poll_times(&[0, 1], 20);
    assert_eq!(telemetry.snapshot(1).latency.count(), 3);
}

#[test]
fn snapshot_lists_at_most_the_given_number_of_vqps_busiest_first() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    let domain = Arc::clone(pair.vqps[0].domain());
    let others: Vec<_> =
        (0..3).map(|_| VirtualQp::builder(&domain).build().expect("the NICs have room")).collect();
    pair.fail_over(200);
    let all = domain.telemetry().snapshot(10);
    assert_eq!((all.vqp_count, all.vqps.len()), (4, 4));
    assert_eq!(all.vqps[0].qpn, pair.vqps[0].qpn(), "it has moved most often");
    assert!(all.vqps[1..].iter().all(|vqp| vqp.phase == VqpPhase::Unconnected));
    let two = domain.telemetry().snapshot(2);
    assert_eq!((two.vqp_count, &two.vqps[..]), (4, &all.vqps[..2]));
    drop(others);
    assert_eq!(domain.telemetry().snapshot(2).vqp_count, 1);
}
