use core::time::Duration;

use mitra_prng::Prng;

/// The uniform distribution of durations from `min` to `max`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DurationRange {
    /// The shortest duration.
    pub min: Duration,
    /// The longest duration.
    pub max: Duration,
}

impl DurationRange {
    /// Creates a range of nanoseconds.
    pub const fn nanos(min: u64, max: u64) -> DurationRange {
        DurationRange { min: Duration::from_nanos(min), max: Duration::from_nanos(max) }
    }

    /// Creates a range of microseconds.
    pub const fn micros(min: u64, max: u64) -> DurationRange {
        DurationRange { min: Duration::from_micros(min), max: Duration::from_micros(max) }
    }

    /// Draws a duration.
    pub fn sample(self, rng: &mut Prng) -> Duration {
        Duration::from_nanos(rng.between(self.min.as_nanos() as u64, self.max.as_nanos() as u64))
    }
}
