//! Measures `mitra kv` with `redis-benchmark`, and for comparison a store replicated by Raft, and
//! Redis without replication.

use std::process::Command;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;

use super::store_processes::{Store, StoreKind, is_installed};
use crate::report::{Blocks, Row};

/// The length of a value in bytes.
const SIZE: usize = 64;
const CLIENTS: &str = "50";
/// The number of requests that a client sends at once in a pipelined load.
const PIPELINE: u32 = 16;

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// The name of the test in `redis-benchmark`.
    test: &'static str,
    pipeline: u32,
    /// The factor on the number of requests. A fast load needs more requests for a measurable
    /// duration.
    request_factor: u32,
}

const LOADS: [Load; 4] = [
    Load { name: "set", test: "set", pipeline: 1, request_factor: 1 },
    Load { name: "get", test: "get", pipeline: 1, request_factor: 1 },
    Load { name: "set-pipelined", test: "set", pipeline: PIPELINE, request_factor: 4 },
    Load { name: "get-pipelined", test: "get", pipeline: PIPELINE, request_factor: 4 },
];

/// The measured values of a store under a load, in this order, with their units.
const MEASURES: [(&str, &str); 3] = [("latency", "us"), ("rate", "op/s"), ("cpu", "op/cpu-s")];

type Measured = [Blocks; MEASURES.len()];

/// Returns the number of progress steps of [`rows`].
pub(super) fn steps(rounds: u32) -> u64 {
    u64::from(rounds) * StoreKind::ALL.len() as u64
}

/// Returns three rows per store and load, and a note for each store that is not installed.
pub(super) fn rows(requests: u32, rounds: u32, bar: &ProgressBar) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    if !is_installed("redis-benchmark") {
        let note = "kv/…, raft/… and redis/… are left out: install redis-benchmark (Debian's redis-tools)";
        return Ok((Vec::new(), vec![note.to_owned()]));
    }
    let notes = StoreKind::ALL.iter().filter_map(|kind| kind.missing_note()).map(str::to_owned).collect();
    let kinds: Vec<StoreKind> =
        StoreKind::ALL.into_iter().filter(|kind| kind.missing_note().is_none()).collect();
    let mut found: Vec<[Measured; LOADS.len()]> = vec![Default::default(); kinds.len()];
    for round in 0..rounds as usize {
        for at in 0..kinds.len() {
            // The first store rotates, so that each begins equally often. Only one store runs at a
            // time, because an idle store uses CPU time too.
            let at = (at + round) % kinds.len();
            bar.set_message(kinds[at].name());
            block(kinds[at], requests, &mut found[at]).with_context(|| kinds[at].name())?;
            bar.inc(1);
        }
    }
    let baseline = kinds.iter().position(|&kind| kind == StoreKind::Raft);
    let mut rows = Vec::new();
    for (kind, measured) in kinds.iter().zip(&found) {
        for (l, load) in LOADS.iter().enumerate() {
            for (m, (measure, unit)) in MEASURES.iter().enumerate() {
                let name = |kind: StoreKind| format!("{}/{}/{measure}", kind.name(), load.name);
                let blocks = &measured[l][m];
                let row = blocks.row(name(*kind), unit);
                rows.push(match baseline.filter(|_| *kind == StoreKind::Kv) {
                    Some(raft) => row.with_baseline(blocks, name(StoreKind::Raft), &found[raft][l][m]),
                    None => row,
                });
            }
        }
    }
    Ok((rows, notes))
}

/// Measures one block of a store: starts it, runs each load, checks the stored values, and stops
/// it.
fn block(kind: StoreKind, requests: u32, found: &mut [Measured; LOADS.len()]) -> anyhow::Result<()> {
    let store = kind.start()?;
    // Each key is written about ten times.
    let keys = (requests / 10).clamp(1, 10_000);
    run_load(&store, &LOADS[0], requests.div_ceil(10), keys)?;
    for (one, measured) in LOADS.iter().zip(found) {
        let (RedisFigures { rate, median, p99 }, cpu) =
            measure(&store, one, requests * one.request_factor, keys)?;
        for (blocks, (median, p99)) in measured.iter_mut().zip([(median, p99), (rate, rate), (cpu, cpu)]) {
            blocks.push(median, p99);
        }
    }
    store.check(keys, SIZE)
}

/// The factor by which [`measure`] increases the number of requests, and the limit of increases.
const MORE_REQUESTS: (u32, u32) = (8, 3);

/// Runs a load. Also returns the requests per second of CPU time. `redis-benchmark` measures the
/// duration in milliseconds, so a load of less than 1 ms is repeated with more requests.
fn measure(store: &Store, load: &Load, requests: u32, keys: u32) -> anyhow::Result<(RedisFigures, f64)> {
    let (factor, repetitions) = MORE_REQUESTS;
    for repetition in 0..=repetitions {
        let requests = requests.saturating_mul(factor.pow(repetition));
        let before = store.cpu_seconds()?;
        let figures = run_load(store, load, requests, keys)?;
        let cpu = f64::from(requests) / (store.cpu_seconds()? - before);
        if figures.rate.is_finite() && cpu.is_finite() {
            return Ok((figures, cpu));
        }
    }
    bail!("{}: the load takes less than a millisecond; give more --requests", load.name)
}

/// The result of `redis-benchmark`: requests per second, and latency in microseconds.
#[derive(PartialEq, Debug)]
struct RedisFigures {
    rate: f64,
    median: f64,
    p99: f64,
}

/// Runs `redis-benchmark`, which fails if a reply is an error.
fn run_load(store: &Store, load: &Load, requests: u32, keys: u32) -> anyhow::Result<RedisFigures> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &store.at.ip().to_string(), "-p", &store.at.port().to_string()]);
    command.args(["-t", load.test, "-c", CLIENTS, "-d", &SIZE.to_string(), "-P", &load.pipeline.to_string()]);
    command.args(["-n", &requests.to_string(), "-r", &keys.to_string(), "--csv", "--precision", "3"]);
    let output = command.output().context("cannot run redis-benchmark")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: redis-benchmark: {}", load.name, errors.trim());
    parse_csv(&String::from_utf8_lossy(&output.stdout))
}

/// Parses the output of `redis-benchmark --csv`, whose columns are
/// "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms".
fn parse_csv(csv: &str) -> anyhow::Result<RedisFigures> {
    let figures = |line: &str| -> Option<RedisFigures> {
        let columns: Vec<&str> = line.split(',').map(|column| column.trim_matches('"')).collect();
        let column = |at: usize| columns.get(at)?.parse::<f64>().ok();
        Some(RedisFigures { rate: column(1)?, median: column(4)? * 1000.0, p99: column(6)? * 1000.0 })
    };
    csv.lines()
        .find_map(figures)
        .with_context(|| format!("no figures in the output of redis-benchmark: {csv}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_figures_are_parsed_below_the_header() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"SET\",\"90909.09\",\"0.462\",\"0.144\",\"0.263\",\"0.399\",\"4.423\",\"4.479\"\n";
        assert_eq!(parse_csv(csv).unwrap(), RedisFigures { rate: 90909.09, median: 263.0, p99: 4423.0 });
        assert!(parse_csv("Could not connect").is_err());
    }
}
