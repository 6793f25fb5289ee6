//! `cargo xtask figures`: measures, and writes the tables of docs/benchmarks.md from the committed
//! results in docs/figures.

mod tables;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{full_run, root};

/// Write the tables of docs/benchmarks.md and docs/verification.md from docs/figures
///
/// A file of docs/figures has the JSON objects of several runs of one benchmark. `cargo xtask lint`
/// fails if a table differs from its file.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure these first, each by three runs of target/release/mitra: names of files of
    /// docs/figures, separated by commas. Use an idle machine
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    measure: Vec<String>,
}

const RUNS: usize = 3;
const PAGE: &str = "docs/benchmarks.md";

/// The variants of the latency and bandwidth tables.
const VARIANTS: &str = "udp_floor,qp,vqp,aa";

/// The file of a table in docs/figures, and the arguments of `mitra bench`.
const FIGURES: &[(&str, &[&str])] = &[
    ("peers", &["peers"]),
    ("latency-shm", &["latency", "--links", "shm", "--only", VARIANTS, "--blocks", "7"]),
    ("latency-udp", &["latency", "--links", "udp", "--only", VARIANTS, "--blocks", "7"]),
    ("bandwidth-shm", &["bandwidth", "--links", "shm", "--only", VARIANTS, "--blocks", "7"]),
    ("bandwidth-udp", &["bandwidth", "--links", "udp", "--only", VARIANTS, "--blocks", "7"]),
    ("failover-shm", &["failover", "--links", "shm"]),
    ("failover-udp", &["failover", "--links", "udp"]),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    for name in &args.measure {
        let known = FIGURES.iter().find(|(known, _)| known == name);
        let (name, bench) = known.with_context(|| {
            let names: Vec<&str> = FIGURES.iter().map(|&(name, _)| name).collect();
            format!("no figures are named {name}; use {}", names.join(", "))
        })?;
        measure(name, bench)?;
    }
    full_run::write_page()?;
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    fs::write(&page, with_tables(&text)?).with_context(|| format!("cannot write {PAGE}"))
}

/// Returns a finding if a table of the page is not that of its file.
pub(crate) fn finding() -> Result<Option<String>> {
    let text = fs::read_to_string(root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let is_current = with_tables(&text)? == text;
    Ok((!is_current).then(|| format!("{PAGE}: a table is not that of docs/figures: run cargo xtask figures")))
}

/// Runs a benchmark, and writes its results to a file of docs/figures.
fn measure(name: &str, bench: &[&str]) -> Result<()> {
    let mut runs = Vec::new();
    for number in 1..=RUNS {
        println!("{name}: run {number} of {RUNS}");
        let mut mitra = Command::new("target/release/mitra");
        let output = mitra.arg("bench").args(bench).arg("--json").current_dir(root()).output();
        let output = output.context("cannot run target/release/mitra; run cargo build --release")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "mitra bench {}: {errors}", bench.join(" "));
        let mut run: Value = serde_json::from_slice(&output.stdout)?;
        run["code"] = code()?.into();
        // Blocks are the larger part of a file, and no table shows them.
        for row in run["rows"].as_array_mut().into_iter().flatten() {
            row.as_object_mut().and_then(|row| row.remove("blocks"));
        }
        runs.push(run);
    }
    let path = root().join(format!("docs/figures/{name}.json"));
    fs::create_dir_all(root().join("docs/figures"))?;
    let text = serde_json::to_string_pretty(&runs)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the commit and its date.
fn code() -> Result<String> {
    let mut git = Command::new("git");
    let output = git.args(["log", "-1", "--format=%h, %cs"]).current_dir(root()).output()?;
    ensure!(output.status.success(), "git log failed; run this in a git checkout");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

/// Returns the page with the tables of docs/figures between their marks.
fn with_tables(page: &str) -> Result<String> {
    let mut written = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->").context("a mark of figures has no end")?;
        let (_, after) = after.split_once(END).with_context(|| format!("figures: {name} has no {END}"))?;
        let known = FIGURES.iter().find(|&&(known, _)| known == name);
        let (_, bench) = known.with_context(|| format!("{PAGE}: no figures are named {name}"))?;
        let path = format!("docs/figures/{name}.json");
        let text = fs::read_to_string(root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        let runs: Vec<Value> = serde_json::from_str(&text).with_context(|| path.clone())?;
        ensure!(!runs.is_empty(), "{path} has no run");
        let table = tables::table(name, &bench.join(" "), &runs);
        written += &format!("{before}{BEGIN}{name} -->\n{table}{END}");
        rest = after;
    }
    Ok(written + rest)
}
