use mitra_verbs::{Qpn, Time};
use tracing::field::Empty;
use tracing::{Span, info, info_span};

use crate::ballot::Ballot;
use crate::cause::Cause;
use crate::failover_report::FailoverReport;

/// The `tracing` spans of one failover: `recovery`, and in it one of `negotiate`, `fence`, `decide`
/// and `replay` at a time. Without a subscriber for the target `mitra_failover::recovery`, they
/// cost a comparison.
#[derive(Debug)]
pub(crate) struct RecoverySpan {
    recovery: Span,
    /// Ends the span of the phase when it is dropped.
    phase: Span,
    qpn: Qpn,
    detected_at: Time,
}

macro_rules! step {
    ($span:expr, $now:expr, $($text:tt)+) => {
        info!(
            target: "mitra_failover::recovery",
            parent: &$span.recovery,
            "queue pair {}: {:?}: {}",
            $span.qpn,
            $now.saturating_since($span.detected_at),
            format_args!($($text)+)
        )
    };
}

macro_rules! phase {
    ($recovery:expr, $name:literal) => {
        info_span!(target: "mitra_failover::recovery", parent: &$recovery, $name)
    };
}

/// Ends the span of the current phase before it begins the next one.
macro_rules! next_phase {
    ($span:expr, $name:literal) => {{
        $span.phase = Span::none();
        $span.phase = phase!($span.recovery, $name);
    }};
}

impl RecoverySpan {
    pub(crate) fn on_detected(qpn: Qpn, report: &FailoverReport) -> RecoverySpan {
        let recovery = info_span!(
            target: "mitra_failover::recovery",
            parent: None,
            "recovery",
            vqp = qpn.value(),
            rail = report.from,
            cause = %report.cause,
            to = Empty,
            ballot = Empty,
            in_flight = Empty,
            executed = Empty,
            replayed = Empty,
            failed = Empty,
            outcome = Empty,
        );
        let phase = phase!(recovery, "negotiate");
        let span = RecoverySpan { recovery, phase, qpn, detected_at: report.detected_at };
        match report.cause {
            Cause::Failback => {
                step!(span, report.detected_at, "leaves rail {}: {}", report.from, report.cause)
            }
            cause => step!(span, report.detected_at, "rail {} failed: {cause}", report.from),
        }
        span
    }

    pub(crate) fn on_fence_began(&mut self, report: &FailoverReport) {
        next_phase!(self, "fence");
        step!(self, report.fence_began_at, "the fence of rail {} begins", report.from);
    }

    pub(crate) fn on_fenced(&mut self, report: &FailoverReport) {
        next_phase!(self, "decide");
        step!(self, report.fenced_at, "rail {} is fenced", report.from);
    }

    pub(crate) fn on_decided(&mut self, report: &FailoverReport, ballot: Ballot) {
        let stats = &report.stats;
        self.recovery.record("to", report.to).record("ballot", tracing::field::display(ballot));
        self.recovery.record("in_flight", stats.in_flight).record("executed", stats.executed);
        self.recovery.record("replayed", stats.replayed).record("failed", stats.failed);
        next_phase!(self, "replay");
        step!(
            self,
            report.decided_at,
            "decided by ballot {}: of {} operations in flight {} executed, {} replayed, {} failed; moves to rail {}",
            ballot,
            stats.in_flight,
            stats.executed,
            stats.replayed,
            stats.failed,
            report.to
        );
    }

    pub(crate) fn on_recovered(mut self, completed_at: Time) {
        self.phase = Span::none();
        self.recovery.record("outcome", "recovered");
        step!(self, completed_at, "every operation that was in flight has completed");
    }

    /// The failover does not take place: the rail works again, or the vQP has closed.
    pub(crate) fn on_discarded(self) {
        self.recovery.record("outcome", "discarded");
    }
}
