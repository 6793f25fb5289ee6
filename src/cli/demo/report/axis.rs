//! A time axis in µs or ms, relative to the failure.

use crate::cli::svg_units::Px;

/// Maps the machine's monotonic clock, in ns, to horizontal positions in a drawing.
pub(super) struct Axis {
    zero: u64,
    /// The earliest time that is drawn.
    pub(super) lo: u64,
    /// The latest time that is drawn.
    pub(super) hi: u64,
    left: f64,
    right: f64,
}

/// A drawn axis, for the template `axis.svg`.
pub(super) struct AxisLine {
    pub(super) left: Px,
    pub(super) right: Px,
    pub(super) y: Px,
    pub(super) tick_y: Px,
    pub(super) label_y: Px,
    pub(super) ticks: Vec<Tick>,
}

pub(super) struct Tick {
    pub(super) x: Px,
    pub(super) label: String,
}

impl Axis {
    pub(super) fn new(zero: u64, lo: u64, hi: u64, left: f64, right: f64) -> Axis {
        Axis { zero, lo, hi: hi.max(lo + 1), left, right }
    }

    /// Returns the position of a time. Times outside the axis are drawn at its ends.
    pub(super) fn x(&self, at: u64) -> f64 {
        let part = at.clamp(self.lo, self.hi) - self.lo;
        self.left + (self.right - self.left) * part as f64 / (self.hi - self.lo) as f64
    }

    /// Returns the line at height `y` with its ticks.
    pub(super) fn line(&self, y: f64) -> AxisLine {
        let step = tick_distance(self.hi - self.lo);
        let before = (self.zero - self.lo) / step;
        let first = self.zero - before * step;
        let times = (0..).map(|i| first + i * step).take_while(|&at| at <= self.hi);
        AxisLine {
            left: Px(self.left),
            right: Px(self.right),
            y: Px(y),
            tick_y: Px(y + 5.0),
            label_y: Px(y + 18.0),
            ticks: times
                .map(|at| Tick { x: Px(self.x(at)), label: tick_label(at, self.zero, step) })
                .collect(),
        }
    }
}

/// Returns a distance of 1, 2 or 5 times a power of ten ns that gives at most 13 ticks.
fn tick_distance(range: u64) -> u64 {
    let mut step = 1000;
    loop {
        for factor in [1, 2, 5] {
            if range / (step * factor) < 13 {
                return step * factor;
            }
        }
        step *= 10;
    }
}

/// Returns the label of a tick, in the unit of the distance between ticks.
fn tick_label(at: u64, zero: u64, step: u64) -> String {
    let ns = at as i128 - zero as i128;
    let sign = if ns < 0 { "−" } else { "" };
    let (unit, name) = if step < 1_000_000 { (1_000, "µs") } else { (1_000_000, "ms") };
    format!("{sign}{} {name}", ns.abs() / unit)
}

pub(super) fn format_relative(at: u64, zero: u64) -> String {
    let us = (at as i128 - zero as i128) as f64 / 1e3;
    let sign = if us < 0.0 { "−" } else { "" };
    match us.abs() {
        us if us < 10.0 && us.fract() > 0.05 => format!("{sign}{us:.1} µs"),
        us if us < 10_000.0 => format!("{sign}{us:.0} µs"),
        us => format!("{sign}{:.1} ms", us / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_has_few_ticks_at_round_times() {
        for range in [5_000, 123_000, 2_000_000, 777_777_777] {
            let n = range / tick_distance(range);
            assert!((4..13).contains(&n), "{range}: {n}");
        }
    }

    #[test]
    fn times_are_relative_to_the_failure() {
        assert_eq!(format_relative(1_000_000, 900_000), "100 µs");
        assert_eq!(format_relative(900_000, 1_000_000), "−100 µs");
        assert_eq!(format_relative(30_000_000, 0), "30.0 ms");
    }
}
