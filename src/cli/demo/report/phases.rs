//! The phases of each failover, one bar per failure.

use mitra_page::{Axis, Drawing};

use super::super::json::FailoverTimes;
use super::super::rounds::PolicyRun;
use super::axis::{draw_time_axis, format_relative};

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

/// Returns the chart of a policy's failovers as HTML, or `None` if it had none.
pub(super) fn phase_chart(run: &PolicyRun) -> Option<String> {
    let failovers = run.rounds.iter().enumerate().filter_map(|(n, round)| {
        let label = format!("{}: {} {}", n + 1, round.fault.at.name(), round.fault.trigger);
        Some((label, FailoverTimes::of(round)?))
    });
    let failovers: Vec<(String, FailoverTimes)> = failovers.take(MAX_ROWS).collect();
    let longest = failovers.iter().map(|(_, times)| times.done.saturating_sub(start(times))).max()?;
    let axis = Axis::linear([0.0, longest as f64], [GUTTER, WIDTH - RIGHT]);
    let bottom = PITCH * failovers.len() as f64 + 6.0;
    let mut drawing = Drawing::default();
    for (row, (label, times)) in failovers.iter().enumerate() {
        draw_row(&mut drawing, &axis, PITCH * row as f64 + 4.0, label, times);
    }
    draw_time_axis(&mut drawing, &axis, [GUTTER, bottom], WIDTH - RIGHT);
    let legend: String =
        PHASES.iter().map(|(class, name)| format!("<span><i class=\"{class}\"></i>{name}</span> ")).collect();
    Some(format!("<p class=\"legend\">{legend}</p>\n{}", drawing.finish([WIDTH, bottom + 30.0], "")))
}

/// Draws one failure.
fn draw_row(drawing: &mut Drawing, axis: &Axis, y: f64, label: &str, times: &FailoverTimes) {
    let zero = start(times);
    let ends = [zero, times.detected, times.fenced, times.decided, times.done];
    let x = |at: u64| axis.at(at.saturating_sub(zero) as f64);
    drawing.text("label", [GUTTER - 10.0, y + 12.5], label);
    for ((class, name), ends) in PHASES.iter().zip(ends.windows(2)) {
        let tooltip = format!("{} {name}", format_relative(ends[1].max(ends[0]), ends[0]));
        let (from, to) = (x(ends[0]), x(ends[1]));
        drawing.group("", &tooltip, |bar| bar.rect(class, [from, y], [to - from, PITCH - 6.0]));
    }
    drawing.text("total", [x(times.done) + 6.0, y + 12.5], format_relative(times.done, zero));
}

/// Returns the time of the fault, or of its detection if the fault was not observed.
fn start(times: &FailoverTimes) -> u64 {
    times.fault.unwrap_or(times.detected)
}
