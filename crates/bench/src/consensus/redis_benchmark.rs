//! `mitra kv` under `redis-benchmark`, beside a store replicated by Raft, and beside Redis, which is not replicated.

use std::process::Command;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;

use super::kv_stores::{Kind, Store, starts};
use crate::report::{Blocks, Row};

/// Bytes of a value.
const SIZE: usize = 64;
const CLIENTS: &str = "50";
/// Requests that a client sends at once, where it does.
const PIPELINE: u32 = 16;

/// What clients do.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// The test of `redis-benchmark`.
    test: &'static str,
    pipeline: u32,
    /// How many times as many requests: so that quick ones take a while, too.
    times: u32,
}

const LOADS: [Load; 4] = [
    Load { name: "set", test: "set", pipeline: 1, times: 1 },
    Load { name: "get", test: "get", pipeline: 1, times: 1 },
    Load { name: "set-pipelined", test: "set", pipeline: PIPELINE, times: 4 },
    Load { name: "get-pipelined", test: "get", pipeline: PIPELINE, times: 4 },
];

/// What is measured of a store under a load, in this order; with the unit.
const MEASURES: [(&str, &str); 3] = [("latency", "us"), ("rate", "op/s"), ("cpu", "op/cpu-s")];

type Measured = [Blocks; MEASURES.len()];

/// How many steps [`rows`] takes.
pub(super) fn steps(rounds: u32) -> u64 {
    u64::from(rounds) * Kind::ALL.len() as u64
}

/// Three rows for each store and load, and what is to be said about those that are missing.
pub(super) fn rows(requests: u32, rounds: u32, bar: &ProgressBar) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    if !starts("redis-benchmark") {
        let note = "kv/…, raft/… and redis/… are left out: install redis-benchmark (Debian's redis-tools)";
        return Ok((Vec::new(), vec![note.to_owned()]));
    }
    let notes = Kind::ALL.iter().filter_map(|kind| kind.lacks()).map(str::to_owned).collect();
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.lacks().is_none()).collect();
    let mut found: Vec<[Measured; LOADS.len()]> = vec![Default::default(); kinds.len()];
    for round in 0..rounds as usize {
        for at in 0..kinds.len() {
            // Each begins a round equally often. Only one is there at a time: idle ones take processors, too.
            let at = (at + round) % kinds.len();
            bar.set_message(kinds[at].name());
            block(kinds[at], requests, &mut found[at]).with_context(|| kinds[at].name())?;
            bar.inc(1);
        }
    }
    let beside = kinds.iter().position(|&kind| kind == Kind::Raft);
    let mut rows = Vec::new();
    for (kind, measured) in kinds.iter().zip(&found) {
        for (l, load) in LOADS.iter().enumerate() {
            for (m, (measure, unit)) in MEASURES.iter().enumerate() {
                let name = |kind: Kind| format!("{}/{}/{measure}", kind.name(), load.name);
                let blocks = &measured[l][m];
                let row = blocks.row(name(*kind), unit);
                rows.push(match beside.filter(|_| *kind == Kind::Kv) {
                    Some(raft) => row.beside(blocks, name(Kind::Raft), &found[raft][l][m]),
                    None => row,
                });
            }
        }
    }
    Ok((rows, notes))
}

/// A store's turn: it is started, put under each load, checked, and ended.
fn block(kind: Kind, requests: u32, found: &mut [Measured; LOADS.len()]) -> anyhow::Result<()> {
    let store = kind.start()?;
    // Each key is written some ten times.
    let keys = (requests / 10).clamp(1, 10_000);
    load(&store, &LOADS[0], requests.div_ceil(10), keys)?;
    for (one, measured) in LOADS.iter().zip(found) {
        let requests = requests * one.times;
        let before = store.cpu_seconds()?;
        let Said { rate, median, p99 } = load(&store, one, requests, keys)?;
        let cpu = f64::from(requests) / (store.cpu_seconds()? - before);
        for (blocks, (median, p99)) in measured.iter_mut().zip([(median, p99), (rate, rate), (cpu, cpu)]) {
            blocks.push(median, p99);
        }
    }
    store.check(keys, SIZE)
}

/// What `redis-benchmark` says: requests in a second, and their latency in microseconds.
#[derive(PartialEq, Debug)]
struct Said {
    rate: f64,
    median: f64,
    p99: f64,
}

/// Runs `redis-benchmark`, which ends with an error if a reply is one.
fn load(store: &Store, load: &Load, requests: u32, keys: u32) -> anyhow::Result<Said> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &store.at.ip().to_string(), "-p", &store.at.port().to_string()]);
    command.args(["-t", load.test, "-c", CLIENTS, "-d", &SIZE.to_string(), "-P", &load.pipeline.to_string()]);
    command.args(["-n", &requests.to_string(), "-r", &keys.to_string(), "--csv", "--precision", "3"]);
    let output = command.output().context("cannot run redis-benchmark")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: redis-benchmark: {}", load.name, errors.trim());
    said(&String::from_utf8_lossy(&output.stdout))
}

/// "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
fn said(csv: &str) -> anyhow::Result<Said> {
    let figures = |line: &str| -> Option<Said> {
        let columns: Vec<&str> = line.split(',').map(|column| column.trim_matches('"')).collect();
        let column = |at: usize| columns.get(at)?.parse::<f64>().ok();
        Some(Said { rate: column(1)?, median: column(4)? * 1000.0, p99: column(6)? * 1000.0 })
    };
    csv.lines()
        .find_map(figures)
        .with_context(|| format!("no figures in what redis-benchmark printed: {csv}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_below_their_heads() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                   \"SET\",\"90909.09\",\"0.462\",\"0.144\",\"0.263\",\"0.399\",\"4.423\",\"4.479\"\n";
        assert_eq!(said(csv).unwrap(), Said { rate: 90909.09, median: 263.0, p99: 4423.0 });
        assert!(said("Could not connect").is_err());
    }
}
