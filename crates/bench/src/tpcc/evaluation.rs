//! The evaluation of a run.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use mitra_txn::{Event, serial_order};
use mitra_txn_workloads::tpcc::Kind;
use serde::Serialize;

use super::cluster::{Check, Cluster, Results, Turn};
use super::history::Entry;
use super::process_messages::Variant;
use crate::report::{Report, Row, median, quantile};

/// The transactions, with their names in rows.
pub(super) const KINDS: [(Kind, &str); 5] = [
    (Kind::NewOrder, "new_order"),
    (Kind::Payment, "payment"),
    (Kind::OrderStatus, "order_status"),
    (Kind::Delivery, "delivery"),
    (Kind::StockLevel, "stock_level"),
];
/// The gap of a failure is the longest time between two commits, from the last one before it to
/// `WINDOW` ns after it; a failure without a commit in that time has no row. The throughput counts
/// as recovered `SETTLE` ns after the gap. It is then measured over `WINDOW` ns and compared with
/// the throughput before the failure.
const SETTLE: u64 = 10_000_000;
const WINDOW: u64 = 250_000_000;

/// The measurements of the first process.
pub(super) struct Measured {
    pub(super) variant: Variant,
    round_trip: f64,
    pub(super) failures: Vec<u64>,
    pub(super) returns: Vec<u64>,
    pub(super) killed: Option<u64>,
    pub(super) turns: Vec<Turn>,
    pub(super) timeout: Duration,
}

impl Measured {
    pub(super) fn new(cluster: &Cluster) -> Measured {
        Measured {
            variant: cluster.setup.variant,
            round_trip: cluster.round_trip,
            failures: cluster.failures.clone(),
            returns: cluster.returns.clone(),
            killed: cluster.killed,
            turns: cluster.turns.clone(),
            timeout: cluster.setup.timeout,
        }
    }
}

/// The result of a policy. Its field names in JSON are stable.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    pub(super) policy: &'static str,
    pub(super) committed: u64,
    /// The number of attempts without an effect.
    pub(super) aborted: u64,
    pub(super) aborts: BTreeMap<String, u64>,
    /// The number of attempts that were aborted for other reasons than another transaction or the
    /// program, plus `unknown`.
    pub(super) aborted_by_failures: u64,
    pub(super) unknown: u64,
    pub(super) new_orders_per_minute: f64,
    pub(super) failovers: u64,
    pub(super) failures: u64,
    pub(super) ended_lives: Vec<String>,
    pub(super) recovered_coordinators: u64,
    pub(super) consistency: BTreeMap<String, bool>,
    pub(super) cycles: u64,
    pub(super) stuck_locks: u64,
    /// Whether all copies and the index were correct in the middle and at the end of the run.
    pub(super) is_clean: bool,
    pub(super) corrupt: u64,
}

impl Outcome {
    /// Whether the run kept everything that its policy promises.
    pub(super) fn is_right(&self) -> bool {
        let promises = self.policy == Variant::Exact.name() || self.policy == Variant::Bare.name();
        let is_right = self.consistency.values().all(|holds| *holds)
            && self.cycles == 0
            && self.stuck_locks == 0
            && self.is_clean
            && self.corrupt == 0;
        is_right || !promises
    }
}

/// Returns the outcome of a policy, and its rows.
pub(super) fn evaluate(
    measured: &Measured,
    results: &Results,
    checks: [&Check; 2],
    notes: &mut Vec<String>,
) -> (Outcome, Vec<Row>) {
    let policy = measured.variant.name();
    let events: Vec<Event> = results
        .entries
        .iter()
        .map(|Entry { footprint, begun, told, .. }| Event {
            footprint: footprint.clone(),
            begun: *begun,
            told: *told,
        })
        .collect();
    let order = serial_order(&events);
    if let Err(violation) = &order {
        notes.push(format!("{policy}: no serial order: {}", shortened(&violation.to_string())));
    }
    let mut consistency: BTreeMap<String, bool> = (1..=12).map(|rule| (format!("c{rule}"), true)).collect();
    for check in checks {
        for (rule, holds) in (1..).zip(check.report.conditions()) {
            consistency.entry(format!("c{rule}")).and_modify(|all| *all &= holds);
        }
        notes.extend(
            check
                .report
                .violations
                .iter()
                .take(5)
                .map(|violation| format!("{policy}: {}", shortened(&format!("{violation:?}")))),
        );
        if !check.inspection.is_clean() {
            notes.push(format!("{policy}: {}", check.inspection));
        }
    }
    let seconds: f64 = measured.turns.iter().map(|turn| (turn.to - turn.from) as f64 / 1e9).sum();
    let of_kind = |kind: Kind| results.entries.iter().filter(move |entry| entry.kind == kind);
    let mut aborts: BTreeMap<String, u64> = BTreeMap::new();
    for (reason, count) in results.summaries.iter().flat_map(|summary| &summary.aborts) {
        *aborts.entry(reason.clone()).or_default() += count;
    }
    let unknown = results.summaries.iter().map(|summary| summary.unknown).sum();
    let caused =
        |(reason, _): &(&String, &u64)| !["locked", "changed", "rolled_back"].contains(&reason.as_str());
    let recovered: Vec<u64> =
        results.summaries.iter().flat_map(|summary| summary.recovered.iter().copied()).collect();
    let outcome = Outcome {
        policy,
        committed: results.entries.len() as u64,
        aborted: aborts.values().sum(),
        aborted_by_failures: aborts.iter().filter(caused).map(|(_, count)| count).sum::<u64>() + unknown,
        aborts,
        unknown,
        new_orders_per_minute: of_kind(Kind::NewOrder).count() as f64 / seconds * 60.0,
        failovers: results.summaries.iter().map(|summary| summary.failovers).sum(),
        failures: measured.failures.len() as u64,
        ended_lives: results.summaries.iter().flat_map(|summary| summary.ended_lives.clone()).collect(),
        recovered_coordinators: recovered.len() as u64,
        consistency,
        cycles: u64::from(order.is_err()),
        stuck_locks: checks.iter().map(|check| check.inspection.held_locks.count).max().unwrap_or(0),
        is_clean: checks.iter().all(|check| check.inspection.is_clean()),
        corrupt: results.summaries.iter().map(|summary| summary.corrupt).sum(),
    };
    let mut rows = throughput(measured, &results.entries);
    let round_trip = measured.round_trip / 1e3;
    rows.push(Row { median: round_trip, p99: round_trip, ..row(format!("{policy}/round_trip"), "us", &[]) });
    for (kind, name) in KINDS {
        rows.extend(latency(policy, name, round_trip, &of_kind(kind).collect::<Vec<_>>()));
    }
    let sum = |of: fn(&super::process_messages::Summary) -> u64| {
        results.summaries.iter().map(of).sum::<u64>() as f64
    };
    let committed = results.entries.len().max(1) as f64;
    for (name, unit, total) in [
        ("requests", "/transaction", sum(|summary| summary.requests)),
        ("bytes", "B/transaction", sum(|summary| summary.bytes)),
        ("doorbells", "/transaction", sum(|summary| summary.doorbells)),
    ] {
        rows.push(row(format!("{policy}/{name}"), unit, &[total / committed]));
    }
    rows.extend(failures(measured, &results.entries));
    if let Some(killed) = measured.killed {
        let until = recovered.iter().filter(|&&at| at > killed).min();
        let times: Vec<f64> = until.iter().map(|&&at| (at - killed) as f64 / 1e6).collect();
        let timeout = measured.timeout.as_secs_f64() * 1e3;
        rows.push(Row {
            baseline: Some("the detector's time-out".to_owned()),
            baseline_median: Some(timeout),
            ratio: times.first().map(|time| time / timeout),
            ..row(format!("{policy}/recovery_of_killed_coordinator"), "ms", &times)
        });
    }
    (outcome, rows)
}

fn shortened(message: &str) -> String {
    let end = message.char_indices().nth(300).map_or(message.len(), |(at, _)| at);
    message[..end].to_owned()
}

fn row(name: String, unit: &'static str, values: &[f64]) -> Row {
    Row { name, unit, median: median(values), p99: quantile(values, 0.99), ..Row::default() }
}

/// The rates of committed transactions, per second and per CPU-second, one block per turn. A
/// Delivery is one transaction of ten database transactions.
fn throughput(measured: &Measured, entries: &[Entry]) -> Vec<Row> {
    let policy = measured.variant.name();
    let turns = |of: &dyn Fn(&Turn) -> f64| measured.turns.iter().map(of).collect::<Vec<_>>();
    let by_cpu = |turn: &Turn, count: f64| count / (turn.cpu.memories + turn.cpu.coordinators).max(1e-9);
    let all = |_: &Entry| 1.0;
    let cards = |entry: &Entry| if entry.kind == Kind::Delivery { 0.1 } else { 1.0 };
    let count = |turn: &Turn, of: &dyn Fn(&Entry) -> f64| -> f64 {
        entries.iter().filter(|entry| (turn.from..turn.to).contains(&entry.told)).map(of).sum()
    };
    let rates = [
        ("throughput", "/s", turns(&|turn| rate(entries, turn.from, turn.to))),
        ("transactions", "1/cpu-s", turns(&|turn| by_cpu(turn, count(turn, &cards)))),
        ("database_transactions", "1/cpu-s", turns(&|turn| by_cpu(turn, count(turn, &all)))),
    ];
    let rates = rates.into_iter().map(|(name, unit, values)| Row {
        p99: quantile(&values, 0.01),
        blocks: values.clone(),
        ..row(format!("{policy}/{name}"), unit, &values)
    });
    let times = [
        ("memories", turns(&|turn| turn.cpu.memories)),
        ("coordinators", turns(&|turn| turn.cpu.coordinators)),
    ];
    let times = times.into_iter().map(|(name, values)| Row {
        blocks: values.clone(),
        ..row(format!("{policy}/cpu/{name}"), "s", &values)
    });
    rates.chain(times).collect()
}

fn rate(entries: &[Entry], from: u64, to: u64) -> f64 {
    let count = entries.iter().filter(|entry| (from..to).contains(&entry.told)).count();
    count as f64 / ((to - from).max(1) as f64 / 1e9)
}

/// The latency of transactions from the call to the return. The baseline is the time of the round
/// trips that a transaction waited for.
fn latency(policy: &str, name: &str, round_trip: f64, entries: &[&Entry]) -> Vec<Row> {
    let all: Vec<f64> = entries.iter().map(|entry| (entry.told - entry.begun) as f64 / 1e3).collect();
    let floors: Vec<f64> = entries.iter().map(|entry| f64::from(entry.round_trips) * round_trip).collect();
    let trips: Vec<f64> = entries.iter().map(|entry| f64::from(entry.round_trips)).collect();
    let floor = median(&floors);
    let latency = format!("{policy}/latency/{name}");
    vec![
        Row {
            baseline: Some(format!("{policy}/round_trips/{name}")),
            baseline_median: Some(floor),
            ratio: (floor > 0.0).then(|| median(&all) / floor),
            ..row(latency, "us", &all)
        },
        row(format!("{policy}/round_trips/{name}"), "", &trips),
    ]
}

/// The gap of each rail failure, and the ratio of the throughput after
/// the failure to the throughput before.
fn failures(measured: &Measured, entries: &[Entry]) -> Vec<Row> {
    let policy = measured.variant.name();
    if measured.failures.is_empty() {
        return Vec::new();
    }
    let mut told: Vec<u64> = entries.iter().map(|entry| entry.told).collect();
    told.sort_unstable();
    let (mut gaps, mut ratios) = (Vec::new(), Vec::new());
    for &failure in &measured.failures {
        let turn = measured.turns.iter().find(|turn| (turn.from..turn.to).contains(&failure));
        let Some(&Turn { from, to, .. }) = turn else { continue };
        let first = told.partition_point(|&at| at < failure);
        let near =
            &told[first.saturating_sub(1)..told.partition_point(|&at| at < (failure + WINDOW).min(to))];
        let Some(gap) = near.windows(2).map(|pair| (pair[1] - pair[0], pair[1])).max() else { continue };
        gaps.push(gap.0 as f64 / 1e6);
        let after = gap.1 + SETTLE;
        if failure >= from + WINDOW && after + WINDOW <= to {
            ratios.push(
                rate(entries, after, after + WINDOW) / rate(entries, failure - WINDOW, failure).max(1.0),
            );
        }
    }
    vec![
        row(format!("{policy}/failover/gap"), "ms", &gaps),
        Row {
            p99: quantile(&ratios, 0.01),
            ..row(format!("{policy}/failover/throughput_after"), "x before", &ratios)
        },
    ]
}

/// Compares each policy's rates with the rates of bare queue pairs, turn by turn.
pub(super) fn compare(rows: &mut [Row]) {
    for rate in ["throughput", "transactions", "database_transactions"] {
        let baseline = format!("{}/{rate}", Variant::Bare.name());
        let Some(bare) = rows.iter().find(|row| row.name == baseline).cloned() else { return };
        let is_beside = |row: &&mut Row| {
            row.name != baseline && row.name.split_once('/').is_some_and(|(_, name)| name == rate)
        };
        for row in rows.iter_mut().filter(is_beside) {
            let ratios: Vec<f64> =
                row.blocks.iter().zip(&bare.blocks).map(|(own, bare)| own / bare.max(1.0)).collect();
            row.baseline = Some(baseline.clone());
            row.baseline_median = Some(bare.median);
            row.ratio = Some(median(&ratios));
        }
    }
}

/// The report with the outcomes. The fields of the first outcome also appear at the top level.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    first: Option<&'a Outcome>,
    policies: &'a [Outcome],
}

pub(super) fn print(report: &Report, outcomes: &[Outcome], json: bool) -> anyhow::Result<()> {
    if json {
        let mut out = io::stdout().lock();
        let first = outcomes.first();
        serde_json::to_writer(&mut out, &Json { report, first, policies: outcomes })
            .map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    report.print(false)?;
    let mut out = io::stdout().lock();
    for outcome in outcomes {
        let failed: Vec<_> =
            outcome.consistency.iter().filter(|(_, holds)| !**holds).map(|(name, _)| name.as_str()).collect();
        let conditions = match failed.as_slice() {
            [] => "all twelve conditions hold".to_owned(),
            failed => format!("violated: {}", failed.join(", ")),
        };
        writeln!(
            out,
            "{}: {} committed, {:.0} new orders a minute, {} aborted attempts {:?}, {} of them by failures; {} failures, {} failovers, \
             {} lives ended, {} recovered; {conditions}; {}; {} stuck locks; tables {}",
            outcome.policy,
            outcome.committed,
            outcome.new_orders_per_minute,
            outcome.aborted,
            outcome.aborts,
            outcome.aborted_by_failures,
            outcome.failures,
            outcome.failovers,
            outcome.ended_lives.len(),
            outcome.recovered_coordinators,
            if outcome.cycles == 0 { "serializable" } else { "NOT serializable" },
            outcome.stuck_locks,
            if outcome.is_clean { "clean" } else { "NOT clean" },
        )?;
    }
    Ok(out.flush()?)
}
