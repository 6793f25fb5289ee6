//! `mitra bench varuna`: the figures of the paper on Varuna, measured on this machine, each beside
//! the paper's claim and this project's target.

mod claims;
mod many_vqps;
mod overhead;
mod page;
mod timeline;
mod trials;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use super::failover::RESET_NOTE;
use super::report::{Machine, Report, Row};
use super::{Common, OutputFile};

pub(crate) use many_vqps::{Setup as ManyVqpsSetup, peer as many_vqps_peer};

/// The figures of the paper on Varuna: overhead, operations in flight, retransmission, failover,
/// many vQPs, a timeline
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench varuna
  mitra bench varuna --only overhead,timeline --json
All figures are of two processes on this machine with software NICs. Rows:
  overhead/OP/SIZE/EVIDENCE        one-way latency; EVIDENCE is none, psn, log or log4, beside the bare queue pair `qp`
  overhead/OP/SIZE/EVIDENCE/rate   operations per second
  inflight/MIX/CLASS               operations in flight at a failure that the responder had (post-failure) or had not
                                   (pre-failure) executed; a block is a failure, in the order of the failure times
  resent/POLICY/MIX                payload bytes sent again; .../ops, .../recovery, .../post_failure, .../doubled
  failover/PHASE, failover/small/PHASE
                                   detection, agreement, fence, evidence, decision, replay, total; the ratio is in
                                   round trips
  vqps/COUNT/...                   many vQPs that fail over together
  timeline/...                     payload per millisecond through a failure and the return to the first rail
docs/benchmarks.md describes the fields of --json and reports figures. A missed target does not change the exit code.
Exit codes: 0 success, 1 data was wrong, lost or duplicated under exact, 2 bad arguments.")]
pub(crate) struct Args {
    /// Sections to measure, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "overhead,trials,failover,vqps,timeline")]
    only: Vec<Section>,
    /// Message sizes of `overhead` in bytes, multiples of 8, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8,64,512,4096,65536,1048576",
        value_parser = super::parse_size
    )]
    size: Vec<usize>,
    /// Blocks per variant of `overhead`
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Round trips per block of `overhead` for 8 bytes; fewer for longer messages
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    iters: u64,
    /// Failures for each policy and mix
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: u32,
    /// Operations in flight at a failure
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100))]
    in_flight: u32,
    /// Seed of the failure stages and packets; the same seed gives the same failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// vQPs that fail over together
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    vqps: u32,
    /// Write the figures and their plots to this file, as one page of HTML
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// A part of the benchmark that can be measured alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Section {
    /// Latency and throughput without failures
    Overhead,
    /// Operations in flight, and what each policy sends again
    Trials,
    /// The phases of a failover
    Failover,
    /// Many vQPs that fail over together
    Vqps,
    /// Throughput through a failure and the return to the first rail
    Timeline,
}

/// The bytes of a WRITE, SEND or READ in the sections with failures: one packet.
const MESSAGE_BYTES: usize = 4096;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // The path is checked before the measurement, so that the command fails early.
    let page_file = args.report.clone().map(OutputFile::new).transpose()?;
    let on_demand = [Section::Vqps, Section::Timeline];
    if args.only.iter().any(|section| on_demand.contains(section)) {
        args.common.check_software_nics("a link that fails and returns, in vqps and timeline of --only,")?;
    }
    let machine = Machine::detect();
    let (mut rows, mut notes, mut violations): (Vec<Row>, _, u64) = (Vec::new(), machine.warnings(), 0);
    for section in &args.only {
        match section {
            Section::Overhead => rows.extend(overhead::run(args, &mut notes)?),
            Section::Trials => {
                let (found, violated) = trials::run_mixes(args, &mut notes)?;
                rows.extend(found);
                violations += violated;
            }
            Section::Failover => {
                let (found, violated) = trials::run_phases(args, &mut notes)?;
                rows.extend(found);
                violations += violated;
            }
            Section::Vqps => rows.extend(many_vqps::run(args, &mut notes)?),
            Section::Timeline => rows.extend(timeline::run(args, &mut notes)?),
        }
    }
    if args.common.has_devices() {
        notes.push(RESET_NOTE.to_owned());
    }
    if violations > 0 {
        notes.push(format!("exact VIOLATED exactly-once for {violations} operations"));
    }
    let claims = claims::of(&rows);
    let settings = serde_json::json!({
        "size": args.size, "blocks": args.blocks, "iters": args.iters, "trials": args.trials,
        "in_flight": args.in_flight, "seed": args.seed, "vqps": args.vqps, "message_bytes": MESSAGE_BYTES,
        "nics": args.common.nics(), "rails": 2,
    });
    let report = Report { name: "varuna", unit: "us", machine, settings, rows, claims, notes };
    // The figures are printed even if the page cannot be written.
    let written = page_file.map_or(Ok(()), |file| file.write(&page::render(&report)?));
    report.print(args.common.json)?;
    written?;
    Ok(if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
