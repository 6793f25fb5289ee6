//! `--report FILE.html`: a report as one page, with tables, plots and all rows.

use anyhow::Context;
use askama::Template;
use mitra_page::{Cell, Table};

use super::plot::Plot;
use super::{Report, Row};

/// The part of a page above the report's rows.
pub(crate) struct Page {
    /// The result in a line.
    pub(crate) heading: String,
    /// A sentence about the measurement, which follows the description of the machine.
    pub(crate) about: &'static str,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
}

#[derive(Template)]
#[template(path = "report/page.html")]
struct Html<'a> {
    name: &'a str,
    machine: String,
    page: Page,
    rows: Table,
    /// The warnings about the machine that make the figures unreliable. The page prints them above
    /// the figures.
    warnings: Vec<String>,
    notes: Vec<&'a String>,
    version: &'static str,
}

impl Page {
    /// Returns the page as HTML.
    ///
    /// # Errors
    /// The template fails.
    pub(crate) fn render(self, report: &Report) -> anyhow::Result<String> {
        let machine = &report.machine;
        let warnings = machine.warnings();
        let html = Html {
            name: report.name,
            machine: format!(
                "{}, {} CPUs, Linux {}, load {:.1}",
                machine.cpu, machine.cpus, machine.kernel, machine.load
            ),
            page: self,
            rows: all_rows(&report.rows),
            notes: report.notes.iter().filter(|note| !warnings.contains(note)).collect(),
            warnings,
            version: env!("CARGO_PKG_VERSION"),
        };
        let title = format!("mitra bench {}", report.name);
        let body = html.render().context("cannot render the report")?;
        Ok(mitra_page::page(&title, include_str!("page.css"), &body))
    }
}

fn all_rows(rows: &[Row]) -> Table {
    let cells = |[name, unit, median, p99, baseline, its_median, ratio]: [String; 7]| {
        let [name, unit, baseline] = [name, unit, baseline].map(Cell::text);
        let [median, p99, its_median, ratio] = [median, p99, its_median, ratio].map(Cell::number);
        vec![name, unit, median, p99, baseline, its_median, ratio]
    };
    let header = ["row", "unit", "median", "p99", "beside", "its median", "ratio"];
    Table {
        title: "All rows".to_owned(),
        header: cells(header.map(str::to_owned)),
        rows: rows.iter().map(|row| cells(row.cells())).collect(),
        ..Table::default()
    }
}
