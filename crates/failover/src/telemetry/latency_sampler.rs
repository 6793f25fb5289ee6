use mitra_verbs::Time;

use super::VqpTelemetry;

/// Measures the latency of one send at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LatencySampler {
    is_on: bool,
    /// The send that is measured: its sequence number, and the time of its post.
    measured: Option<(u64, Time)>,
}

impl LatencySampler {
    pub(crate) fn switch(&mut self, on: bool) {
        self.is_on = on;
        if !on {
            self.measured = None;
        }
    }

    /// Forgets the send that is measured if it is this one or a later one: those sends are not
    /// posted after all.
    pub(crate) fn truncate(&mut self, from: u64) {
        self.measured = self.measured.filter(|&(seq, _)| seq < from);
    }

    /// Records the post of a send, which is measured if none is.
    #[inline]
    pub(crate) fn on_post(&mut self, seq: u64, now: impl FnOnce() -> Time) {
        if self.is_on && self.measured.is_none() {
            self.measured = Some((seq, now()));
        }
    }

    /// Records that all sends before `first_seq` have completed.
    #[inline]
    pub(crate) fn on_poll(&mut self, first_seq: u64, telemetry: &VqpTelemetry, now: impl FnOnce() -> Time) {
        if let Some((seq, posted_at)) = self.measured
            && first_seq > seq
        {
            self.measured = None;
            telemetry.on_latency_sample(now() - posted_at);
        }
    }
}
