//! A time axis in µs or ms, relative to the failure.

use mitra_page::{Axis, Drawing, Point, round_step};

/// The largest number of distances between two ticks, and the least distance in ns.
const MAX_INTERVALS: f64 = 13.0;
const LEAST_STEP: f64 = 1_000.0;

/// Draws the axis from `[x, y]` to `right`. The values of `axis` are ns from the failure.
pub(super) fn draw_time_axis(drawing: &mut Drawing, axis: &Axis, place: Point, right: f64) {
    let step = round_step((axis.range() / MAX_INTERVALS).max(LEAST_STEP));
    let (unit, name) = if step < 1e6 { (1e3, "µs") } else { (1e6, "ms") };
    let tick = |ns: f64| (axis.at(ns), format!("{} {name}", signed(ns / unit, 0)));
    drawing.axis(place, right, 5.0, axis.ticks(step).into_iter().map(tick));
}

pub(super) fn format_relative(at: u64, zero: u64) -> String {
    let us = relative(at, zero) / 1e3;
    match us.abs() {
        abs if abs < 10.0 && abs.fract() > 0.05 => format!("{} µs", signed(us, 1)),
        abs if abs < 10_000.0 => format!("{} µs", signed(us, 0)),
        _ => format!("{} ms", signed(us / 1e3, 1)),
    }
}

/// Returns the time from `zero` to `at` in ns.
pub(super) fn relative(at: u64, zero: u64) -> f64 {
    (at as i128 - zero as i128) as f64
}

/// Formats a number with these decimals and a minus sign.
fn signed(number: f64, decimals: usize) -> String {
    format!("{}{:.decimals$}", if number < 0.0 { "−" } else { "" }, number.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_has_few_ticks_at_round_times() {
        for range in [15_000.0, 123_000.0, 2_000_000.0, 777_777_777.0] {
            let mut drawing = Drawing::default();
            draw_time_axis(&mut drawing, &Axis::linear([0.0, range], [0.0, 100.0]), [0.0, 0.0], 100.0);
            let n = drawing.finish([1.0, 1.0], "").matches("<text").count();
            assert!((5..15).contains(&n), "{range}: {n}");
        }
    }

    #[test]
    fn times_are_relative_to_the_failure() {
        assert_eq!(format_relative(1_000_000, 900_000), "100 µs");
        assert_eq!(format_relative(900_000, 1_000_000), "−100 µs");
        assert_eq!(format_relative(30_000_000, 0), "30.0 ms");
    }
}
