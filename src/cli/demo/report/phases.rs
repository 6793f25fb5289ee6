//! The phases of each failover, one bar per failure.

use askama::Template;

use super::super::coordinator::PolicyRun;
use super::super::json::FailoverTimes;
use super::axis::{Axis, AxisLine, format_relative};
use crate::cli::svg_units::Px;

/// Dimensions of the drawing in user units of the SVG, which the browser scales.
const WIDTH: f64 = 1160.0;
const GUTTER: f64 = 190.0;
const RIGHT: f64 = 90.0;
const PITCH: f64 = 22.0;
/// The largest number of failures that are drawn.
const MAX_ROWS: usize = 40;
/// The class and the name of each phase.
const PHASES: [(&str, &str); 4] = [
    ("undetected", "until detected"),
    ("fencing", "until both ends closed the rail"),
    ("agreeing", "until decided"),
    ("replaying", "until the last completion"),
];

/// A chart of the failover phases of one policy.
#[derive(Template)]
#[template(path = "demo/report/phases.html")]
pub(super) struct PhaseChart {
    phases: [(&'static str, &'static str); 4],
    width: Px,
    height: Px,
    rows: Vec<PhaseRow>,
    axis: AxisLine,
}

/// One failure.
struct PhaseRow {
    label: String,
    label_x: Px,
    text_y: Px,
    bars: Vec<PhaseBar>,
    total: String,
    total_x: Px,
}

/// One phase of one failure.
struct PhaseBar {
    class: &'static str,
    x: Px,
    y: Px,
    width: Px,
    height: Px,
    tooltip: String,
}

impl PhaseChart {
    /// Returns the chart of a policy, or `None` if it had no failover.
    pub(super) fn new(run: &PolicyRun) -> Option<PhaseChart> {
        let failovers: Vec<(String, FailoverTimes)> = run
            .rounds
            .iter()
            .enumerate()
            .filter_map(|(n, round)| {
                let label = format!("{}: {} {}", n + 1, round.fault.at.name(), round.fault.trigger);
                Some((label, FailoverTimes::of(round)?))
            })
            .take(MAX_ROWS)
            .collect();
        let longest = failovers.iter().map(|(_, times)| times.done.saturating_sub(start(times))).max()?;
        let axis = Axis::new(0, 0, longest, GUTTER, WIDTH - RIGHT);
        let bottom = PITCH * failovers.len() as f64 + 6.0;
        let rows = failovers.into_iter().enumerate();
        Some(PhaseChart {
            phases: PHASES,
            width: Px(WIDTH),
            height: Px(bottom + 30.0),
            rows: rows.map(|(i, (label, times))| PhaseRow::new(i, label, &times, &axis)).collect(),
            axis: axis.line(bottom),
        })
    }
}

impl PhaseRow {
    fn new(row: usize, label: String, times: &FailoverTimes, axis: &Axis) -> PhaseRow {
        let y = PITCH * row as f64 + 4.0;
        let zero = start(times);
        let ends = [zero, times.detected, times.fenced, times.decided, times.done];
        let bar = |((class, name), ends): (&(&'static str, &str), &[u64])| {
            let (from, to) = (axis.x(ends[0].saturating_sub(zero)), axis.x(ends[1].saturating_sub(zero)));
            PhaseBar {
                class,
                x: Px(from),
                y: Px(y),
                width: Px((to - from).max(0.0)),
                height: Px(PITCH - 6.0),
                tooltip: format!("{} {name}", format_relative(ends[1].max(ends[0]), ends[0])),
            }
        };
        PhaseRow {
            label,
            label_x: Px(GUTTER - 10.0),
            text_y: Px(y + 12.5),
            bars: PHASES.iter().zip(ends.windows(2)).map(bar).collect(),
            total: format_relative(times.done, zero),
            total_x: Px(axis.x(times.done.saturating_sub(zero)) + 6.0),
        }
    }
}

/// Returns the time of the fault, or of its detection if the fault was not observed.
fn start(times: &FailoverTimes) -> u64 {
    times.fault.unwrap_or(times.detected)
}
