//! A time axis in µs or ms from the failure.

/// From ns of the machine's clock to places in a drawing.
pub(super) struct Axis {
    zero: u64,
    pub(super) lo: u64,
    pub(super) hi: u64,
    left: f64,
    right: f64,
}

impl Axis {
    pub(super) fn new(zero: u64, lo: u64, hi: u64, left: f64, right: f64) -> Axis {
        Axis { zero, lo, hi: hi.max(lo + 1), left, right }
    }

    pub(super) fn x(&self, at: u64) -> f64 {
        let part = at.clamp(self.lo, self.hi) - self.lo;
        self.left + (self.right - self.left) * part as f64 / (self.hi - self.lo) as f64
    }

    /// The line at `y`, and its ticks.
    pub(super) fn draw(&self, y: f64) -> String {
        let mut out = format!(
            "<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n",
            self.left, self.right
        );
        let step = step(self.hi - self.lo);
        let before = (self.zero - self.lo) / step;
        let mut at = self.zero - before * step;
        while at <= self.hi {
            let x = self.x(at);
            out.push_str(&format!(
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\"/>\n\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                y + 5.0,
                y + 18.0,
                tick(at, self.zero, step)
            ));
            at += step;
        }
        out
    }
}

/// A round distance of ticks, in ns: six to fifteen of them.
pub(super) fn step(range: u64) -> u64 {
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

/// A tick's label, in the unit of the step.
fn tick(at: u64, zero: u64, step: u64) -> String {
    let ns = at as i128 - zero as i128;
    let sign = if ns < 0 { "−" } else { "" };
    let (unit, name) = if step < 1_000_000 { (1_000, "µs") } else { (1_000_000, "ms") };
    format!("{sign}{} {name}", ns.abs() / unit)
}

/// A time as seen from the failure.
pub(super) fn span(at: u64, zero: u64) -> String {
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
    fn ticks_are_round_and_few() {
        for range in [5_000, 123_000, 2_000_000, 777_777_777] {
            let n = range / step(range);
            assert!((4..13).contains(&n), "{range}: {n}");
        }
    }

    #[test]
    fn times_are_seen_from_the_failure() {
        assert_eq!(span(1_000_000, 900_000), "100 µs");
        assert_eq!(span(900_000, 1_000_000), "−100 µs");
        assert_eq!(span(30_000_000, 0), "30.0 ms");
    }
}
