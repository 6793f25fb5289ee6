//! Lengths and rectangles of SVG drawings, formatted for the templates of the reports.

use std::fmt;

/// A length or position in a drawing, in user units of the SVG, with one decimal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Px(pub(crate) f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

/// A rectangle in a drawing. A negative width is drawn as 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Rect {
    pub(crate) x: Px,
    pub(crate) y: Px,
    pub(crate) width: Px,
    pub(crate) height: Px,
}

impl Rect {
    pub(crate) fn new(x: f64, y: f64, width: f64, height: f64) -> Rect {
        Rect { x: Px(x), y: Px(y), width: Px(width.max(0.0)), height: Px(height) }
    }
}
