#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// A part of the program without an interface of its own (RELEASING.md).
#![allow(missing_docs)]

mod axis;
mod drawing;
mod escape;
mod table;

pub use axis::{Axis, round_step};
pub use drawing::{Drawing, Point};
pub use escape::Escaped;
pub use table::{Cell, Table};

/// Returns an HTML page. `style` follows the style that every page has; `body` is HTML.
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{}</title>
<style>
{}{style}</style></head>
<body><main>
{body}
</main></body></html>
"#,
        Escaped(title),
        include_str!("page.css"),
    )
}
