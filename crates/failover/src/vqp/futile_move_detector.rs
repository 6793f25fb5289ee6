use core::time::Duration;

use mitra_verbs::Time;

/// Detects rails that carry control messages and no data, for example because the path has a packet
/// filter, or a smaller MTU than the ports. Without the detector, the vQP would move between such
/// rails forever.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct FutileMoveDetector {
    /// The sequence number of the operation that was the oldest at each of the counted failures.
    first_seq: u64,
    first_failure: Time,
    last_failure: Time,
    /// The number of consecutive failures of rails that carried no data.
    failures: usize,
}

impl FutileMoveDetector {
    /// Records that a request exhausted its retries while `first_seq` was the oldest operation.
    /// Returns whether moving is futile: more than `2 * rails` failures were counted, and the first
    /// was at least `timeout` ago.
    pub(super) fn on_retries_exhausted(
        &mut self,
        now: Time,
        first_seq: u64,
        rails: usize,
        timeout: Duration,
    ) -> bool {
        // If `timeout` has passed since the last failure, the rail carried packets in that time,
        // even if these were only RNR NAKs. The count then starts again.
        let is_first = self.failures == 0 || self.first_seq != first_seq;
        if is_first || now.saturating_since(self.last_failure) >= timeout {
            *self = FutileMoveDetector { first_seq, first_failure: now, ..FutileMoveDetector::default() };
        }
        (self.last_failure, self.failures) = (now, self.failures + 1);
        self.failures > 2 * rails && now.saturating_since(self.first_failure) >= timeout
    }

    /// Starts the count again, because the evidence shows that the rail carried data.
    pub(super) fn on_carried_data(&mut self) {
        self.failures = 0;
    }
}
