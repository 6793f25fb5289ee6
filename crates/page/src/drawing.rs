//! The elements of an SVG drawing.

use std::fmt::{self, Display, Formatter, Write};

use crate::Escaped;

/// A position, or a width and a height, in user units of the drawing. One decimal is kept.
pub type Point = [f64; 2];

/// The distance of an axis and its labels.
const AXIS_LABEL: f64 = 18.0;

/// A drawing as SVG text, to which elements are added in the order in which they are drawn.
/// Classes are those of the style sheet.
#[derive(Default)]
pub struct Drawing(String);

impl Display for Drawing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drawing {
    /// Adds SVG text.
    pub fn raw(&mut self, svg: impl Display) {
        write!(self.0, "{svg}").expect("a string takes all text");
        self.0.push('\n');
    }

    /// Adds a line between two points.
    pub fn line(&mut self, class: &str, [x1, y1]: Point, [x2, y2]: Point) {
        self.raw(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    /// Adds a rectangle from its upper left corner. A negative width is drawn as 0.
    pub fn rect(&mut self, class: &str, [x, y]: Point, [width, height]: Point) {
        let width = width.max(0.0);
        self.raw(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }

    /// Adds a circle.
    pub fn circle(&mut self, class: &str, [x, y]: Point, radius: f64) {
        self.raw(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"/>"#));
    }

    /// Adds a path with the attribute `d`.
    pub fn path(&mut self, class: &str, d: impl Display) {
        self.raw(format_args!(r#"<path class="{class}" d="{d}"/>"#));
    }

    /// Adds a line through points.
    pub fn polyline(&mut self, class: &str, points: impl IntoIterator<Item = Point>) {
        let points: Vec<String> = points.into_iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        self.raw(format_args!(r#"<polyline class="{class}" points="{}"/>"#, points.join(" ")));
    }

    /// Adds a text. Its class determines whether the point is the beginning, the middle or the end
    /// of its baseline.
    pub fn text(&mut self, class: &str, [x, y]: Point, text: impl Display) {
        self.raw(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, Escaped(text)));
    }

    /// Adds a group of elements. `attributes` are those of its element; the browser shows
    /// `tooltip`, unless it is empty, over each element of the group.
    pub fn group(&mut self, attributes: impl Display, tooltip: &str, content: impl FnOnce(&mut Drawing)) {
        match tooltip {
            "" => self.raw(format_args!("<g {attributes}>")),
            _ => self.raw(format_args!("<g {attributes}><title>{}</title>", Escaped(tooltip))),
        }
        content(self);
        self.raw("</g>");
    }

    /// Adds a horizontal axis from `[x, y]` to the right end, with its ticks at x positions. A tick
    /// has the length `tick`; its label has the class `tick`.
    pub fn axis(
        &mut self,
        [x, y]: Point,
        right: f64,
        tick: f64,
        ticks: impl IntoIterator<Item = (f64, String)>,
    ) {
        self.line("axis", [x, y], [right, y]);
        for (x, label) in ticks {
            self.line("axis", [x, y], [x, y + tick]);
            self.text("tick", [x, y + AXIS_LABEL], label);
        }
    }

    /// Returns the drawing as an element `svg` of this width and height, with more attributes.
    pub fn finish(self, [width, height]: Point, attributes: &str) -> String {
        format!("<svg viewBox=\"0 0 {width:.1} {height:.1}\" role=\"img\" {attributes}>\n{}</svg>", self.0)
    }
}
