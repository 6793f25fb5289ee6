//! `mitra demo`: two processes, two rails, operations of every kind in flight; a rail dies in mid-stream.

mod client;
mod coordinator;
mod oracle;
mod participant;
mod plan;
mod progress;
mod protocol;
mod rails;
mod report;
mod server;
mod summary;
mod table;
mod workload;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use mitra_peer_process::PeerConnection;
use mitra_transport::fault::{Failure, ScriptError, Trigger};
use nix::sys::signal::{SigSet, Signal};

use coordinator::{Interrupted, Settings};
use participant::Coordinator;
pub(crate) use plan::Side;
use progress::Progress;
use protocol::ToParticipant;
use summary::Summary;

/// Lose a rail with operations in flight, and see that each was executed exactly once
///
/// Two processes, connected by two rails (two software NICs each, on loopback addresses of their own), exchange
/// writes, reads, sends, compare-and-swaps and fetch-and-adds, many in flight. Rail 0 dies in mid-stream. A judge
/// that knows only memory contents, received messages and returned values counts what was lost, doubled or wrong:
/// nothing under `exact`; and beside it, what sending everything again (`blanket`) does.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 everything exactly once under exact, and blanket corrupted something; 1 not so, with a line why;
2 bad arguments, or this machine refuses (an address, a port, a file); 130 interrupted.
The fields of --json are in docs/demo.md, the syntax of --fault in docs/faults.md.")]
pub(crate) struct Args {
    /// What to do with what was in flight: exact, transparent, blanket, none; several separated by commas
    #[arg(long, value_delimiter = ',', default_value = "exact,blanket", value_parser = ["exact", "transparent", "blanket", "none"])]
    policy: Vec<String>,
    /// Failures under each policy, each with fresh NICs
    #[arg(long, default_value_t = plan::ROUNDS as u32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Operations in each round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    ops: u32,
    /// Operations in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Draws the operations and the places of the failures [default: a new one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Fail like this in every round, for example nic-dead@5:40 [default: ten failures in turn]
    #[arg(long, value_name = "FAILURE@STAGE:NTH", value_parser = failure)]
    fault: Option<Trigger>,
    /// Keep a completion log: evidence that outlives the server's NIC
    #[arg(long)]
    log: bool,
    /// Write every packet of every rail to pcap files in this directory
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Write a page that draws every operation across the failures
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// One JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

/// A fault that a rail dies of.
fn failure(script: &str) -> Result<Trigger, String> {
    let trigger: Trigger = script.parse().map_err(|error: ScriptError| error.to_string())?;
    if trigger.failure == Failure::NotPlaced {
        let nth = trigger.nth;
        return Err(format!(
            "not-placed alone fails no rail; name what dies then, for example nic-dead@8:{nth}"
        ));
    }
    Ok(trigger)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = settings(args)?;
    if let Some(dir) = &settings.pcap {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot make the directory {}", dir.display()))?;
    }
    // Before a run whose report could not be kept.
    let mut report = None;
    if let Some(path) = &args.report {
        report = Some(File::create(path).with_context(|| format!("cannot write {}", path.display()))?);
    }
    let began = Instant::now();
    let progress = Progress::new(settings.policies.len() * settings.rounds, settings.ops);
    let played = coordinator::play(&settings, &progress);
    drop(progress);
    let runs = match played {
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("mitra: interrupted");
            return Ok(ExitCode::from(130));
        }
        played => played?,
    };
    let summary = Summary::new(&settings, &runs, began.elapsed().as_millis() as u64);
    if let Some(file) = &mut report {
        file.write_all(report::page(&summary, &runs).as_bytes()).context("cannot write the report")?;
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &summary).map_err(io::Error::from)?;
        writeln!(out)?;
        for failure in &summary.verdict.failures {
            eprintln!("mitra: {failure}");
        }
    } else {
        table::print(&mut out, &summary, &runs)?;
    }
    out.flush()?;
    Ok(if summary.verdict.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn settings(args: &Args) -> anyhow::Result<Settings> {
    let mut policies = args.policy.clone();
    let mut known = Vec::new();
    policies.retain(|policy| {
        !known.contains(policy) && {
            known.push(policy.clone());
            true
        }
    });
    Ok(Settings {
        policies,
        rounds: args.rounds as usize,
        ops: args.ops as usize,
        in_flight: args.in_flight,
        seed: args.seed.map_or_else(|| rails::secret().map(|[seed, _]| seed >> 32), Ok)?,
        log: args.log,
        fault: args.fault,
        pcap: args.pcap.clone(),
    })
}

/// Runs the client or the server process: plays one round after another until the coordinator ends.
pub(crate) fn run_participant(side: Side, connection: &PeerConnection) -> anyhow::Result<()> {
    // The coordinator blocks SIGINT and SIGTERM before it starts this process, and handles Ctrl-C for both. SIGTERM ends this process.
    SigSet::from(Signal::SIGTERM).thread_unblock()?;
    let mut coordinator = Coordinator::new(connection)?;
    loop {
        let ToParticipant::Round(round) = coordinator.receive() else { continue };
        match side {
            Side::Client => client::round(&mut coordinator, &round)?,
            Side::Server => server::round(&mut coordinator, &round)?,
        }
    }
}
