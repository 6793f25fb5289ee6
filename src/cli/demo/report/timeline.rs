//! One failure, operation by operation: a bar from post to completion, a dot where the server's processor saw it executed.

use super::super::coordinator::Played;
use super::super::oracle::Faults;
use super::super::protocol::{Ending, Record, Way};
use super::super::summary::Moments;
use super::super::table::title;
use super::super::workload::Kind;
use super::axis::{Axis, span};

/// Drawing size: the browser scales it.
const WIDTH: f64 = 1160.0;
const GUTTER: f64 = 64.0;
const RIGHT: f64 = 18.0;
const LABEL: f64 = 15.0;
/// Height that the bars of all lanes share, as far as they stay readable.
const BARS: f64 = 560.0;
const LANE_GAP: f64 = 10.0;

/// What is drawn, in ns of the machine's clock: the same for all policies, so that they can be compared.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// Before the failure.
    pub(super) before: u64,
    /// After it.
    pub(super) after: u64,
}

impl Window {
    /// From the first post of what was in flight to a little after its last completion.
    pub(super) fn of(round: &Played) -> Option<Window> {
        let moments = Moments::of(round)?;
        let zero = moments.fault.unwrap_or(moments.detected);
        let caught = round.posted.ops.iter().filter(|op| op.posted < zero && done_at(op) > zero);
        let first = caught.map(|op| op.posted).min().unwrap_or(zero);
        let after = moments.done.saturating_sub(zero);
        Some(Window { before: (zero - first).min(2 * after).max(after / 4), after: after + after / 8 })
    }

    pub(super) fn union(self, other: Window) -> Window {
        Window { before: self.before.max(other.before), after: self.after.max(other.after) }
    }
}

fn done_at(op: &Record) -> u64 {
    op.done.map_or(u64::MAX, |done| done.at)
}

/// An operation in its lane.
struct Bar {
    n: usize,
    row: usize,
    from: u64,
    to: u64,
}

/// Draws one round; nothing if there was no failover in it.
pub(super) fn draw(round: &Played, window: Window, fenced: bool) -> Option<String> {
    let moments = Moments::of(round)?;
    let zero = moments.fault.unwrap_or(moments.detected);
    let (lo, hi) = (zero.saturating_sub(window.before), zero + window.after);
    let axis = Axis::new(zero, lo, hi, GUTTER, WIDTH - RIGHT);
    let lanes: Vec<(Kind, Vec<Bar>)> = Kind::ALL.map(|kind| (kind, pack(round, kind, lo, hi))).into();
    let rows = |bars: &[Bar]| bars.iter().map(|bar| bar.row + 1).max().unwrap_or(1);
    let all: usize = lanes.iter().map(|(_, bars)| rows(bars)).sum();
    let pitch = (BARS / all as f64).clamp(1.5, 9.0);

    let marks = marks(&moments, fenced);
    let top = LABEL * marks.len() as f64 + 6.0;
    let bottom = top + all as f64 * pitch + LANE_GAP * (lanes.len() + 1) as f64;
    let height = bottom + 34.0;
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" class=\"timeline\">\n");
    let (from, to) = (axis.x(zero), axis.x(moments.decided));
    out.push_str(&rect("gap", from, top, to - from, bottom - top));
    let mut y = top + LANE_GAP / 2.0;
    for (kind, bars) in &lanes {
        let lane = rows(bars) as f64 * pitch + LANE_GAP;
        out.push_str(&format!(
            "<text class=\"lane\" x=\"{:.0}\" y=\"{:.1}\">{}</text>\n",
            GUTTER - 10.0,
            y + lane / 2.0 + 1.0,
            title(*kind)
        ));
        for bar in bars {
            let at = y + LANE_GAP / 2.0 + bar.row as f64 * pitch;
            out.push_str(&draw_bar(round, bar, &axis, zero, at, pitch));
        }
        y += lane;
        out.push_str(&format!(
            "<line class=\"rule\" x1=\"{GUTTER}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
            WIDTH - RIGHT
        ));
    }
    out.push_str(&draw_marks(&marks, &axis, bottom));
    out.push_str(&axis.draw(bottom));
    out.push_str("</svg>\n");
    Some(out)
}

/// Gives every operation of a kind that is in the window the first row that is free.
fn pack(round: &Played, kind: Kind, lo: u64, hi: u64) -> Vec<Bar> {
    let mut free: Vec<u64> = Vec::new();
    let mut bars = Vec::new();
    for (n, op) in round.posted.ops.iter().enumerate() {
        let (from, to) = (op.posted.max(lo), done_at(op).min(hi));
        if round.workload.ops[n].kind != kind || from >= hi || to <= lo {
            continue;
        }
        // Bars that touch would look like one.
        let apart = (hi - lo) / 400;
        let row = free.iter().position(|&end| end + apart <= from).unwrap_or(free.len());
        if row == free.len() {
            free.push(0);
        }
        free[row] = to;
        bars.push(Bar { n, row, from, to });
    }
    bars
}

fn draw_bar(round: &Played, bar: &Bar, axis: &Axis, zero: u64, y: f64, pitch: f64) -> String {
    let op = &round.posted.ops[bar.n];
    let faults = round.judgement.ops[bar.n];
    let class = match op.done {
        Some(done) if done.ending == Ending::Success => match done.way {
            Way::Direct => "direct",
            Way::Recovered => "recovered",
            Way::Replayed => "replayed",
        },
        _ => "error",
    };
    let bad = faults != Faults::default();
    let (x, end) = (axis.x(bar.from), axis.x(bar.to));
    let height = (pitch * 0.78).max(1.0);
    let mut out = format!("<g><title>{}</title>\n", tip(round, bar.n, zero));
    let class = if bad { format!("{class} bad") } else { class.to_owned() };
    out.push_str(&rect(&class, x, y, (end - x).max(1.5), height));
    let id = round.workload.id(bar.n);
    let executions = round.seen.log.iter().filter(|entry| entry.id == id);
    for (times, entry) in executions.enumerate() {
        if entry.at < axis.lo || entry.at > axis.hi {
            continue;
        }
        let class = if times == 0 { "execution" } else { "execution again" };
        let radius = (pitch * 0.3).clamp(1.0, 2.4) * if times == 0 { 1.0 } else { 1.35 };
        out.push_str(&format!(
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"/>\n",
            axis.x(entry.at),
            y + height / 2.0
        ));
    }
    if bad {
        let (cx, cy, r) = (end + 5.0, y + height / 2.0, (pitch * 0.42).clamp(2.0, 3.4));
        out.push_str(&format!(
            "<path class=\"cross\" d=\"M{:.1} {:.1}l{d:.1} {d:.1}m0 -{d:.1}l-{d:.1} {d:.1}\"/>\n",
            cx - r,
            cy - r,
            d = 2.0 * r
        ));
    }
    out.push_str("</g>\n");
    out
}

fn rect(class: &str, x: f64, y: f64, width: f64, height: f64) -> String {
    format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\"/>\n",
        width.max(0.0)
    )
}

/// What the pointer shows.
fn tip(round: &Played, n: usize, zero: u64) -> String {
    let (op, posted) = (round.workload.ops[n], &round.posted.ops[n]);
    let mut out = format!("{} {n}", title(op.kind));
    if matches!(op.kind, Kind::Write | Kind::Read | Kind::Send) {
        out.push_str(&format!(", {} bytes", op.len));
    }
    out.push_str(&format!("\nposted {}", span(posted.posted, zero)));
    match posted.done {
        None => out.push_str("\nnever completed"),
        Some(done) => {
            let how = match (done.ending, done.way) {
                (Ending::Success, Way::Direct) => "completed directly".to_owned(),
                (Ending::Success, Way::Recovered) => "recovered from evidence".to_owned(),
                (Ending::Success, Way::Replayed) => "sent again".to_owned(),
                (ending, _) => format!("ended {ending:?}"),
            };
            out.push_str(&format!("\n{how} {}", span(done.at, zero)));
            if done.ending == Ending::Success && matches!(op.kind, Kind::Cas | Kind::Faa) {
                out.push_str(&format!("\nold value {}", done.value));
            }
        }
    }
    if round.judgement.executed_before[n] {
        out.push_str("\nexecuted before the failure");
    }
    let faults = round.judgement.ops[n];
    for (is, what) in
        [(faults.lost, "LOST"), (faults.doubled, "EXECUTED TWICE"), (faults.wrong, "WRONG VALUE")]
    {
        if is {
            out.push_str(&format!("\n{what}"));
        }
    }
    out
}

/// The vertical lines.
fn marks(moments: &Moments, fenced: bool) -> Vec<(&'static str, String, u64)> {
    let mut marks = Vec::new();
    if let Some(fault) = moments.fault {
        marks.push(("fault", "rail 0 dies".to_owned(), fault));
    }
    let zero = moments.fault.unwrap_or(moments.detected);
    let left =
        if fenced { "rail 0 fenced at both ends" } else { "both ends have left rail 0, without a fence" };
    for (what, at) in [
        (format!("detected ({})", moments.detector), moments.detected),
        (left.to_owned(), moments.fenced),
        ("decided; replay begins on rail 1".to_owned(), moments.decided),
        ("last completion of what was in flight".to_owned(), moments.done),
    ] {
        marks.push(("moment", format!("{what}, {}", span(at, zero)), at));
    }
    marks
}

fn draw_marks(marks: &[(&str, String, u64)], axis: &Axis, bottom: f64) -> String {
    let mut out = String::new();
    for (i, (class, label, at)) in marks.iter().enumerate() {
        let (x, y) = (axis.x(*at), LABEL * (i as f64 + 0.8));
        let left = x > WIDTH * 0.7;
        let (anchor, tx) = if left { ("end", x - 5.0) } else { ("start", x + 5.0) };
        out.push_str(&format!(
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>\n\
             <text class=\"{class}\" x=\"{tx:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>\n",
            y - 9.0
        ));
    }
    out
}
