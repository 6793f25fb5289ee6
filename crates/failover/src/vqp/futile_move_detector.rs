use core::time::Duration;

use mitra_verbs::Time;

/// Detects rails that carry control messages and no data, between which the vQP would move forever. Their path has a smaller MTU than
/// their ports, or a packet filter.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct FutileMoveDetector {
    /// [`Ledger::progress`](crate::ledger::Ledger::progress) at the failures counted.
    position: (u64, u64),
    first_failure: Time,
    last_failure: Time,
    /// Failures at `position`.
    failures: usize,
}

impl FutileMoveDetector {
    /// Records that a request at `position` exhausted its retries. Returns whether the vQP has stalled: each of `rails` had more than one
    /// chance, and `timeout` has passed since the first of these failures.
    pub(super) fn on_retries_exhausted(
        &mut self,
        now: Time,
        position: (u64, u64),
        rails: usize,
        timeout: Duration,
    ) -> bool {
        // A rail that lasted for `timeout` before it failed has carried something, be it only RNR NAKs.
        let is_first = self.failures == 0 || self.position != position;
        if is_first || now.saturating_since(self.last_failure) >= timeout {
            *self = FutileMoveDetector { position, first_failure: now, ..FutileMoveDetector::default() };
        }
        (self.last_failure, self.failures) = (now, self.failures + 1);
        self.failures > 2 * rails && now.saturating_since(self.first_failure) >= timeout
    }
}
