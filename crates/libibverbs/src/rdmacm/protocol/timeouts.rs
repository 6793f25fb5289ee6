//! Timeouts and repetitions that connections and service lookups have in common.

use std::time::{Duration, Instant};

/// How long the peer's program may take to answer a request, and to confirm a reply. The kernel's
/// limit is about the same (`CMA_MAX_CM_RETRIES` times `CMA_CM_RESPONSE_TIMEOUT`).
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a request is repeated while no program listens at the destination.
///
/// perftest's server listens anew for each connection. A request over a network arrives late enough
/// for the server; a request over loopback would arrive before the server listens. Programs that
/// connect in a loop until a server has started tolerate the delay.
pub const REFUSED_RETRY_PERIOD: Duration = Duration::from_millis(200);

/// The time between the first repetitions of a message. A datagram that is lost delays a connection
/// by this time.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
/// The number of repetitions after [`FIRST_INTERVAL`]. Each later interval is twice as long as the
/// one before.
const FIRST_REPETITIONS: u32 = 3;
/// The maximum interval. A listener with a full backlog drops requests, and gets them again after
/// this time.
const MAX_INTERVAL: Duration = Duration::from_millis(500);
/// The time between two repetitions of a message that the peer's connection manager has received,
/// and that its program has not answered.
const RECEIVED_INTERVAL: Duration = Duration::from_secs(1);

/// When a message is sent again until its answer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    due: Instant,
    transmissions: u32,
    is_received: bool,
}

impl Repetition {
    /// The repetitions of a message whose first transmission is at `now`.
    pub fn from(now: Instant) -> Self {
        Self { due: now, transmissions: 0, is_received: false }
    }

    pub fn due(&self) -> Instant {
        self.due
    }

    /// If a transmission is due, returns how many transmissions preceded it.
    pub fn take_due(&mut self, now: Instant) -> Option<u32> {
        if now < self.due {
            return None;
        }
        let transmission = self.transmissions;
        self.transmissions = self.transmissions.saturating_add(1);
        let doublings = self.transmissions.saturating_sub(FIRST_REPETITIONS).min(8);
        let interval = (FIRST_INTERVAL * (1 << doublings)).min(MAX_INTERVAL);
        self.due = now + if self.is_received { RECEIVED_INTERVAL } else { interval };
        Some(transmission)
    }

    /// The peer's connection manager has received the message, so repetitions only ask whether its
    /// answer was lost.
    pub fn set_received(&mut self, now: Instant) {
        self.is_received = true;
        self.due = now + RECEIVED_INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_grow_up_to_a_limit() {
        let start = Instant::now();
        let mut repetition = Repetition::from(start);
        let times: Vec<u128> = (0..12)
            .map(|n| {
                let due = repetition.due();
                assert_eq!(repetition.take_due(due - Duration::from_nanos(1)), None);
                assert_eq!(repetition.take_due(due), Some(n));
                (due - start).as_millis()
            })
            .collect();
        assert_eq!(times, [0, 20, 40, 60, 100, 180, 340, 660, 1160, 1660, 2160, 2660]);
        let now = repetition.due();
        repetition.set_received(now);
        assert_eq!(repetition.due(), now + RECEIVED_INTERVAL);
        assert_eq!(repetition.take_due(repetition.due()), Some(12));
        assert_eq!(repetition.due(), now + 2 * RECEIVED_INTERVAL);
    }
}
