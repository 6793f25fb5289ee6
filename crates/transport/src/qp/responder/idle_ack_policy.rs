//! The policy for a pending acknowledgement at an idle poll: to send it, or to hold it back. The
//! policy adapts to the requester.

/// The initial number of idle polls without a hold, and the number after the first failed hold.
const MIN_BACKOFF: u32 = 64;
/// The largest number of idle polls without a hold.
const MAX_BACKOFF: u32 = 1 << 16;

/// Decides at each idle poll whether to hold back the pending acknowledgement.
///
/// Each acknowledgement costs both ends a system call. Two peers that answer each other's messages
/// continue without acknowledgements, and one acknowledgement per sixteen requests is better for
/// them. A requester that waits for its completion needs the acknowledgement at once. A hold shows
/// which kind the requester is. The hold succeeds if the next request arrives before the
/// acknowledgement timer expires. After each failed hold, the number of idle polls without a hold
/// doubles.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct IdleAckPolicy {
    holding: bool,
    /// The number of idle polls until the next hold.
    polls_until_hold: u32,
    /// The value of `polls_until_hold` after the next failed hold.
    backoff: u32,
}

impl IdleAckPolicy {
    pub(super) fn new() -> IdleAckPolicy {
        IdleAckPolicy { holding: false, polls_until_hold: MIN_BACKOFF, backoff: MIN_BACKOFF }
    }

    pub(super) fn is_holding(&self) -> bool {
        self.holding
    }

    /// Handles an idle poll. Returns whether the acknowledgement is held back.
    pub(super) fn on_idle(&mut self) -> bool {
        self.holding = self.polls_until_hold == 0;
        self.polls_until_hold = self.polls_until_hold.saturating_sub(1);
        self.holding
    }

    /// Handles a request that asks for an acknowledgement. If an acknowledgement is held back, the
    /// hold has succeeded.
    pub(super) fn on_request(&mut self) {
        if std::mem::take(&mut self.holding) {
            self.backoff = MIN_BACKOFF;
        }
    }

    /// Handles the expiration of the acknowledgement timer. If an acknowledgement is held back, the
    /// hold has failed.
    pub(super) fn on_timeout(&mut self) {
        if std::mem::take(&mut self.holding) {
            self.polls_until_hold = self.backoff;
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Ends a hold without a result, because the acknowledgement is sent for another reason.
    pub(super) fn cancel(&mut self) {
        self.holding = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(policy: &mut IdleAckPolicy, polls: u32, requester_continues: bool) -> u32 {
        let outcome = if requester_continues { IdleAckPolicy::on_request } else { IdleAckPolicy::on_timeout };
        (0..polls)
            .filter(|_| {
                let held = policy.on_idle();
                outcome(policy);
                held
            })
            .count() as u32
    }

    #[test]
    fn idle_ack_policy_adapts_to_requester() {
        let mut policy = IdleAckPolicy::new();
        assert_eq!(holds(&mut policy, 64, true), 0);
        assert_eq!(holds(&mut policy, 1000, true), 1000);
        assert!(holds(&mut policy, 100_000, false) <= 12);
        // The hold resumes when the requester continues again.
        assert!(holds(&mut policy, 100_000, true) >= 30_000);
    }
}
