use mitra_verbs::Time;

use super::VqpTelemetry;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LatencySampler {
    is_on: bool,
    /// The measured send: its sequence number and the time of its post.
    measured: Option<(u64, Time)>,
}

impl LatencySampler {
    pub(crate) fn switch(&mut self, on: bool) {
        self.is_on = on;
        if !on {
            self.measured = None;
        }
    }

    /// The sends from `from` on are not posted after all. Forgets the measured send if it is one of
    /// them.
    pub(crate) fn truncate(&mut self, from: u64) {
        self.measured = self.measured.filter(|&(seq, _)| seq < from);
    }

    /// A send is measured if no other is.
    #[inline]
    pub(crate) fn on_post(&mut self, seq: u64, now: impl FnOnce() -> Time) {
        if self.is_on && self.measured.is_none() {
            self.measured = Some((seq, now()));
        }
    }

    /// All sends before `first_seq` have completed.
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
