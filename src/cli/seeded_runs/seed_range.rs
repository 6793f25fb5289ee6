//! The seeds that a sweep runs: a range, one shard of a range, or as many seeds as fit into a time.

use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// One of `of` equal parts of a sweep: every `of`th seed, beginning at position `number` - 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shard {
    /// 1 for the first shard.
    number: u64,
    of: u64,
}

impl Shard {
    pub(super) const WHOLE: Shard = Shard { number: 1, of: 1 };
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Shard { number, of }),
            _ => Err("use I/N with I from 1 to N, for example 3/8".to_owned()),
        }
    }
}

/// A time in minutes, greater than 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Minutes(Duration);

impl FromStr for Minutes {
    type Err = String;

    fn from_str(text: &str) -> Result<Minutes, String> {
        let minutes = text.parse().ok().filter(|&minutes: &f64| minutes > 0.0 && minutes <= 1e6);
        let minutes = minutes.ok_or("use a number of minutes greater than 0, for example 10 or 0.5")?;
        Ok(Minutes(Duration::from_secs_f64(minutes * 60.0)))
    }
}

/// The end of a sweep: a number of seeds or a time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Limit {
    /// The number of seeds of all shards.
    Seeds(u64),
    Minutes(Minutes),
}

/// The seeds of a sweep. All threads take their seeds from this value.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeedRange {
    first: u64,
    step: u64,
    /// The number of seeds, if it is known.
    pub(super) count: Option<u64>,
    /// No seed begins after this time.
    deadline: Option<Instant>,
}

impl SeedRange {
    /// Returns the seeds of `shard` in a sweep whose first seed is `from`.
    pub(super) fn new(from: u64, limit: Limit, shard: Shard) -> anyhow::Result<SeedRange> {
        let first = from.checked_add(shard.number - 1).context("--from and --shard exceed 64 bits")?;
        let mut range = SeedRange { first, step: shard.of, count: None, deadline: None };
        match limit {
            Limit::Seeds(seeds) => {
                from.checked_add(seeds).context("--from and --seeds exceed 64 bits")?;
                let count = seeds.saturating_sub(shard.number - 1).div_ceil(shard.of);
                if count == 0 {
                    bail!("shard {} of {seeds} seeds has no seed; use at most {seeds} shards", shard.number);
                }
                range.count = Some(count);
            }
            Limit::Minutes(Minutes(time)) => {
                range.deadline = Some(Instant::now() + time);
            }
        }
        Ok(range)
    }

    /// Returns the seed at this position, or `None` if the sweep ends before that position.
    pub(super) fn get(&self, position: u64) -> Option<u64> {
        // At least one seed runs, however short the time is.
        let is_late = position > 0 && self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late || self.count.is_some_and(|count| position >= count) {
            return None;
        }
        self.first.checked_add(position.checked_mul(self.step)?)
    }

    /// Returns the time until the end of the sweep, if it ends by time.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(from: u64, seeds: u64, shard: &str) -> Vec<u64> {
        let range = SeedRange::new(from, Limit::Seeds(seeds), shard.parse().unwrap()).unwrap();
        let seeds: Vec<_> = (0..).map_while(|position| range.get(position)).collect();
        assert_eq!(range.count, Some(seeds.len() as u64));
        seeds
    }

    #[test]
    fn shards_together_are_the_whole() {
        assert_eq!(seeds(100, 7, "1/3"), [100, 103, 106]);
        assert_eq!(seeds(100, 7, "3/3"), [102, 105]);
        for of in 1..=10 {
            let mut all: Vec<u64> =
                (1..=of).flat_map(|number| seeds(5, 10, &format!("{number}/{of}"))).collect();
            all.sort_unstable();
            assert_eq!(all, (5..15).collect::<Vec<_>>(), "{of} shards");
        }
    }

    #[test]
    fn shard_without_seeds_is_refused() {
        let error = SeedRange::new(0, Limit::Seeds(3), "4/4".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("has no seed"), "{error}");
        for text in ["0/4", "5/4", "4", "/", "1/0", "a/b", "-1/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }

    #[test]
    fn seeds_do_not_exceed_64_bits() {
        assert!(SeedRange::new(u64::MAX, Limit::Seeds(1), Shard::WHOLE).is_err());
        assert!(SeedRange::new(u64::MAX, Limit::Seeds(1), "2/2".parse().unwrap()).is_err());
        let minutes = Limit::Minutes("1".parse().unwrap());
        let range = SeedRange::new(u64::MAX - 1, minutes, Shard::WHOLE).unwrap();
        assert_eq!((range.get(0), range.get(1), range.get(2)), (Some(u64::MAX - 1), Some(u64::MAX), None));
    }

    #[test]
    fn time_ends_a_sweep_after_its_first_seed() {
        let mut range = SeedRange::new(9, Limit::Minutes("1".parse().unwrap()), Shard::WHOLE).unwrap();
        assert_eq!(range.get(70), Some(79));
        range.deadline = Some(Instant::now());
        assert_eq!((range.get(0), range.get(1)), (Some(9), None));
        for text in ["0", "-1", "x", "inf", "NaN", "1e7"] {
            assert!(text.parse::<Minutes>().is_err(), "{text}");
        }
    }
}
