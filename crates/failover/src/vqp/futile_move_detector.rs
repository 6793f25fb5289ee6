use core::time::Duration;

use mitra_verbs::Time;

/// Detects rails that carry control messages and no data. Without the detector, the vQP would move
/// between such rails forever. The cause may be a path with a smaller MTU than the ports have, or a
/// packet filter.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct FutileMoveDetector {
    /// The sequence number of the oldest operation at each of the counted failures.
    first_seq: u64,
    /// The time of the first counted failure.
    first_failure: Time,
    /// The time of the last counted failure.
    last_failure: Time,
    /// The number of failures in a row of rails that carried no data.
    failures: usize,
}

impl FutileMoveDetector {
    /// Records that a request exhausted its retries while the oldest operation had this sequence
    /// number. Returns whether moving is futile: more than two failures per rail were counted, and
    /// at least `timeout` has passed since the first of them. `rails` is the number of rails.
    pub(super) fn on_retries_exhausted(
        &mut self,
        now: Time,
        first_seq: u64,
        rails: usize,
        timeout: Duration,
    ) -> bool {
        // A rail that worked for `timeout` before it failed carried packets, even if these were
        // only RNR NAKs. The count starts again.
        let is_first = self.failures == 0 || self.first_seq != first_seq;
        if is_first || now.saturating_since(self.last_failure) >= timeout {
            *self = FutileMoveDetector { first_seq, first_failure: now, ..FutileMoveDetector::default() };
        }
        (self.last_failure, self.failures) = (now, self.failures + 1);
        self.failures > 2 * rails && now.saturating_since(self.first_failure) >= timeout
    }

    /// Records that the evidence shows that the rail carried data: the count starts again.
    pub(super) fn on_carried_data(&mut self) {
        self.failures = 0;
    }
}
