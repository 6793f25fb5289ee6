//! `mitra bench many`: a libibverbs program with many queue pairs under `mitra run`, on one rail
//! and on two.

use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use mitra_softnic::Links;

use super::c_program::{CProgram, figure};
use super::report::{Blocks, Machine, Report};
use super::{RunFailed, progress};

const PROGRAM: &str = include_str!("many.c");

/// The numbers of rails.
const RAILS: [u32; 2] = [1, 2];

/// The names of the figures that the program prints, and their units.
const FIGURES: [(&str, &str); 3] = [("connect", "us"), ("poll", "us"), ("rate", "Mmsg/s")];

/// A program with many queue pairs under `mitra run`, on one rail and on two
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench many
  mitra bench many --qps 64 --senders 8 --links udp
Needs a C compiler and Debian's libibverbs-dev. The program connects --qps queue pairs of one device in pairs. They have
one completion queue. `connect/R` rows: the time to create and connect a pair on R rails, the median over all pairs.
`poll/R` rows: the time of a poll that finds nothing, while all queue pairs are idle. `rate/R` rows: 64-byte WRITEs on
--senders of the pairs, 16 outstanding each. The baseline of the rows for two rails is one rail, in the same round.
docs/benchmarks.md describes the fields of --json.
Exit codes: 0 success, 1 the program failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Queue pairs of the completion queue
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..=4096))]
    qps: u32,
    /// Queue pairs that send, at most half of --qps
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=2048))]
    senders: u32,
    /// Blocks per number of rails
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Length of each measurement of a block in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=20_000))]
    block_ms: u64,
    /// How packets reach the other end: through shared memory (shm), over UDP (udp), or as the NICs
    /// choose (auto)
    #[arg(long, default_value_t, value_name = "KIND")]
    links: Links,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(args.senders <= args.qps / 2, "--senders must be at most half of --qps");
    let machine = Machine::detect();
    let program = CProgram::compile("many", PROGRAM)?;
    let bar = progress(RAILS.len() as u64 * u64::from(args.blocks));
    let mut results = RAILS.map(|_| FIGURES.map(|_| Blocks::default()));
    for _ in 0..args.blocks {
        for (rails, blocks) in RAILS.into_iter().zip(&mut results) {
            let figures = measure(args, &program, rails)?;
            blocks.iter_mut().zip(figures).for_each(|(blocks, figure)| blocks.push(figure, figure));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let mut rows = Vec::new();
    for (at, (figure, unit)) in FIGURES.into_iter().enumerate() {
        let name = |rails: u32| format!("{figure}/{rails}");
        let [one, two] = results.each_ref().map(|blocks| &blocks[at]);
        rows.push(one.row(name(1), unit));
        rows.push(two.row(name(2), unit).with_baseline(two, name(1), one));
    }
    let settings = serde_json::json!({
        "qps": args.qps, "senders": args.senders, "block_ms": args.block_ms, "links": args.links.to_string(),
    });
    Report { name: "many", unit: "us", machine, settings, rows, claims: Vec::new(), notes: Vec::new() }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the program once. Returns its figures in the order of [`FIGURES`].
fn measure(args: &Args, program: &CProgram, rails: u32) -> anyhow::Result<[f64; 3]> {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "mitra".into()));
    command.args(["run", "--rails", &rails.to_string(), "--links", &args.links.to_string(), "--"]);
    command.arg(program.path());
    command.args([args.qps.to_string(), args.senders.to_string(), args.block_ms.to_string()]);
    let output = command.output().context("cannot run the program")?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let error = anyhow::anyhow!("the program failed on {rails} rails ({}): {errors}", output.status);
        return Err(error.context(RunFailed));
    }
    let mut figures = [0.0; 3];
    for (value, (name, _)) in figures.iter_mut().zip(FIGURES) {
        *value = figure(&text, name)?;
    }
    Ok(figures)
}
