//! Plots as SVG: bars and lines with a vertical axis.

use std::fmt;

use super::format_figure;

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
pub(crate) struct Px(f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

pub(crate) struct Bar {
    pub(crate) x: Px,
    pub(crate) y: Px,
    pub(crate) width: Px,
    pub(crate) height: Px,
    /// The number of the series, which determines the colour.
    pub(crate) series: usize,
    pub(crate) tooltip: String,
}

pub(crate) struct Polyline {
    pub(crate) series: usize,
    /// The value of the attribute `points`.
    pub(crate) points: String,
}

/// A text. Its position is the middle or the end of its baseline.
pub(crate) struct Label {
    pub(crate) x: Px,
    pub(crate) y: Px,
    pub(crate) class: &'static str,
    pub(crate) text: String,
}

/// A horizontal or vertical line.
pub(crate) struct Rule {
    pub(crate) x1: Px,
    pub(crate) y1: Px,
    pub(crate) x2: Px,
    pub(crate) y2: Px,
    pub(crate) class: &'static str,
}

/// A figure of the report.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) caption: String,
    /// The names of the series, in the order of their colours.
    pub(crate) legend: Vec<String>,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) bars: Vec<Bar>,
    pub(crate) lines: Vec<Polyline>,
    pub(crate) labels: Vec<Label>,
    pub(crate) rules: Vec<Rule>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrangement {
    Beside,
    /// Beside each other, on a logarithmic axis.
    BesideLogarithmic,
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

    /// Draws groups of bars. A group has one value per series, in the order of the legend.
    pub(crate) fn bars(
        (title, caption): (&str, &str),
        unit: &str,
        legend: &[&str],
        groups: &[(String, Vec<f64>)],
        arrangement: Arrangement,
    ) -> Plot {
        let mut plot = Plot::new(title, caption, legend);
        let height_of = |values: &[f64]| match arrangement {
            Arrangement::Beside | Arrangement::BesideLogarithmic => {
                values.iter().copied().fold(0.0, f64::max)
            }
            Arrangement::Stacked => values.iter().sum(),
        };
        let highest = groups.iter().map(|(_, values)| height_of(values)).fold(0.0, f64::max);
        let values = || groups.iter().flat_map(|(_, values)| values.iter().copied());
        let scale = if arrangement == Arrangement::BesideLogarithmic {
            Scale::logarithmic(values().filter(|&value| value > 0.0).fold(highest, f64::min), highest)
        } else {
            Scale::linear(values().fold(0.0, f64::min), highest)
        };
        plot.vertical_axis(&scale, unit);
        let group_width = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
        let every = groups.len().div_ceil(MAX_LABELS);
        for (at, (name, values)) in groups.iter().enumerate() {
            let left = LEFT + group_width * (at as f64 + 0.1);
            let count = if arrangement == Arrangement::Stacked { 1 } else { values.len().max(1) };
            let width = group_width * 0.8 / count as f64;
            let mut below = 0.0;
            for (series, &value) in values.iter().enumerate() {
                let (column, from) =
                    if arrangement == Arrangement::Stacked { (0, below) } else { (series, 0.0) };
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

    /// Draws lines of (x, y) points, and marks x positions, with a text or without.
    pub(crate) fn lines(
        (title, caption): (&str, &str),
        (x_unit, unit): (&str, &str),
        legend: &[&str],
        series: &[Vec<(f64, f64)>],
        marks: &[(f64, String)],
    ) -> Plot {
        let mut plot = Plot::new(title, caption, legend);
        let points = || series.iter().flatten();
        let scale = Scale::linear(0.0, points().map(|point| point.1).fold(0.0, f64::max));
        plot.vertical_axis(&scale, unit);
        let first = points().map(|point| point.0).fold(0.0, f64::min);
        let last = points().map(|point| point.0).fold(1.0, f64::max);
        let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value - first) / (last - first);
        for tick in ticks(first, last) {
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
            if !text.is_empty() {
                plot.labels.push(Label { x, y: Px(TOP + 10.0), class: "mark", text: text.clone() });
            }
        }
        plot
    }

    fn horizontal_label(&mut self, x: f64, text: String) {
        self.labels.push(Label { x: Px(x), y: Px(HEIGHT - BOTTOM + 18.0), class: "tick", text });
    }

    fn vertical_axis(&mut self, scale: &Scale, unit: &str) {
        for tick in scale.ticks() {
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
    }
}

/// The vertical scale of a plot.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn linear(low: f64, high: f64) -> Scale {
        Scale { low, high: if high > low { high } else { low + 1.0 }, is_logarithmic: false }
    }

    /// Returns a scale from a power of ten below `low` to a power of ten above `high`.
    fn logarithmic(low: f64, high: f64) -> Scale {
        let low = if low > 0.0 { low.log10().floor() } else { 0.0 };
        let high = if high > 0.0 { high.log10().ceil() } else { 0.0 };
        Scale { low: 10_f64.powf(low), high: 10_f64.powf(high.max(low + 1.0)), is_logarithmic: true }
    }

    fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            return ticks(self.low, self.high);
        }
        let powers = self.low.log10().round() as i32..=self.high.log10().round() as i32;
        powers.map(|power| 10_f64.powi(power)).collect()
    }

    fn y(&self, value: f64) -> f64 {
        let (value, low, high) = (value.clamp(self.low, self.high), self.low, self.high);
        let part = if self.is_logarithmic {
            (value / low).log10() / (high / low).log10()
        } else {
            (value - low) / (high - low)
        };
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }
}

/// Returns four to ten values between `low` and `high`, at distances of 1, 2 or 5 times a power of
/// ten.
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
    fn logarithmic_bars_stand_on_a_power_of_ten() {
        let groups = [("a".to_owned(), vec![20.0, 200.0, 2000.0])];
        let plot = Plot::bars(("t", "c"), "", &["x", "y", "z"], &groups, Arrangement::BesideLogarithmic);
        assert_eq!(plot.rules.len(), 4, "10, 100, 1,000 and 10,000");
        let [low, middle, high] = [0, 1, 2].map(|bar: usize| plot.bars[bar].height.0);
        assert!((middle - low - (high - middle)).abs() < 0.01 && low > 0.0);
        let empty = [("a".to_owned(), vec![0.0])];
        let plot = Plot::bars(("t", "c"), "", &["x"], &empty, Arrangement::BesideLogarithmic);
        assert_eq!(plot.bars[0].height.0, 0.0);
    }

    #[test]
    fn lines_before_zero_begin_at_the_left() {
        let points = vec![(-9.0, 5.0), (1.0, 0.0)];
        let plot = Plot::lines(("t", "c"), ("ms", "B"), &["x"], &[points], &[(0.0, "m".to_owned())]);
        assert_eq!(plot.lines[0].points, "70.0,14.0 1084.0,256.0");
        assert!(plot.rules.iter().any(|rule| rule.class == "mark" && rule.x1 == Px(982.6)), "nine tenths");
    }

    #[test]
    fn lines_span_the_width() {
        let plot = Plot::lines(("t", "c"), ("ms", "B"), &["x"], &[vec![(0.0, 0.0), (9.0, 5.0)]], &[]);
        assert_eq!(plot.lines[0].points, "70.0,256.0 1084.0,14.0");
    }
}
