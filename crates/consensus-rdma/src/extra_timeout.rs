//! How much longer than on an idle machine a process waits before it takes a silent leader for a
//! failed one.

use std::time::{Duration, Instant};

/// After this time without a reason for an extra timeout, it is halved.
const CALM_TIME: Duration = Duration::from_secs(10);
/// An extra timeout below this is none.
const LEAST: Duration = Duration::from_millis(1);

/// The time that a process adds to the time after which it suspects a leader.
///
/// On a busy machine, a leader that waits for a processor is silent. The extra timeout grows when a
/// leader was suspected wrongly, and when the process itself was kept waiting, which is likely to
/// happen to the leader, too. It shrinks while neither happens. At first, there is none.
#[derive(Debug)]
pub struct ExtraTimeout {
    current: Duration,
    max: Duration,
    /// If more than this passes between two steps, the process was kept waiting for a processor.
    tolerated_delay: Duration,
    /// When the extra timeout last had a reason, or was halved.
    calm_since: Instant,
    last_step: Instant,
}

impl ExtraTimeout {
    /// Creates an extra timeout of at most `max`. `tolerated_delay` is the time between two calls
    /// of [`ExtraTimeout::step`] that says nothing about the machine.
    pub fn new(tolerated_delay: Duration, max: Duration, now: Instant) -> ExtraTimeout {
        ExtraTimeout { current: Duration::ZERO, max, tolerated_delay, calm_since: now, last_step: now }
    }

    /// Returns the extra timeout.
    pub fn current(&self) -> Duration {
        self.current
    }

    /// Returns the greatest extra timeout.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Notes that the process runs. The caller calls this every few milliseconds, if it has a
    /// processor.
    pub fn step(&mut self, now: Instant) {
        let delay = now.saturating_duration_since(std::mem::replace(&mut self.last_step, now));
        if delay > self.tolerated_delay {
            self.raise(4 * delay, now);
        } else if now.saturating_duration_since(self.calm_since) > CALM_TIME {
            self.calm_since = now;
            self.current = Some(self.current / 2).filter(|&half| half >= LEAST).unwrap_or_default();
        }
    }

    /// Raises the extra timeout to `to`, or to the greatest extra timeout if that is less.
    pub fn raise(&mut self, to: Duration, now: Instant) {
        self.current = self.current.max(to).min(self.max);
        self.calm_since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_timeout_follows_delays_and_ends_in_calm() {
        let ms = Duration::from_millis;
        let mut now = Instant::now();
        let mut extra_timeout = ExtraTimeout::new(ms(30), ms(1000), now);
        let mut after = |extra_timeout: &mut ExtraTimeout, delay| {
            now += delay;
            extra_timeout.step(now);
            extra_timeout.current()
        };
        assert_eq!(after(&mut extra_timeout, ms(30)), ms(0));
        assert_eq!(after(&mut extra_timeout, ms(100)), ms(400));
        assert_eq!(after(&mut extra_timeout, ms(31)), ms(400));
        assert_eq!(after(&mut extra_timeout, ms(900)), ms(1000));
        let calm_steps = (1..).find(|_| after(&mut extra_timeout, ms(10)) == ms(0)).unwrap_or(0);
        assert!((9_000..12_000).contains(&calm_steps), "{calm_steps} steps of 10 ms");
    }
}
