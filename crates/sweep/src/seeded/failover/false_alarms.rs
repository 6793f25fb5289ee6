//! The count of false alarms: moves away from a rail that an end took for failed because it heard
//! nothing, although no fault had affected the rail.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mitra_failover::{Cause, Config as VqpConfig, FailoverReport};
use mitra_sim::AppContext;
use mitra_sim::workload::FailoverQp;
use mitra_verbs::{Provider, Time, WcStatus};

use super::setup::Setup;

/// The moves of one connection, by epoch: what the end that detected the failure first took for
/// its sign.
#[derive(Clone, Default, Debug)]
pub(super) struct Moves(Rc<RefCell<BTreeMap<u16, Move>>>);

#[derive(Clone, Copy, Debug)]
struct Move {
    detected: Time,
    is_false_alarm: bool,
}

impl Moves {
    /// Records a decided move of an end. `is_peer_gone` says whether the other end has closed.
    pub(super) fn record(
        &self,
        report: &FailoverReport,
        detection_time: Duration,
        is_peer_gone: bool,
        clock: &dyn Provider,
        ctx: &AppContext<'_>,
    ) {
        // The end that is told of a failure did not detect it, and a failback is none.
        if matches!(report.cause, Cause::Peer | Cause::Failback) {
            return;
        }
        // The clock of a NIC has an origin of its own.
        let ago = clock.now().saturating_since(report.detected_at);
        let is_affected = ctx.was_rail_affected(report.from as u8, ago, detection_time);
        let detected = Time::ZERO + ctx.now().saturating_since(Time::ZERO + ago);
        let is_false_alarm = !is_affected && !is_peer_gone && leaves_silent_rail(report);
        self.note(report.epoch, Move { detected, is_false_alarm });
    }

    /// The queue pair of the end that detects second may fail because the first end has stopped its
    /// own, so only the first counts.
    fn note(&self, epoch: u16, this: Move) {
        let mut moves = self.0.borrow_mut();
        let first = moves.entry(epoch).or_insert(this);
        if this.detected < first.detected {
            *first = this;
        }
    }

    pub(super) fn false_alarms(&self) -> u64 {
        self.0.borrow().values().filter(|made| made.is_false_alarm).count() as u64
    }
}

fn leaves_silent_rail(report: &FailoverReport) -> bool {
    let is_silence = matches!(report.cause, Cause::Silence | Cause::Completion(WcStatus::RetryExceeded));
    is_silence && report.from != report.to
}

/// The longest time after the last packet from the peer in which an end takes a rail for failed. A
/// fault longer ago than this is no reason for a move.
pub(super) fn detection_time(setup: &Setup) -> Duration {
    let of_end = |config: VqpConfig| {
        let detector = config.detector;
        let heartbeats = detector.heartbeat_interval * (detector.max_missed_heartbeats + 1);
        let timeout = detector.local_ack_timeout.as_duration().unwrap_or_default();
        heartbeats.max(timeout * 4 * (u32::from(detector.retry_cnt) + 1))
    };
    setup.configs().map(of_end).into_iter().max().unwrap_or_default()
}

/// Returns the report of the last move, if it is later than `epoch`.
pub(super) fn new_move<Q: FailoverQp>(qp: &Q, epoch: u16) -> Option<FailoverReport> {
    qp.last_failover().filter(|report| report.epoch > epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_that_detected_first_decides_whether_a_move_was_a_false_alarm() {
        let moves = Moves::default();
        let made = |micros: u64, is_false_alarm| Move {
            detected: Time::ZERO + Duration::from_micros(micros),
            is_false_alarm,
        };
        for (epoch, first, second) in [
            (2, made(10, true), made(20, false)),
            (3, made(20, true), made(10, false)),
            (4, made(30, false), made(40, true)),
            (5, made(50, true), made(60, true)),
        ] {
            moves.note(epoch, first);
            moves.note(epoch, second);
        }
        assert_eq!(moves.false_alarms(), 2, "{moves:?}");
    }
}
