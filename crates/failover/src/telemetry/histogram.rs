use std::time::Duration;

const BOUNDS: usize = 24;

/// A histogram of durations in fixed buckets with the upper bounds 1, 2, 5, 10, 20, 50, … µs, up to
/// 50 s.
///
/// A Prometheus histogram can have exactly these bounds. A histogram takes 208 bytes. The crate
/// hdrhistogram, which `mitra bench` uses, is more precise but takes 30 KB for this range and has
/// bounds at powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DurationHistogram {
    /// The last bucket has no upper bound.
    counts: [u64; BOUNDS + 1],
    /// In nanoseconds.
    sum: u64,
}

impl DurationHistogram {
    /// The inclusive upper bounds of all buckets but the last, ascending.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        (0..BOUNDS).map(bound)
    }

    pub(crate) fn record(&mut self, duration: Duration) {
        let bucket = (0..BOUNDS).find(|&i| duration <= bound(i)).unwrap_or(BOUNDS);
        self.counts[bucket] += 1;
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum = self.sum.saturating_add(nanos);
    }

    /// The number of durations in each bucket.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the durations, at most 584 years.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the upper bound of the bucket that contains the quantile `part`, from 0 to 1. `None`
    /// without durations, or if the quantile is in the last bucket.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        (bucket < BOUNDS).then(|| bound(bucket))
    }
}

fn bound(bucket: usize) -> Duration {
    Duration::from_micros([1, 2, 5][bucket % 3] * 10_u64.pow(bucket as u32 / 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_from_one_microsecond_to_fifty_seconds() {
        let bounds: Vec<_> = DurationHistogram::bounds().collect();
        assert!(bounds.is_sorted() && bounds.len() == BOUNDS);
        assert_eq!((bounds[0], bounds[4]), (Duration::from_micros(1), Duration::from_micros(20)));
        assert_eq!(bounds[BOUNDS - 1], Duration::from_secs(50));
    }

    #[test]
    fn a_bucket_contains_its_upper_bound() {
        let mut histogram = DurationHistogram::default();
        for nanos in [0, 1_000, 1_001, 2_000, 50_000_000_000, 50_000_000_001] {
            histogram.record(Duration::from_nanos(nanos));
        }
        assert_eq!(histogram.counts()[..3], [2, 2, 0]);
        assert_eq!(histogram.counts()[BOUNDS - 1..], [1, 1]);
        assert_eq!((histogram.count(), histogram.sum().as_nanos()), (6, 100_000_004_002));
    }

    #[test]
    fn quantile_is_the_bound_of_its_bucket() {
        let mut histogram = DurationHistogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        (0..99).for_each(|_| histogram.record(Duration::from_micros(15)));
        histogram.record(Duration::from_secs(60));
        assert_eq!(histogram.quantile(0.5), Some(Duration::from_micros(20)));
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_micros(20)));
        assert_eq!(histogram.quantile(1.0), None, "beyond the last bound");
    }
}
