//! A time axis that leaves out the times in which nothing happens.

use mitra_page::round_step;

/// The width of a time that is left out, in user units of the SVG.
const BREAK: f64 = 54.0;
/// The mean width of a record.
const PER_RECORD: f64 = 11.0;
/// The bounds on the width of the drawn times.
const WIDTHS: (f64, f64) = (900.0, 40_000.0);
/// The largest number of times that are left out.
const MAX_BREAKS: usize = 60;
/// The shortest time that is left out, in ns.
const SHORTEST_BREAK: u64 = 20_000;
/// The least distance of two labels.
const LABEL_DISTANCE: f64 = 84.0;

/// Maps virtual time in ns to horizontal positions. Each segment has the same scale; the time
/// between two segments is left out.
pub(super) struct TimeAxis {
    segments: Vec<Segment>,
    scale: f64,
    pub(super) width: f64,
}

struct Segment {
    begin: u64,
    end: u64,
    x: f64,
}

/// A time that is left out: where it begins in the drawing, how wide it is, and how long it was.
pub(super) struct Break {
    pub(super) x: f64,
    pub(super) width: f64,
    pub(super) label: String,
}

impl TimeAxis {
    /// Creates an axis for records at these times, which must be in order. `left` is the position
    /// of the first record.
    pub(super) fn new(times: &[u64], left: f64) -> TimeAxis {
        let mut gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable_by_key(|&gap| std::cmp::Reverse(gap));
        let longest_kept = gaps.get(MAX_BREAKS).copied().unwrap_or(0).max(SHORTEST_BREAK);
        let mut segments: Vec<Segment> = Vec::new();
        for &time in times {
            match segments.last_mut() {
                Some(last) if time - last.end <= longest_kept => last.end = time,
                _ => segments.push(Segment { begin: time, end: time, x: 0.0 }),
            }
        }
        let drawn: u64 = segments.iter().map(|segment| segment.end - segment.begin).sum();
        let wanted = (times.len() as f64 * PER_RECORD).clamp(WIDTHS.0, WIDTHS.1);
        let scale = wanted / drawn.max(1) as f64;
        let mut x = left;
        for segment in &mut segments {
            segment.x = x;
            x += (segment.end - segment.begin) as f64 * scale + BREAK;
        }
        TimeAxis { segments, scale, width: x - BREAK }
    }

    /// Returns the position of a time. A time that is left out has the position of the end of the
    /// segment before it.
    pub(super) fn x(&self, at: u64) -> f64 {
        let after = self.segments.partition_point(|segment| segment.begin <= at);
        let Some(segment) = self.segments.get(after.saturating_sub(1)) else { return 0.0 };
        segment.x + (at.clamp(segment.begin, segment.end) - segment.begin) as f64 * self.scale
    }

    /// Returns positions with a label: the beginning of each segment, and round times within the
    /// segment.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let step = round_step((LABEL_DISTANCE / self.scale).max(1.0)) as u64;
        let mut ticks = Vec::new();
        let mut free = f64::MIN;
        for segment in &self.segments {
            let first = segment.begin.next_multiple_of(step);
            let round = (first..=segment.end).step_by(step as usize);
            let far = round.filter(|&at| self.x(at) >= segment.x + LABEL_DISTANCE);
            for at in [segment.begin].into_iter().chain(far) {
                let x = self.x(at);
                if x >= free {
                    free = x + LABEL_DISTANCE * 0.75;
                    ticks.push((x, format_time(at)));
                }
            }
        }
        ticks
    }

    pub(super) fn breaks(&self) -> Vec<Break> {
        let pairs = self.segments.windows(2);
        let gap = |pair: &[Segment]| {
            let x = pair[1].x - BREAK;
            let label = format!("{} later", format_time(pair[1].begin - pair[0].end));
            Break { x: x + 3.0, width: BREAK - 6.0, label }
        };
        pairs.map(gap).collect()
    }
}

/// Formats ns as µs, with two decimals below 10 µs, and none from 1 ms on.
pub(super) fn format_time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match ns {
        0..10_000 => format!("{us:.2} µs"),
        10_000..1_000_000 => format!("{us:.1} µs"),
        _ => format!("{us:.0} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_silence_is_left_out() {
        let axis = TimeAxis::new(&[0, 1_000, 2_000, 50_002_000, 50_003_000], 10.0);
        assert_eq!((axis.x(0), axis.breaks().len()), (10.0, 1));
        assert_eq!(axis.breaks()[0].label, "50000 µs later");
        let unit = axis.x(1_000) - axis.x(0);
        assert!((axis.x(50_003_000) - axis.x(50_002_000) - unit).abs() < 1e-6);
        assert!((axis.x(50_002_000) - axis.x(2_000) - BREAK).abs() < 1e-6);
        assert_eq!(axis.x(9_999_999), axis.x(2_000));
        assert!((axis.width - axis.x(50_003_000)).abs() < 1e-6);
    }

    #[test]
    fn number_of_breaks_is_bounded_and_labels_do_not_overlap() {
        let times: Vec<u64> = (0..500).map(|i| i * i * 10_000).collect();
        let axis = TimeAxis::new(&times, 0.0);
        assert_eq!(axis.breaks().len(), MAX_BREAKS);
        let ticks = axis.ticks();
        assert!(ticks.len() > 30 && ticks.windows(2).all(|t| t[1].0 - t[0].0 >= LABEL_DISTANCE * 0.7));
    }

    #[test]
    fn axis_of_one_time_has_one_label() {
        let axis = TimeAxis::new(&[5], 3.0);
        assert_eq!((axis.x(5), axis.ticks().len(), axis.breaks().len()), (3.0, 1, 0));
    }
}
