//! One failure, operation by operation: a bar from post to completion, a dot where the server's
//! processor saw the operation executed.

use mitra_failover::{Outcome, Resolution};
use mitra_page::{Axis, Drawing};

use super::super::checker::Violations;
use super::super::json::FailoverTimes;
use super::super::protocol::{OpRecord, describe};
use super::super::rounds::RoundResult;
use super::super::workload::{Kind, verb_name};
use super::axis::{draw_time_axis, format_relative, relative};

/// Dimensions of the drawing in user units of the SVG, which the browser scales.
const WIDTH: f64 = 1160.0;
const GUTTER: f64 = 64.0;
const RIGHT: f64 = 18.0;
const LABEL: f64 = 15.0;
const BAND_GAP: f64 = 10.0;
/// The total height of the bars of all bands, unless the bars would become too thin.
const BARS: f64 = 560.0;

/// The part of a round that is drawn, in ns relative to the failure. All policies are drawn with
/// the same window, so that they can be compared.
#[derive(Clone, Copy)]
pub(super) struct TimeWindow {
    pub(super) before: u64,
    pub(super) after: u64,
}

impl TimeWindow {
    /// Returns the window from the first post of an operation in flight to slightly after the last
    /// completion, or `None` if the round had no failover.
    pub(super) fn of(round: &RoundResult) -> Option<TimeWindow> {
        let times = FailoverTimes::of(round)?;
        let zero = times.fault.unwrap_or(times.detected);
        let in_flight = round.client.ops.iter().filter(|op| op.posted < zero && done_at(op) > zero);
        let first = in_flight.map(|op| op.posted).min().unwrap_or(zero);
        let after = times.done.saturating_sub(zero);
        Some(TimeWindow { before: (zero - first).min(2 * after).max(after / 4), after: after + after / 8 })
    }

    pub(super) fn union(self, other: TimeWindow) -> TimeWindow {
        TimeWindow { before: self.before.max(other.before), after: self.after.max(other.after) }
    }
}

fn done_at(op: &OpRecord) -> u64 {
    op.completion.map_or(u64::MAX, |completion| completion.at)
}

/// The place of an operation in its band.
struct Slot {
    op: usize,
    row: usize,
    from: u64,
    to: u64,
}

/// Draws one round under one policy, or returns `None` if it had no failover. `fenced` says whether
/// the policy fences.
pub(super) fn timeline(round: &RoundResult, window: TimeWindow, fenced: bool) -> Option<String> {
    let times = FailoverTimes::of(round)?;
    let zero = times.fault.unwrap_or(times.detected);
    let (lo, hi) = (zero.saturating_sub(window.before), zero + window.after);
    let axis = Axis::linear([relative(lo, zero), relative(hi, zero)], [GUTTER, WIDTH - RIGHT]);
    let slots = Kind::ALL.map(|kind| (kind, assign_rows(round, kind, lo, hi)));
    let row_count = |slots: &[Slot]| slots.iter().map(|slot| slot.row + 1).max().unwrap_or(1);
    let all: usize = slots.iter().map(|(_, slots)| row_count(slots)).sum();
    let pitch = (BARS / all as f64).clamp(1.5, 9.0);

    let labels = mark_labels(&times, fenced);
    let top = LABEL * labels.len() as f64 + 6.0;
    let bottom = top + all as f64 * pitch + BAND_GAP * (slots.len() + 1) as f64;
    let mut drawing = Drawing::default();
    // The time in which no rail is in use.
    let (from, to) = (axis.at(0.0), axis.at(relative(times.decided, zero)));
    drawing.rect("gap", [from, top], [to - from, bottom - top]);
    let mut y = top + BAND_GAP / 2.0;
    for (kind, slots) in &slots {
        let height = row_count(slots) as f64 * pitch + BAND_GAP;
        drawing.text("label", [GUTTER - 10.0, y + height / 2.0 + 1.0], verb_name(*kind));
        for slot in slots {
            let y = y + BAND_GAP / 2.0 + slot.row as f64 * pitch;
            draw_operation(&mut drawing, round, slot, &axis, zero, y, pitch);
        }
        y += height;
        drawing.line("rule", [GUTTER, y], [WIDTH - RIGHT, y]);
    }
    for (row, (class, label, at)) in labels.into_iter().enumerate() {
        let (x, y) = (axis.at(relative(at, zero)), LABEL * (row as f64 + 0.8));
        drawing.line(class, [x, y - 9.0], [x, bottom]);
        // A label near the right edge is drawn to the left of its line.
        if x > WIDTH * 0.7 {
            drawing.text(&format!("{class} left"), [x - 5.0, y], label);
        } else {
            drawing.text(class, [x + 5.0, y], label);
        }
    }
    draw_time_axis(&mut drawing, &axis, [GUTTER, bottom], WIDTH - RIGHT);
    Some(drawing.finish([WIDTH, bottom + 34.0], "class=\"timeline\""))
}

/// Assigns the operations of a kind between `lo` and `hi` to rows, each to the first free row.
fn assign_rows(round: &RoundResult, kind: Kind, lo: u64, hi: u64) -> Vec<Slot> {
    let mut free: Vec<u64> = Vec::new();
    let mut slots = Vec::new();
    for (n, op) in round.client.ops.iter().enumerate() {
        let (from, to) = (op.posted.max(lo), done_at(op).min(hi));
        if round.workload.ops[n].kind != kind || from >= hi || to <= lo {
            continue;
        }
        // Without a gap, two bars would look like one.
        let gap = (hi - lo) / 400;
        let row = free.iter().position(|&end| end + gap <= from).unwrap_or(free.len());
        if row == free.len() {
            free.push(0);
        }
        free[row] = to;
        slots.push(Slot { op: n, row, from, to });
    }
    slots
}

/// Draws an operation, the executions that the server's processor saw, and a cross if it is
/// corrupted.
fn draw_operation(
    drawing: &mut Drawing,
    round: &RoundResult,
    slot: &Slot,
    axis: &Axis,
    zero: u64,
    y: f64,
    pitch: f64,
) {
    let op = &round.client.ops[slot.op];
    let is_corrupted = round.check.ops[slot.op] != Violations::default();
    let class = match op.completion {
        Some(completion) if completion.outcome == Outcome::Success => match completion.resolution {
            Resolution::Direct => "direct",
            Resolution::Recovered => "recovered",
            Resolution::Replayed => "replayed",
        },
        _ => "error",
    };
    let (x, end) = (axis.at(relative(slot.from, zero)), axis.at(relative(slot.to, zero)));
    let height = (pitch * 0.78).max(1.0);
    let middle = y + height / 2.0;
    let id = round.workload.id(slot.op);
    let executions = round.server.log.iter().filter(|entry| entry.id == id).enumerate();
    drawing.group("", &tooltip(round, slot.op, zero), |drawing| {
        let class = if is_corrupted { format!("{class} bad") } else { class.to_owned() };
        drawing.rect(&class, [x, y], [(end - x).max(1.5), height]);
        for (times, at) in executions.map(|(times, entry)| (times, relative(entry.at, zero))) {
            let (class, scale) = if times == 0 { ("execution", 1.0) } else { ("execution again", 1.35) };
            if axis.contains(at) {
                drawing.circle(class, [axis.at(at), middle], (pitch * 0.3).clamp(1.0, 2.4) * scale);
            }
        }
        if is_corrupted {
            let radius = (pitch * 0.42).clamp(2.0, 3.4);
            let (x, y, size) = (end + 5.0 - radius, middle - radius, 2.0 * radius);
            drawing.path(
                "cross",
                format_args!("M{x:.1} {y:.1}l{size:.1} {size:.1}m0 -{size:.1}l-{size:.1} {size:.1}"),
            );
        }
    });
}

/// Returns the text that the browser shows for an operation.
fn tooltip(round: &RoundResult, n: usize, zero: u64) -> String {
    let (op, record) = (round.workload.ops[n], &round.client.ops[n]);
    let mut out = format!("{} {n}", verb_name(op.kind));
    if matches!(op.kind, Kind::Write | Kind::Read | Kind::Send) {
        out.push_str(&format!(", {} bytes", op.len));
    }
    out.push_str(&format!("\nposted {}", format_relative(record.posted, zero)));
    match record.completion {
        None => out.push_str("\nnever completed"),
        Some(completion) => {
            let result = match (completion.outcome, completion.resolution) {
                (Outcome::Success, Resolution::Direct) => "completed directly".to_owned(),
                (Outcome::Success, Resolution::Recovered) => "recovered from evidence".to_owned(),
                (Outcome::Success, Resolution::Replayed) => "sent again".to_owned(),
                (outcome, _) => format!("ended: {}", describe(outcome)),
            };
            out.push_str(&format!("\n{result} {}", format_relative(completion.at, zero)));
            if completion.outcome == Outcome::Success && matches!(op.kind, Kind::Cas | Kind::Faa) {
                out.push_str(&format!("\nold value {}", completion.value));
            }
        }
    }
    if round.check.executed_before[n] {
        out.push_str("\nexecuted before the failure");
    }
    let violations = round.check.ops[n];
    for (is_set, text) in
        [(violations.lost, "LOST"), (violations.doubled, "EXECUTED TWICE"), (violations.wrong, "WRONG VALUE")]
    {
        if is_set {
            out.push_str(&format!("\n{text}"));
        }
    }
    out
}

/// Returns class, label and time of the vertical lines.
fn mark_labels(times: &FailoverTimes, fenced: bool) -> Vec<(&'static str, String, u64)> {
    let mut labels = Vec::new();
    if let Some(fault) = times.fault {
        labels.push(("fault", "rail 0 fails".to_owned(), fault));
    }
    let zero = times.fault.unwrap_or(times.detected);
    let left =
        if fenced { "rail 0 fenced at both ends" } else { "both ends have left rail 0, without a fence" };
    for (text, at) in [
        (format!("detected ({})", times.detector), times.detected),
        (left.to_owned(), times.fenced),
        ("decided; replay begins on rail 1".to_owned(), times.decided),
        ("last completion of an operation in flight".to_owned(), times.done),
    ] {
        labels.push(("moment", format!("{text}, {}", format_relative(at, zero)), at));
    }
    labels
}
