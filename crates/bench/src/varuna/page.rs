//! `--report FILE.html`: one page with the claims, the plots and all rows.

use mitra_page::{Cell, Table};

use crate::failover_trial::{Mix, TrialPolicy};
use crate::report::page::Page;
use crate::report::plot::{Arrangement, Plot};
use crate::report::{Claim, Report, Row, format_figure};

/// Returns the report as HTML.
///
/// # Errors
/// The template fails.
pub(super) fn render(report: &Report) -> anyhow::Result<String> {
    let met = report.claims.iter().filter(|claim| claim.met).count();
    let page = Page {
        heading: format!("{met} of {} targets met", report.claims.len()),
        about: "Software NICs of two processes on loopback. Every ratio compares blocks of the same round.",
        tables: if report.claims.is_empty() { Vec::new() } else { vec![claims(&report.claims)] },
        plots: plots(&report.rows),
    };
    page.render(report)
}

fn claims(claims: &[Claim]) -> Table {
    let row = |claim: &Claim| {
        vec![
            Cell::text(claim.name.as_str()),
            Cell::text(claim.paper),
            Cell::text(claim.target),
            Cell::number(format!("{} {}", format_figure(claim.value), claim.unit)),
            Cell::verdict(claim.met, "met", "missed"),
        ]
    };
    let [figure, paper, target] = ["figure", "paper (hardware NICs)", "target"].map(Cell::text);
    Table {
        title: "The paper, the target, this run".to_owned(),
        header: vec![figure, paper, target, Cell::number("here"), Cell::text("")],
        rows: claims.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Returns the plots for which the run has rows.
fn plots(rows: &[Row]) -> Vec<Plot> {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    let mut plots = Vec::new();
    for (measure, title) in
        [("", "Latency above the bare queue pair"), ("/rate", "Throughput above the bare queue pair")]
    {
        plots.extend(overhead(rows, measure, title));
    }
    for mix in Mix::HEAVY {
        plots.extend(in_flight(&find, mix));
    }
    plots.extend(resent(&find, "", "Payload sent again after a failure", "B"));
    plots.extend(resent(
        &find,
        "/recovery",
        "Time from detection to the last completion of what was in flight",
        "µs",
    ));
    plots.extend(phases(&find, "Median of each phase of a failover under exact", |row| row.median));
    plots.extend(phases(&find, "99th percentile of each phase", |row| row.p99));
    plots.extend(timeline(&find));
    plots
}

/// Draws the ratios of the rows `overhead/OP/SIZE/EVIDENCE` + `measure`.
fn overhead(rows: &[Row], measure: &str, title: &str) -> Option<Plot> {
    const EVIDENCE: [&str; 5] = ["aa", "none", "psn", "log", "log4"];
    let mut groups: Vec<(String, Vec<f64>)> = Vec::new();
    for row in rows {
        let parts: Vec<&str> = row.name.split('/').collect();
        let is_measure = if measure.is_empty() { parts.len() == 4 } else { parts.len() == 5 };
        if parts[0] != "overhead" || !is_measure || parts[3] == "qp" {
            continue;
        }
        let name = format!("{} {}", parts[1], format_size(parts[2]));
        if groups.last().is_none_or(|(last, _)| *last != name) {
            groups.push((name, Vec::new()));
        }
        let percent = (row.ratio.unwrap_or(1.0) - 1.0) * 100.0;
        groups.last_mut().map(|(_, values)| values.push(percent))?;
    }
    let caption = "Medians over the rounds of one run, in percent. aa is a second bare queue pair: its distance from 0 is the noise. none is a \
                   vQP with policy none, psn one with policy exact, log one with a completion log too, log4 one whose log has an entry for \
                   every fourth WRITE.";
    (!groups.is_empty()).then(|| Plot::bars((title, caption), "%", &EVIDENCE, &groups, Arrangement::Beside))
}

/// Formats a size in bytes with a binary unit.
fn format_size(bytes: &str) -> String {
    match bytes.parse::<u64>() {
        Ok(bytes) if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        Ok(bytes) if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Draws the operations in flight of one mix by class, over the failure times.
fn in_flight<'a>(find: &impl Fn(&str) -> Option<&'a Row>, mix: Mix) -> Option<Plot> {
    let of = |class: &str| find(&format!("inflight/{}/{class}", mix.name()));
    let (pre, post, times) = (of("pre-failure")?, of("post-failure")?, of("failure_time")?);
    let groups: Vec<(String, Vec<f64>)> = pre
        .blocks
        .iter()
        .zip(&post.blocks)
        .zip(&times.blocks)
        .map(|((&pre, &post), &time)| (format!("{time:.0} µs"), vec![post, pre]))
        .collect();
    let title = format!("Operations in flight at the failure, {} mix", mix.name());
    let caption = "One bar for each failure, in the order of the time since the first post (the paper's figure 3). Executed \
                   operations need no retransmission.";
    let legend = ["post-failure (executed)", "pre-failure (not executed)"];
    Some(Plot::bars((&title, caption), "", &legend, &groups, Arrangement::Stacked))
}

/// Draws the medians of `resent/POLICY/MIX` + `measure`.
fn resent<'a>(
    find: &impl Fn(&str) -> Option<&'a Row>,
    measure: &str,
    title: &str,
    unit: &str,
) -> Option<Plot> {
    let policies = TrialPolicy::ALL.map(TrialPolicy::name);
    let groups: Vec<(String, Vec<f64>)> = Mix::HEAVY
        .iter()
        .map(|mix| {
            let value = |policy: &&str| {
                find(&format!("resent/{policy}/{}{measure}", mix.name())).map_or(0.0, |row| row.median)
            };
            (mix.name().to_owned(), policies.iter().map(value).collect())
        })
        .collect();
    find(&format!("resent/exact/{}", Mix::ReadHeavy.name()))?;
    let caption = "Medians over the failures. All but exact are baselines: blanket and cached execute operations twice, delay \
                   does so if a packet is late by more than 10 ms, none and transparent end operations in errors.";
    Some(Plot::bars((title, caption), unit, &policies, &groups, Arrangement::Beside))
}

/// Draws a statistic of each phase of a failover. The phases have a plot for each statistic,
/// because the 99th percentile may be a hundred times the median.
fn phases<'a>(
    find: &impl Fn(&str) -> Option<&'a Row>,
    title: &str,
    statistic: fn(&Row) -> f64,
) -> Option<Plot> {
    let phase = |name: &&str| Some(((*name).to_owned(), vec![statistic(find(&format!("failover/{name}"))?)]));
    let groups = super::trials::PHASES.iter().map(phase).collect::<Option<Vec<_>>>()?;
    let caption = "In order, from the fault to the last completion of the operations that were in flight.";
    Some(Plot::bars((title, caption), "µs", &["phase"], &groups, Arrangement::Beside))
}

fn timeline<'a>(find: &impl Fn(&str) -> Option<&'a Row>) -> Option<Plot> {
    let rate = find("timeline/rate")?;
    let points = rate.blocks.iter().enumerate().map(|(ms, &rate)| (ms as f64, rate)).collect();
    let mark = |name: &str, text: &str| Some((find(&format!("timeline/{name}_at"))?.median, text.to_owned()));
    let marks = [mark("failover", "rail 0 fails")?, mark("failback", "rail 1 fails")?];
    let caption = "The link of rail 0 heals before that of rail 1 fails, so the second failure returns the vQP to rail 0.";
    Some(Plot::lines(
        ("Throughput through a failure and back", caption),
        ("ms", "MB/s"),
        &["WRITE"],
        &[points],
        &marks,
    ))
}
