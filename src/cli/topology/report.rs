//! `--report FILE.html`: a page with the measures, the graph, and the sets of processes that defeat
//! it.

use anyhow::Context;
use askama::Template;
use mitra_page::{Cell, Table};
use mitra_topology::{Graph, Measures};

use super::drawing::{DRAWING_LIMITS, drawing, is_drawable};
use super::json::Summary;
use super::text::{certainty, misread_bound, rows, size, suggestion};

const STYLE: &str = "\
th, td { text-align: left; } td.value { font-weight: 600; white-space: nowrap; } section + p { margin-top: 16px; }
";

#[derive(Template)]
#[template(path = "topology/report.html")]
struct ReportPage<'a> {
    name: &'a str,
    size: String,
    notes: Vec<String>,
    /// `None` if the graph is too large to be drawn.
    drawing: Option<String>,
    drawing_limits: &'static str,
    table: Table,
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
        drawing: is_drawable(graph).then(|| drawing(graph, measures)),
        drawing_limits: DRAWING_LIMITS,
        table: Table {
            header: ["measure", "value", "source, or the set that defeats it"].map(Cell::text).into(),
            rows: rows(graph, measures, summary).map(row).into(),
            ..Table::default()
        },
        misread_bound: misread_bound(summary),
        version: env!("CARGO_PKG_VERSION"),
    };
    let body = page.render().context("cannot render the report")?;
    Ok(mitra_page::page(&format!("mitra topology: {name}"), STYLE, &body))
}

fn row((measure, value, reason): (&'static str, String, String)) -> Vec<Cell> {
    vec![Cell::text(measure), Cell { text: value, class: "value" }, Cell::text(reason)]
}
