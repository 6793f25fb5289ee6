//! The text of `mitra watch`.

use std::time::Duration;

use mitra_metrics::{EventSnapshot, HistogramSnapshot, RailSnapshot, Snapshot};

use super::observation::{Answer, Observation};
use super::vqp_table::{self, Order};
use crate::cli::text_table;

/// The number of events that a screen shows for a process, if there is room.
const EVENTS: usize = 8;
/// The least number of lines that a process has, so that its rails and some queue pairs are
/// visible.
const MIN_LINES: usize = 8;

/// The size of the screen, in characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// Returns the lines of the screen, none longer than its width and not more than it has rows.
pub(super) fn lines(
    observations: &[Observation],
    before: &[Observation],
    elapsed: Duration,
    order: Order,
    size: Size,
) -> Vec<String> {
    // Every process gets the same share of the screen. One line says how many processes do not fit.
    let rows = size.rows.max(1);
    let shown = observations.len().min(((rows - 1) / MIN_LINES).max(1));
    let hidden = observations.len() - shown;
    let share = (rows - usize::from(hidden > 0)) / shown;
    let mut lines = Vec::new();
    for observation in &observations[..shown] {
        let previous = before.iter().find(|previous| previous.pid == observation.pid);
        let mut part = process(observation, previous, elapsed, order, share);
        part.truncate(share);
        lines.append(&mut part);
    }
    if hidden > 0 {
        lines.push(format!("{hidden} more processes: select with --pid or --program, or enlarge the window"));
    }
    lines.iter().map(|line| fit(line, size.columns)).collect()
}

/// Cuts a line at the width of the screen. Control characters, which an argument of a program or a
/// snapshot of a hostile process may have, would move the cursor.
fn fit(line: &str, columns: usize) -> String {
    let line: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    console::truncate_str(&line, columns, "…").into_owned()
}

/// Adds counts, which a hostile process may have made large.
pub(super) fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Returns the lines of one process, about `rows` of them.
fn process(
    observation: &Observation,
    previous: Option<&Observation>,
    elapsed: Duration,
    order: Order,
    rows: usize,
) -> Vec<String> {
    let pid = observation.pid;
    let (program, snapshot) = match &observation.answer {
        Answer::Failed { error } => return vec![format!("{pid}: {error}")],
        Answer::Snapshot { program, snapshot } => (program, snapshot),
    };
    let previous = previous.and_then(Observation::snapshot);
    let mut lines = vec![format!("{pid}: {program}"), totals(snapshot)];
    lines.extend(rail_table(snapshot, previous, elapsed));
    lines.extend(durations(snapshot));
    let room = rows.saturating_sub(lines.len());
    let events = snapshot.events.len().min(EVENTS).min(room / 3);
    if !snapshot.vqps.is_empty() {
        let room = room.saturating_sub(if events > 0 { events + 1 } else { 0 });
        lines.extend(vqp_table::lines(snapshot, previous, elapsed, order, room));
    }
    if events > 0 {
        lines.push("  last events".to_owned());
        lines.extend(snapshot.events.iter().rev().take(events).map(event));
    }
    lines
}

fn totals(snapshot: &Snapshot) -> String {
    if snapshot.vqp_count == 0 && snapshot.closed.is_empty() {
        return format!("  queue pairs {}", snapshot.queue_pairs);
    }
    let sum = |count: fn(&RailSnapshot) -> u64| total(snapshot.rails.iter().map(count));
    let mut line = format!(
        "  virtual queue pairs {}, recovering {}, failovers {}, failbacks {}; operations replayed {}, ambiguous {}, failed {}",
        snapshot.vqp_count,
        snapshot.recovering,
        sum(|rail| rail.failover.failovers),
        sum(|rail| rail.failover.failbacks),
        sum(|rail| rail.failover.replayed),
        sum(|rail| rail.failover.ambiguous),
        sum(|rail| rail.failover.failed),
    );
    for (reason, count) in &snapshot.closed {
        line.push_str(&format!("; closed {reason} {count}"));
    }
    line
}

fn rail_table(snapshot: &Snapshot, previous: Option<&Snapshot>, elapsed: Duration) -> Vec<String> {
    let heading = ["rail", "address", "state", "received/s", "sent/s", "resent", "failed", "left"];
    let rows = snapshot.rails.iter().enumerate().map(|(index, rail)| {
        let before = previous.and_then(|previous| previous.rails.get(index));
        let counter = |name: &str| rail.counters.get(name).copied();
        let rate = |name: &str| {
            let difference = counter(name)?.checked_sub(*before?.counters.get(name)?)?;
            Some(bytes(difference as f64 / elapsed.as_secs_f64().max(1e-3)))
        };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        [
            format!("rail{index}"),
            rail.status.address_and_device(),
            rail.status.state.to_string(),
            or_dash(rate("rx_bytes")),
            or_dash(rate("tx_bytes")),
            or_dash(counter("retransmitted_packets").map(|count| count.to_string())),
            total(rail.failover.detected.values().copied()).to_string(),
            rail.failover.failovers.to_string(),
        ]
    });
    text_table::layout(2, &[3, 4, 5, 6, 7], [heading.map(str::to_owned)].into_iter().chain(rows))
}

/// Returns a line about the durations of failovers, and a line about latencies, if there are any.
fn durations(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(total) = snapshot.durations.get("total").filter(|total| total.count > 0) {
        let phases = ["negotiate", "fence", "decide", "replay"].map(|phase| {
            let p99 = snapshot.durations.get(phase).map_or_else(|| "-".to_owned(), |h| bound(h, h.p99_ns));
            format!("{phase} {p99}")
        });
        lines.push(format!(
            "  recovery: half {}, 99% {} ({})",
            bound(total, total.p50_ns),
            bound(total, total.p99_ns),
            phases.join(", ")
        ));
    }
    if let Some(latency) = &snapshot.latency {
        lines.push(format!(
            "  latency of {} operations: half {}, 99% {}",
            latency.count,
            bound(latency, latency.p50_ns),
            bound(latency, latency.p99_ns)
        ));
    }
    lines
}

/// Writes an upper bound of a quantile.
fn bound(histogram: &HistogramSnapshot, nanos: Option<u64>) -> String {
    match nanos {
        Some(nanos) => format!("≤ {:?}", Duration::from_nanos(nanos)),
        None if histogram.count == 0 => "-".to_owned(),
        None => "> 50s".to_owned(),
    }
}

fn event(event: &EventSnapshot) -> String {
    format!("  {:>8} ago  vqp {:#08x}  {}", age(Duration::from_nanos(event.age_ns)), event.vqp, event.step)
}

/// Writes an age in at most six characters.
pub(super) fn age(age: Duration) -> String {
    match age.as_secs() {
        0 => format!("{} ms", age.as_millis()),
        seconds @ 1..100 => format!("{}.{} s", seconds, age.subsec_millis() / 100),
        seconds @ 100..6000 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// Writes a number of bytes with three digits.
fn bytes(bytes: f64) -> String {
    scaled(bytes, &["B", "kB", "MB", "GB", "TB"])
}

/// Writes a number with three digits and one of the units, each 1000 times the one before.
pub(super) fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    let text = format!("{value:.digits$} {}", units[unit]);
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests;
