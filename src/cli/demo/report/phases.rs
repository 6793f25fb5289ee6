//! How long each failover took, in its phases: a bar a failure.

use super::super::coordinator::Run;
use super::super::summary::Moments;
use super::axis::{Axis, span};

const WIDTH: f64 = 1160.0;
const GUTTER: f64 = 190.0;
const RIGHT: f64 = 90.0;
const PITCH: f64 = 22.0;
const PHASES: [(&str, &str); 4] = [
    ("undetected", "until detected"),
    ("fencing", "until both ends closed the rail"),
    ("agreeing", "until decided"),
    ("replaying", "until the last completion"),
];

/// Draws the failures of a run; nothing if there was no failover.
pub(super) fn draw(run: &Run) -> Option<String> {
    let rows: Vec<(String, Moments)> = run
        .rounds
        .iter()
        .enumerate()
        .filter_map(|(n, round)| {
            let label = format!("{}: {} {}", n + 1, round.fault.at.name(), round.fault.trigger);
            Some((label, Moments::of(round)?))
        })
        .take(40)
        .collect();
    let longest = rows.iter().map(|(_, m)| m.done.saturating_sub(start(m))).max()?;
    let axis = Axis::new(0, 0, longest, GUTTER, WIDTH - RIGHT);
    let bottom = PITCH * rows.len() as f64 + 6.0;
    let mut out = String::from("<p class=\"legend\">");
    for (class, what) in PHASES {
        out.push_str(&format!("<span><i class=\"{class}\"></i>{what}</span>"));
    }
    out.push_str(&format!("</p>\n<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\">\n", bottom + 30.0));
    for (i, (label, m)) in rows.iter().enumerate() {
        let y = PITCH * i as f64 + 4.0;
        let zero = start(m);
        out.push_str(&format!(
            "<text class=\"lane\" x=\"{:.0}\" y=\"{:.1}\">{label}</text>\n",
            GUTTER - 10.0,
            y + 12.5
        ));
        let moments = [zero, m.detected, m.fenced, m.decided, m.done];
        for ((class, what), ends) in PHASES.iter().zip(moments.windows(2)) {
            let (from, to) = (axis.x(ends[0].saturating_sub(zero)), axis.x(ends[1].saturating_sub(zero)));
            out.push_str(&format!(
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{} {what}\
                 </title></rect>\n",
                (to - from).max(0.0),
                PITCH - 6.0,
                span(ends[1].max(ends[0]), ends[0])
            ));
        }
        out.push_str(&format!(
            "<text class=\"total\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            axis.x(m.done.saturating_sub(zero)) + 6.0,
            y + 12.5,
            span(m.done, zero)
        ));
    }
    out.push_str(&axis.draw(bottom));
    out.push_str("</svg>\n");
    Some(out)
}

fn start(moments: &Moments) -> u64 {
    moments.fault.unwrap_or(moments.detected)
}
