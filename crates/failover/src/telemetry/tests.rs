//! What each step of a failover adds to the counts, the histograms and the events.

use mitra_verbs::Qpn;

use super::*;
use crate::cause::Cause;
use crate::ledger::RecoveryStats;

fn at(micros: u64) -> Time {
    Time::from_nanos(1000 * micros)
}

/// A failover whose phases take 1, 2, 4 and 8 µs.
fn report(from: usize, to: usize) -> FailoverReport {
    FailoverReport {
        epoch: 2,
        from,
        to,
        cause: Cause::Device,
        stats: RecoveryStats { in_flight: 3, replayed: 2, executed: 1, ..RecoveryStats::default() },
        detected_at: at(10),
        fence_began_at: at(11),
        fenced_at: at(13),
        evidence_at: at(14),
        decided_at: at(17),
        completed_at: None,
    }
}

const BALLOT: Ballot = Ballot { epoch: 2, proposer: Role::One };

fn fields(qpn: u32, phase: VqpPhase) -> PublishedFields {
    PublishedFields {
        qpn: Qpn::new(qpn),
        phase,
        active_rail: 0,
        epoch: 1,
        posted: 0,
        completed: 0,
        rejected_messages: 0,
        now: at(20),
        close_reason: None,
    }
}

fn events(telemetry: &Telemetry) -> Vec<(u64, Time, EventKind)> {
    telemetry.snapshot(9).events.iter().map(|event| (event.number, event.at, event.kind)).collect()
}

fn fail_over(vqp: &VqpTelemetry, from: usize, to: usize) {
    let report = report(from, to);
    vqp.on_detected(&FailoverReport { to: from, ..report });
    vqp.on_fenced(&FailoverReport { to: from, ..report });
    vqp.on_decided(&report, BALLOT);
    vqp.on_recovered(&report, at(25));
}

#[test]
fn each_step_is_counted_once_at_its_rail_and_is_one_event() {
    let telemetry = Arc::new(Telemetry::default());
    let vqp = telemetry.add_vqp();
    vqp.publish(&fields(7, VqpPhase::Active));
    let of = |snapshot: &TelemetrySnapshot| (snapshot.vqps[0].counts, snapshot.rails[0], snapshot.rails[1]);
    let mut expected = FailoverCounts::default();
    let untouched = expected;
    let report = report(0, 1);

    expected.detected[1] = 1;
    vqp.on_detected(&FailoverReport { to: 0, ..report });
    assert_eq!(of(&telemetry.snapshot(1)), (expected, expected, untouched));
    expected.fenced = 1;
    vqp.on_fenced(&FailoverReport { to: 0, ..report });
    assert_eq!(of(&telemetry.snapshot(1)), (expected, expected, untouched));
    expected.add_decision(&report.stats);
    vqp.on_decided(&report, BALLOT);
    assert_eq!(of(&telemetry.snapshot(1)), (expected, expected, untouched));
    expected.recovered = 1;
    vqp.on_recovered(&report, at(25));
    let snapshot = telemetry.snapshot(1);
    assert_eq!(of(&snapshot), (expected, expected, untouched));

    let (duration, stats) = (Duration::from_micros(15), report.stats);
    assert_eq!(
        events(&telemetry),
        [
            (1, at(10), EventKind::Detected { rail: 0, cause: Cause::Device }),
            (2, at(13), EventKind::Fenced { rail: 0 }),
            (3, at(17), EventKind::Decided { from: 0, to: 1, ballot: BALLOT, is_failback: false, stats }),
            (4, at(25), EventKind::Recovered { rail: 1, duration }),
        ]
    );
    assert!(snapshot.events.iter().all(|event| event.vqp == Qpn::new(7)));
    let durations = snapshot.durations.phases().map(|(name, phase)| (name, phase.count(), phase.sum()));
    let micros = Duration::from_micros;
    assert_eq!(
        durations,
        [
            ("negotiate", 1, micros(1)),
            ("fence", 1, micros(2)),
            ("decide", 1, micros(4)),
            ("replay", 1, micros(8)),
            ("total", 1, micros(15))
        ]
    );
}

#[test]
fn only_a_move_to_a_rail_that_was_left_is_a_failback() {
    let telemetry = Arc::new(Telemetry::default());
    let (first, second) = (telemetry.add_vqp(), telemetry.add_vqp());
    fail_over(&first, 0, 0);
    fail_over(&first, 0, 0);
    fail_over(&first, 0, 1);
    fail_over(&second, 1, 0);
    let failbacks = || telemetry.snapshot(9).rails.iter().map(|rail| rail.failbacks).collect::<Vec<_>>();
    assert_eq!(
        failbacks()[..2],
        [0, 0],
        "queue pairs replaced in place, and rails that each vQP has not left"
    );
    fail_over(&first, 1, 0);
    assert_eq!(failbacks()[..2], [1, 0], "at the new rail");
    let is_failback =
        |(.., kind): (u64, Time, EventKind)| matches!(kind, EventKind::Decided { is_failback: true, .. });
    assert_eq!(events(&telemetry).into_iter().filter(|event| is_failback(*event)).count(), 1);
}

#[test]
fn discarded_report_is_a_stay_unless_the_vqp_has_closed() {
    let telemetry = Arc::new(Telemetry::default());
    let (stays, closes) = (telemetry.add_vqp(), telemetry.add_vqp());
    stays.live().note_discarded(1);
    stays.publish(&fields(1, VqpPhase::Active));
    stays.publish(&fields(1, VqpPhase::Active));
    closes.live().note_discarded(1);
    let reason = CloseReason::NoRail;
    for _ in 0..2 {
        closes.publish(&PublishedFields { close_reason: Some(reason), ..fields(2, VqpPhase::Closed) });
    }
    assert_eq!(
        events(&telemetry),
        [(1, at(20), EventKind::Stayed { rail: 1 }), (2, at(20), EventKind::Closed { reason })]
    );
    let snapshot = telemetry.snapshot(9);
    assert_eq!([snapshot.rails[0].stayed, snapshot.rails[1].stayed], [0, 1]);
    assert_eq!(snapshot.closed, BTreeMap::from([(reason, 1)]));
}

#[test]
fn vqps_with_a_failover_in_progress_come_first_and_are_counted_beyond_the_limit() {
    let telemetry = Arc::new(Telemetry::default());
    let phases = [VqpPhase::Active, VqpPhase::Active, VqpPhase::Replaying, VqpPhase::Recovering];
    let vqps: Vec<_> = phases.iter().map(|_| telemetry.add_vqp()).collect();
    for (i, phase) in phases.into_iter().enumerate() {
        vqps[i].publish(&fields(10 + i as u32, phase));
    }
    fail_over(&vqps[1], 0, 1);
    fail_over(&vqps[3], 0, 1);
    let listed = |max| telemetry.snapshot(max).vqps.iter().map(|vqp| vqp.qpn.value()).collect::<Vec<_>>();
    assert_eq!(listed(9), [13, 12, 11, 10]);
    assert_eq!(listed(1), [13]);
    assert_eq!((telemetry.snapshot(1).recovering, telemetry.snapshot(0).recovering), (2, 2));
    drop(vqps);
    assert_eq!((telemetry.snapshot(9).vqp_count, telemetry.snapshot(9).rails[0].failovers), (0, 2));
}

#[test]
fn oldest_events_are_dropped() {
    let telemetry = Arc::new(Telemetry::default());
    let vqp = telemetry.add_vqp();
    for _ in 0..MAX_EVENTS / 4 + 1 {
        fail_over(&vqp, 0, 1);
    }
    let events = events(&telemetry);
    assert_eq!((events.len(), events[0].0, events[0].1), (MAX_EVENTS, 5, at(10)));
    assert_eq!(events[MAX_EVENTS - 1].0, MAX_EVENTS as u64 + 4);
}
