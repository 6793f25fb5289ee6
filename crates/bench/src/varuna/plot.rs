//! Plots as SVG: bars and lines with a vertical axis.

use std::fmt;

use crate::report::format_figure;

/// The size of a drawing, and the margins around its plot area, in user units of the SVG.
const WIDTH: f64 = 1100.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// The largest number of labels of the horizontal axis.
const MAX_LABELS: usize = 14;

/// A length or position with one decimal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Px(f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

pub(super) struct Bar {
    pub(super) x: Px,
    pub(super) y: Px,
    pub(super) width: Px,
    pub(super) height: Px,
    /// The number of the series, which determines the colour.
    pub(super) series: usize,
    pub(super) tooltip: String,
}

pub(super) struct Polyline {
    pub(super) series: usize,
    /// The value of the attribute `points`.
    pub(super) points: String,
}

/// A text, whose position is the middle of its baseline or its end.
pub(super) struct Label {
    pub(super) x: Px,
    pub(super) y: Px,
    pub(super) class: &'static str,
    pub(super) text: String,
}

/// A horizontal or vertical line.
pub(super) struct Rule {
    pub(super) x1: Px,
    pub(super) y1: Px,
    pub(super) x2: Px,
    pub(super) y2: Px,
    pub(super) class: &'static str,
}

/// A figure of the report.
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) caption: String,
    /// The names of the series, in the order of their colours.
    pub(super) legend: Vec<String>,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) bars: Vec<Bar>,
    pub(super) lines: Vec<Polyline>,
    pub(super) labels: Vec<Label>,
    pub(super) rules: Vec<Rule>,
}

/// How the bars of a group stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arrangement {
    Beside,
    Stacked,
}

impl Plot {
    fn new(title: &str, caption: &str, legend: &[&str]) -> Plot {
        Plot {
            title: title.to_owned(),
            caption: caption.to_owned(),
            legend: legend.iter().map(|&name| name.to_owned()).collect(),
            width: WIDTH,
            height: HEIGHT,
            bars: Vec::new(),
            lines: Vec::new(),
            labels: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Draws groups of bars. The values of a group are those of the series of the legend, in order.
    pub(super) fn bars(
        (title, caption): (&str, &str),
        unit: &str,
        legend: &[&str],
        groups: &[(String, Vec<f64>)],
        arrangement: Arrangement,
    ) -> Plot {
        let mut plot = Plot::new(title, caption, legend);
        let height_of = |values: &[f64]| match arrangement {
            Arrangement::Beside => values.iter().copied().fold(0.0, f64::max),
            Arrangement::Stacked => values.iter().sum(),
        };
        let highest = groups.iter().map(|(_, values)| height_of(values)).fold(0.0, f64::max);
        let lowest = groups.iter().flat_map(|(_, values)| values.iter().copied()).fold(0.0, f64::min);
        let scale = plot.vertical_axis(lowest, highest, unit);
        let group_width = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
        let every = groups.len().div_ceil(MAX_LABELS);
        for (at, (name, values)) in groups.iter().enumerate() {
            let left = LEFT + group_width * (at as f64 + 0.1);
            let count = if arrangement == Arrangement::Beside { values.len().max(1) } else { 1 };
            let width = group_width * 0.8 / count as f64;
            let mut below = 0.0;
            for (series, &value) in values.iter().enumerate() {
                let (column, from) =
                    if arrangement == Arrangement::Beside { (series, 0.0) } else { (0, below) };
                let (y1, y2) = (scale.y(from), scale.y(from + value));
                below += value;
                plot.bars.push(Bar {
                    x: Px(left + width * column as f64),
                    y: Px(y1.min(y2)),
                    width: Px((width - 0.6).max(0.4)),
                    height: Px((y1 - y2).abs()),
                    series,
                    tooltip: format!("{name}, {}: {} {unit}", legend[series], format_figure(value)),
                });
            }
            if at % every == 0 {
                plot.horizontal_label(left + group_width * 0.4, name.clone());
            }
        }
        plot
    }

    /// Draws lines of (x, y) points, and marks x positions.
    pub(super) fn lines(
        (title, caption): (&str, &str),
        (x_unit, unit): (&str, &str),
        legend: &[&str],
        series: &[Vec<(f64, f64)>],
        marks: &[(f64, String)],
    ) -> Plot {
        let mut plot = Plot::new(title, caption, legend);
        let points = || series.iter().flatten();
        let scale = plot.vertical_axis(0.0, points().map(|point| point.1).fold(0.0, f64::max), unit);
        let last = points().map(|point| point.0).fold(1.0, f64::max);
        let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / last;
        for tick in ticks(0.0, last) {
            plot.horizontal_label(x(tick), format!("{} {x_unit}", format_figure(tick)));
        }
        for (number, line) in series.iter().enumerate() {
            let points: Vec<String> =
                line.iter().map(|&(at, value)| format!("{},{}", Px(x(at)), Px(scale.y(value)))).collect();
            plot.lines.push(Polyline { series: number, points: points.join(" ") });
        }
        for (at, text) in marks {
            let x = Px(x(*at));
            plot.rules.push(Rule { x1: x, y1: Px(TOP), x2: x, y2: Px(HEIGHT - BOTTOM), class: "mark" });
            plot.labels.push(Label { x, y: Px(TOP + 10.0), class: "mark", text: text.clone() });
        }
        plot
    }

    fn horizontal_label(&mut self, x: f64, text: String) {
        self.labels.push(Label { x: Px(x), y: Px(HEIGHT - BOTTOM + 18.0), class: "tick", text });
    }

    /// Draws the vertical axis from `low` to `high` with its ticks.
    fn vertical_axis(&mut self, low: f64, high: f64, unit: &str) -> Scale {
        let high = if high > low { high } else { low + 1.0 };
        let scale = Scale { low, high };
        for tick in ticks(low, high) {
            let y = scale.y(tick);
            self.rules.push(Rule {
                x1: Px(LEFT),
                y1: Px(y),
                x2: Px(WIDTH - RIGHT),
                y2: Px(y),
                class: if tick == 0.0 { "zero" } else { "grid" },
            });
            let text = format!("{} {unit}", format_figure(tick));
            self.labels.push(Label { x: Px(LEFT - 6.0), y: Px(y + 4.0), class: "value", text });
        }
        scale
    }
}

/// The vertical scale of a plot.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn y(&self, value: f64) -> f64 {
        let part = (value.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }
}

/// Returns four to ten values between `low` and `high`, at distances of 1, 2 or 5 times a power of ten.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let range = high - low;
    let power = 10_f64.powf((range / 10.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| range / step <= 9.0).unwrap_or(power * 10.0);
    let first = (low / step).ceil() as i64;
    (first..).map(|count| count as f64 * step).take_while(|&tick| tick <= high).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        for (low, high) in [(0.0, 1.0), (-3.0, 18.0), (0.0, 987_654.0), (0.0, 0.03)] {
            let ticks = ticks(low, high);
            assert!((4..=10).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(ticks.iter().all(|&tick| (low..=high).contains(&tick)));
        }
    }

    #[test]
    fn stacked_bars_stand_on_each_other_and_others_on_zero() {
        let groups = [("a".to_owned(), vec![1.0, 3.0]), ("b".to_owned(), vec![2.0, 0.0])];
        let draw = |arrangement| Plot::bars(("t", "c"), "B", &["x", "y"], &groups, arrangement);
        let stacked = draw(Arrangement::Stacked);
        let (low, high) = (&stacked.bars[0], &stacked.bars[1]);
        assert_eq!(low.x, high.x);
        assert!(
            (high.y.0 + high.height.0 - low.y.0).abs() < 0.01,
            "the second bar ends where the first begins"
        );
        assert!((high.height.0 / low.height.0 - 3.0).abs() < 0.01);
        let beside = draw(Arrangement::Beside);
        assert!(beside.bars[0].x.0 < beside.bars[1].x.0);
        assert_eq!(
            beside.bars[0].y.0 + beside.bars[0].height.0,
            beside.bars[1].y.0 + beside.bars[1].height.0
        );
    }

    #[test]
    fn lines_span_the_width() {
        let plot = Plot::lines(("t", "c"), ("ms", "B"), &["x"], &[vec![(0.0, 0.0), (9.0, 5.0)]], &[]);
        assert_eq!(plot.lines[0].points, "70.0,256.0 1084.0,14.0");
    }
}
