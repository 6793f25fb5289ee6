//! `--report FILE.html`: a page with the time line of one world. It shows each packet, fault, move
//! and completion, with the findings above.

mod drawing;
mod lanes;
mod time_axis;

use anyhow::Context;
use askama::Template;
use mitra_sweep::Workload;
use mitra_sweep::seeded::{Finding, Reduction};

use super::summary::plural;
use drawing::DrawnTimeline;
use time_axis::format_time;

#[derive(Template)]
#[template(path = "seeded_runs/report/report.html")]
struct ReportPage<'a> {
    workload: &'a str,
    world: &'a str,
    seed: u64,
    findings: Vec<FindingLines<'a>>,
    cards: Vec<(String, String)>,
    /// The number of faults that happened.
    faults: u64,
    shrunk: Option<String>,
    schedule: &'a [String],
    drawing: Option<DrawnTimeline>,
    setup: &'a [String],
    command: String,
    version: &'static str,
}

/// A finding: its first line, and its other lines.
struct FindingLines<'a> {
    checker: &'a str,
    summary: &'a str,
    rest: &'a str,
}

impl<'a> FindingLines<'a> {
    fn new(finding: &'a Finding) -> FindingLines<'a> {
        let (summary, rest) = finding.detail.split_once('\n').unwrap_or((&finding.detail, ""));
        FindingLines { checker: finding.checker, summary, rest }
    }
}

/// The number of records that are kept for a page.
const KEPT_RECORDS: usize = 100_000;

/// Runs the reduced world of a seed, and returns the page that shows the world.
pub(super) fn page(workload: &Workload, seed: u64, reduction: &Reduction) -> anyhow::Result<String> {
    let run = workload.run_reduced(seed, reduction, KEPT_RECORDS).map_err(anyhow::Error::msg)?;
    let events = &run.timeline.events;
    let card = |count: u64, noun: &str, rest: &str| (count.to_string(), plural(count, noun) + rest);
    let mut cards = vec![card(run.operations, workload.unit, ""), card(run.faults, "fault", " happened")];
    if let Some(last) = events.last() {
        let records = events.len() as u64 + run.timeline.earlier;
        cards.push(card(records, "record", " of packets, completions and faults"));
        cards.push((format_time(last.at.as_nanos()), "of virtual time".to_owned()));
    }
    let page = ReportPage {
        workload: workload.name,
        world: workload.world,
        seed,
        findings: run.findings.iter().map(FindingLines::new).collect(),
        cards,
        faults: run.faults,
        shrunk: (!reduction.is_empty()).then(|| reduction.to_string()),
        schedule: &run.schedule,
        drawing: DrawnTimeline::new(&run.timeline),
        setup: &run.setup,
        command: workload.command(seed, reduction),
        version: env!("CARGO_PKG_VERSION"),
    };
    let body = page.render().context("cannot render the report")?;
    let title = format!("mitra sim: {}, seed {seed}", workload.name);
    Ok(mitra_page::page(&title, include_str!("style.css"), &body))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part of a world has its lane, and the page shows packets, losses, faults, operations
    /// and completions.
    #[test]
    fn page_draws_a_world() {
        let workload = Workload::find("failover").unwrap();
        let page = page(&workload, 11, &Reduction::default()).unwrap();
        for part in [
            "No checker finds anything",
            ">host a</text>",
            ">host b</text>",
            ">rail 0</text>",
            ">a0</text>",
            "class=\"packet request\"",
            "class=\"packet response\"",
            "class=\"packet control\"",
            "class=\"cross\"",
            "class=\"mark completion\"",
            "class=\"mark posts\"",
            "class=\"mark ends\"",
            "class=\"outage\"",
            "a0 link down</text>",
            "moves from rail",
            "href=\"#moment-0\"",
            "class=\"schedule\"",
            "<li>from the start: when WRITE 8 is posted at a0, the link of b0 goes down</li>",
            "href=\"#moment-0\">the first fault, 10.4 µs: a0 link down</a>",
            "href=\"#end\">the last record drawn",
            "mitra sim --workload failover --seeds 1 --from 11</code>",
        ] {
            assert!(page.contains(part), "no {part:?}");
        }
        assert!(page.len() < 2_000_000, "{} bytes", page.len());
    }

    #[test]
    fn workload_without_a_world_of_nics_has_no_time_line() {
        let page = page(&Workload::find("paxos").unwrap(), 1, &Reduction::default()).unwrap();
        assert!(page.contains("This workload has no time line") && !page.contains("<svg"));
        assert!(page.contains("</b><span>steps</span>") && !page.contains("operation"), "{page}");
        for part in ["of virtual time", "record", "those that happened"] {
            assert!(!page.contains(part), "{part}: {page}");
        }
    }
}
