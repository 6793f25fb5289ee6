//! `--report FILE.html`: a page with the measures, the graph, and the sets of processes that defeat
//! it.

use anyhow::Context;
use askama::Template;
use mitra_topology::{Graph, Measures};

use super::drawing::{DRAWING_LIMITS, Drawing, is_drawable};
use super::json::Summary;
use super::text::{certainty, misread_bound, rows, size, suggestion};

#[derive(Template)]
#[template(path = "topology/report.html")]
struct ReportPage<'a> {
    name: &'a str,
    size: String,
    notes: Vec<String>,
    /// `None` if the graph is too large to be drawn.
    drawing: Option<Drawing>,
    drawing_limits: &'static str,
    rows: [(&'static str, String, String); 5],
    misread_bound: String,
    version: &'static str,
}

pub(super) fn page(
    name: &str,
    graph: &Graph,
    measures: &Measures,
    summary: &Summary,
) -> anyhow::Result<String> {
    let page = ReportPage {
        name,
        size: size(summary),
        notes: suggestion(summary).into_iter().chain([certainty(summary).to_owned()]).collect(),
        drawing: is_drawable(graph).then(|| Drawing::new(graph, measures)),
        drawing_limits: DRAWING_LIMITS,
        rows: rows(graph, measures, summary),
        misread_bound: misread_bound(summary),
        version: env!("CARGO_PKG_VERSION"),
    };
    page.render().context("cannot render the report")
}
