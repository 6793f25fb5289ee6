//! Plots as SVG: bars and lines with a vertical axis.

use mitra_page::{Axis, Drawing, round_step};

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
/// The largest number of distances between the ticks of an axis.
const MAX_INTERVALS: f64 = 9.0;
/// The ends of the vertical axis.
const VERTICAL: [f64; 2] = [HEIGHT - BOTTOM, TOP];
/// The height of the labels below the plot area.
const LABEL_Y: f64 = HEIGHT - BOTTOM + 18.0;

/// A figure of the report.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) caption: String,
    /// The names of the series, in the order of their colours.
    pub(crate) legend: Vec<String>,
    /// The drawing, as an element `svg`.
    pub(crate) svg: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrangement {
    Beside,
    /// Beside each other, on a logarithmic axis.
    BesideLogarithmic,
    Stacked,
}

impl Plot {
    fn new((title, caption): (&str, &str), legend: &[&str], drawing: Drawing) -> Plot {
        Plot {
            title: title.to_owned(),
            caption: caption.to_owned(),
            legend: legend.iter().map(|&name| name.to_owned()).collect(),
            svg: drawing.finish([WIDTH, HEIGHT], ""),
        }
    }

    /// Draws groups of bars. A group has one value per series, in the order of the legend.
    pub(crate) fn bars(
        titles: (&str, &str),
        unit: &str,
        legend: &[&str],
        groups: &[(String, Vec<f64>)],
        arrangement: Arrangement,
    ) -> Plot {
        let is_stacked = arrangement == Arrangement::Stacked;
        let height_of = |values: &[f64]| match is_stacked {
            true => values.iter().sum(),
            false => values.iter().copied().fold(0.0, f64::max),
        };
        let highest = groups.iter().map(|(_, values)| height_of(values)).fold(0.0, f64::max);
        let values = || groups.iter().flat_map(|(_, values)| values.iter().copied());
        let axis = if arrangement == Arrangement::BesideLogarithmic {
            let lowest = values().filter(|&value| value > 0.0).fold(highest, f64::min);
            Axis::logarithmic([lowest, highest], VERTICAL)
        } else {
            Axis::linear([values().fold(0.0, f64::min), highest], VERTICAL)
        };
        let mut drawing = Drawing::default();
        draw_vertical_axis(&mut drawing, &axis, unit);
        let group_width = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
        let every = groups.len().div_ceil(MAX_LABELS);
        for (at, (name, values)) in groups.iter().enumerate() {
            let left = LEFT + group_width * (at as f64 + 0.1);
            let width = group_width * 0.8 / if is_stacked { 1.0 } else { values.len().max(1) as f64 };
            let mut below = 0.0;
            for (series, &value) in values.iter().enumerate() {
                let (column, from) = if is_stacked { (0, below) } else { (series, 0.0) };
                let (y1, y2) = (axis.at(from), axis.at(from + value));
                below += value;
                let place = [left + width * column as f64, y1.min(y2)];
                let size = [(width - 0.6).max(0.4), (y1 - y2).abs()];
                let tooltip = format!("{name}, {}: {} {unit}", legend[series], format_figure(value));
                drawing
                    .group(format_args!("class=\"s{series}\""), &tooltip, |bar| bar.rect("bar", place, size));
            }
            if at % every == 0 {
                drawing.text("tick", [left + group_width * 0.4, LABEL_Y], name);
            }
        }
        Plot::new(titles, legend, drawing)
    }

    /// Draws lines of (x, y) points, and marks x positions, with a text or without.
    pub(crate) fn lines(
        titles: (&str, &str),
        (x_unit, unit): (&str, &str),
        legend: &[&str],
        series: &[Vec<(f64, f64)>],
        marks: &[(f64, String)],
    ) -> Plot {
        let points = || series.iter().flatten();
        let mut drawing = Drawing::default();
        let vertical = Axis::linear([0.0, points().map(|point| point.1).fold(0.0, f64::max)], VERTICAL);
        draw_vertical_axis(&mut drawing, &vertical, unit);
        let first = points().map(|point| point.0).fold(0.0, f64::min);
        let last = points().map(|point| point.0).fold(1.0, f64::max);
        let horizontal = Axis::linear([first, last], [LEFT, WIDTH - RIGHT]);
        for (at, _) in marks {
            let x = horizontal.at(*at);
            drawing.line("mark", [x, TOP], [x, HEIGHT - BOTTOM]);
        }
        for (number, line) in series.iter().enumerate() {
            let points = line.iter().map(|&(x, y)| [horizontal.at(x), vertical.at(y)]);
            drawing.polyline(&format!("s{number}"), points);
        }
        for tick in horizontal.ticks(round_step(horizontal.range() / MAX_INTERVALS)) {
            drawing.text("tick", [horizontal.at(tick), LABEL_Y], format!("{} {x_unit}", format_figure(tick)));
        }
        for (at, text) in marks.iter().filter(|(_, text)| !text.is_empty()) {
            drawing.text("mark", [horizontal.at(*at), TOP + 10.0], text);
        }
        Plot::new(titles, legend, drawing)
    }
}

fn draw_vertical_axis(drawing: &mut Drawing, axis: &Axis, unit: &str) {
    for tick in axis.ticks(round_step(axis.range() / MAX_INTERVALS)) {
        let y = axis.at(tick);
        drawing.line(if tick == 0.0 { "zero" } else { "grid" }, [LEFT, y], [WIDTH - RIGHT, y]);
        drawing.text("value", [LEFT - 6.0, y + 4.0], format!("{} {unit}", format_figure(tick)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of an attribute in the elements `element`.
    fn values(plot: &Plot, element: &str, attribute: &str) -> Vec<String> {
        let elements = plot.svg.lines().filter_map(|line| line.strip_prefix(&format!("<{element} ")[..]));
        let value = |line: &str| {
            line.split(&format!("{attribute}=\"")[..]).nth(1)?.split('"').next().map(str::to_owned)
        };
        elements.filter_map(value).collect()
    }

    fn numbers(plot: &Plot, element: &str, attribute: &str) -> Vec<f64> {
        values(plot, element, attribute).iter().map(|value| value.parse().unwrap()).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        let ticks = |low, high| {
            let axis = Axis::linear([low, high], VERTICAL);
            axis.ticks(round_step(axis.range() / MAX_INTERVALS))
        };
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
        let bars = |arrangement| {
            let plot = Plot::bars(("t", "c"), "B", &["x", "y"], &groups, arrangement);
            ["x", "y", "height"].map(|attribute| numbers(&plot, "rect", attribute))
        };
        let [x, y, height] = bars(Arrangement::Stacked);
        assert_eq!(x[0], x[1]);
        assert!((y[1] + height[1] - y[0]).abs() < 0.11, "the second bar ends where the first begins");
        assert!((height[1] / height[0] - 3.0).abs() < 0.01);
        let [x, y, height] = bars(Arrangement::Beside);
        assert!(x[0] < x[1]);
        assert!((y[0] + height[0] - y[1] - height[1]).abs() < 0.11);
    }

    #[test]
    fn logarithmic_bars_stand_on_a_power_of_ten() {
        let groups = [("a".to_owned(), vec![20.0, 200.0, 2000.0])];
        let plot = Plot::bars(("t", "c"), "", &["x", "y", "z"], &groups, Arrangement::BesideLogarithmic);
        assert_eq!(values(&plot, "line", "class").len(), 4, "10, 100, 1,000 and 10,000");
        let [low, middle, high] = numbers(&plot, "rect", "height")[..] else { panic!("three bars") };
        assert!((middle - low - (high - middle)).abs() < 0.11 && low > 0.0);
        let empty = [("a".to_owned(), vec![0.0])];
        let plot = Plot::bars(("t", "c"), "", &["x"], &empty, Arrangement::BesideLogarithmic);
        assert_eq!(numbers(&plot, "rect", "height"), [0.0]);
    }

    #[test]
    fn lines_before_zero_begin_at_the_left() {
        let points = vec![(-9.0, 5.0), (1.0, 0.0)];
        let plot = Plot::lines(("t", "c"), ("ms", "B"), &["x"], &[points], &[(0.0, "m".to_owned())]);
        assert_eq!(values(&plot, "polyline", "points"), ["70.0,14.0 1084.0,256.0"]);
        assert!(plot.svg.contains("<line class=\"mark\" x1=\"982.6\""), "nine tenths");
    }

    #[test]
    fn lines_span_the_width() {
        let plot = Plot::lines(("t", "c"), ("ms", "B"), &["x"], &[vec![(0.0, 0.0), (9.0, 5.0)]], &[]);
        assert_eq!(values(&plot, "polyline", "points"), ["70.0,256.0 1084.0,14.0"]);
    }
}
