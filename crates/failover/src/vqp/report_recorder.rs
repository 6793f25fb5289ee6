use std::sync::Arc;

use mitra_verbs::Time;

use crate::ballot::Ballot;
use crate::cause::Cause;
use crate::failover_report::FailoverReport;
use crate::ledger::RecoveryStats;
use crate::telemetry::{RecoverySpan, VqpTelemetry};

/// Records the reports of the failover in progress and of the last failover, and passes them to the
/// telemetry.
#[derive(Debug)]
pub(super) struct ReportRecorder {
    telemetry: Arc<VqpTelemetry>,
    /// Present until the last operation that was in flight has completed.
    span: Option<RecoverySpan>,
    current: Option<FailoverReport>,
    pub(super) last: Option<FailoverReport>,
}

impl ReportRecorder {
    pub(super) fn new(telemetry: Arc<VqpTelemetry>) -> ReportRecorder {
        ReportRecorder { telemetry, span: None, current: None, last: None }
    }

    /// Starts a report of the failure of `rail`. No report is in progress.
    pub(super) fn on_detected(&mut self, rail: usize, cause: Cause, now: Time) {
        let report = FailoverReport {
            epoch: 0,
            from: rail,
            to: rail,
            cause,
            stats: RecoveryStats::default(),
            detected_at: now,
            fence_began_at: now,
            fenced_at: now,
            evidence_at: now,
            decided_at: now,
            completed_at: None,
        };
        self.telemetry.on_detected(&report);
        self.span = Some(RecoverySpan::on_detected(self.telemetry.live().qpn(), &report));
        self.current = Some(report);
    }

    pub(super) fn discard(&mut self) {
        if let Some(current) = self.current.take() {
            self.telemetry.live().note_discarded(current.from);
            if let Some(span) = self.span.take() {
                span.on_discarded();
            }
        }
    }

    pub(super) fn on_fence_began(&mut self, now: Time) {
        if let Some(current) = &mut self.current {
            current.fence_began_at = now;
            if let Some(span) = &mut self.span {
                span.on_fence_began(current);
            }
        }
    }

    pub(super) fn on_fenced(&mut self, now: Time) {
        if let Some(current) = &mut self.current {
            current.fenced_at = now;
            self.telemetry.on_fenced(current);
            if let Some(span) = &mut self.span {
                span.on_fenced(current);
            }
        }
    }

    pub(super) fn on_evidence(&mut self, now: Time) {
        if let Some(current) = &mut self.current {
            current.evidence_at = now;
        }
    }

    /// Completes the report in progress, except for `completed_at`, and stores it as the last
    /// report.
    pub(super) fn on_decided(
        &mut self,
        now: Time,
        (from, to): (usize, usize),
        ballot: Ballot,
        stats: RecoveryStats,
    ) {
        if let Some(current) = self.current.take() {
            let report = FailoverReport { epoch: ballot.epoch, from, to, stats, decided_at: now, ..current };
            self.telemetry.on_decided(&report, ballot);
            if let Some(span) = &mut self.span {
                span.on_decided(&report, ballot);
            }
            self.last = Some(report);
        }
    }

    /// Completes the last failover. Its replay has ended.
    pub(super) fn on_recovered(&mut self, now: Time) {
        if let Some(last) = &mut self.last {
            last.completed_at = Some(now);
            self.telemetry.on_recovered(last, now);
            if self.current.is_none()
                && let Some(span) = self.span.take()
            {
                span.on_recovered(now);
            }
        }
    }
}
