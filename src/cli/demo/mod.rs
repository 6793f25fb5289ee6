//! `mitra demo`: two processes exchange operations of every kind over two rails, and a rail fails
//! in mid-stream.

mod checker;
mod client;
mod fault_plan;
mod json;
mod progress;
mod protocol;
mod rail_endpoint;
mod report;
mod rounds;
mod server;
mod text;
mod workload;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, ensure};
use mitra_bench::OutputFile;
use mitra_nics::TwoEnds;
use mitra_peer_process::PeerConnection;
use mitra_transport::fault::{Failure, ScriptError, Stage, Trigger};
use nix::sys::signal::{SigSet, Signal};

use json::Summary;
use progress::Progress;
use protocol::RoundSetup;
use rounds::Settings;

/// The role of the server's process on the command line of `mitra peer`.
pub(crate) const SERVER_ROLE: &str = "demo-server";

/// Fail a rail with operations in flight, and check that each operation was executed exactly once
///
/// Two processes, connected by two rails (each a pair of NICs), keep many writes, reads, sends,
/// compare-and-swaps and fetch-and-adds in flight. Rail 0 fails in
/// mid-stream. A checker that sees only memory contents, received messages and returned values
/// counts lost, doubled and wrong operations: none under `exact`. For comparison, the same run
/// under `blanket` sends everything again.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra demo
  mitra demo --policy exact --rounds 100 --seed 7
  mitra demo --fault nic-dead@5:40 --report demo.html
  mitra demo --device mlx5_0,mlx5_1 --log      (devices of the kernel)
In the table, `executed before` are operations in flight that the failed rail had executed, `recovered` those that completed
from the evidence, and `replayed` those that were executed again. Under transparent and none nothing is required.
`mitra run --help` explains the policies. docs/demo.md describes the fields of --json.
--fault: FAILURE is link-down, nic-dead or nic-hung; it comes when the NTH packet reaches the STAGE: 1 posted, 2 request on
the wire, 3 arrived, 4 partly executed, 5 executed, 6 acknowledgement on the wire, 7 acknowledged, 8 not placed. At 3 to 6
and 8 it strikes the server, at the others the client.
--device: no packet of a device of the kernel fails on demand, so the client resets its own NIC of rail 0 in mid-stream (nic-dead@1).
Such devices save no results of atomics, so operations under exact may end in the errors that docs/promises.md names.
Exit codes: 0 no operation lost, doubled or wrong under exact, and all succeeded; and violations under blanket. If
--fault makes the server's NIC dead or hung, as in the last example, operations under exact may also end in the errors that
docs/promises.md names. 1 otherwise, with the reason; 2 bad arguments, or an address, port or file that cannot be used;
130 after Ctrl-C, 143 after SIGTERM.")]
pub(crate) struct Args {
    /// Failover policies to compare, separated by commas: exact, transparent, blanket, none
    #[arg(long, value_delimiter = ',', default_value = "exact,blanket", value_parser = ["exact", "transparent", "blanket", "none"])]
    policy: Vec<String>,
    /// Failures under each policy, each with new NICs
    #[arg(long, default_value_t = fault_plan::ROUNDS as u32, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Operations per round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    ops: u32,
    /// Operations in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Seed of the operations and of the failure points [default: random; the output shows it]
    #[arg(long)]
    seed: Option<u64>,
    /// NICs: of the client on rails 0 and 1, of the server on rails 0 and 1. A name is an RDMA
    /// device of the kernel, an address a software NIC; two devices serve both ends
    /// [default: software NICs on free loopback addresses]
    #[arg(long, value_name = "A,B,C,D")]
    device: Option<TwoEnds>,
    /// Fault in every round, for example nic-dead@5:40
    /// [default: a sequence of ten different faults]
    #[arg(long, value_name = "FAILURE@STAGE:NTH", value_parser = failure)]
    fault: Option<Trigger>,
    /// Milliseconds after which a round posts no more operations, on a machine that is too slow for
    /// all of them
    #[arg(long, default_value_t = 20_000, hide = true, value_parser = clap::value_parser!(u64).range(1..=20_000))]
    round_timeout: u64,
    /// Keep a completion log: evidence that survives a failure of the server's NIC
    #[arg(long)]
    log: bool,
    /// Write every packet of every rail to pcap files in this directory
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Write an HTML page that draws every operation across the failures
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    json: bool,
}

/// Parses a fault script and refuses faults that do not fail a rail.
fn failure(script: &str) -> Result<Trigger, String> {
    let trigger: Trigger = script.parse().map_err(|error: ScriptError| error.to_string())?;
    if trigger.failure == Failure::NotPlaced {
        let nth = trigger.nth;
        return Err(format!(
            "not-placed does not fail a rail by itself; combine it with a failure, for example nic-dead@8:{nth}"
        ));
    }
    Ok(trigger)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = settings(args)?;
    if let Some(dir) = &settings.pcap {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot create the directory {}; choose another one", dir.display()))?;
    }
    // The path is checked before the run, so that the command fails early.
    let report = args.report.clone().map(OutputFile::new).transpose()?;
    let began = Instant::now();
    let progress = Progress::new(settings.policies.len() * settings.rounds, settings.ops);
    let runs = rounds::run_policies(&settings, &progress)?;
    drop(progress);
    let summary = Summary::new(&settings, &runs, began.elapsed().as_millis() as u64);
    // The result is printed even if the report cannot be written.
    let written = report.map_or(Ok(()), |file| file.write(&report::page(&summary, &runs)?));
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &summary).map_err(io::Error::from)?;
        writeln!(out)?;
        for failure in &summary.verdict.failures {
            crate::cli::complain(failure);
        }
    } else {
        text::print(&mut out, &summary, &runs)?;
    }
    out.flush()?;
    written?;
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
    if args.device.as_ref().is_some_and(TwoEnds::have_devices) {
        ensure!(
            args.pcap.is_none(),
            "--pcap is of software NICs; for devices of the kernel use tcpdump or ibdump"
        );
        let is_reset = |fault: &Trigger| (fault.failure, fault.stage) == (Failure::NicDead, Stage::Posted);
        ensure!(
            args.fault.as_ref().is_none_or(is_reset),
            "--fault: no packet of a device of the kernel fails on demand; give nic-dead@1:NTH, which resets the client's"
        );
    }
    Ok(Settings {
        policies,
        rounds: args.rounds as usize,
        ops: args.ops as usize,
        in_flight: args.in_flight,
        seed: args.seed.map_or_else(|| getrandom::u64().map(|seed| seed >> 32), Ok)?,
        round_timeout_ms: args.round_timeout,
        log: args.log,
        fault: args.fault,
        pcap: args.pcap.clone(),
        device: args.device.clone(),
    })
}

/// Runs the server process: one round after another, until the client's process ends.
pub(crate) fn run_server(client: &mut PeerConnection) -> anyhow::Result<()> {
    // The client blocks SIGINT and SIGTERM before it starts this process, and handles both for both
    // processes. A SIGTERM that is sent to this process ends it.
    SigSet::from(Signal::SIGTERM).thread_unblock()?;
    loop {
        let round: RoundSetup = client.receive_within(None)?;
        server::round(client, &round)?;
        // This side has closed its NICs, and its capture files are complete.
        client.send(&())?;
    }
}
