//! `mitra fault`: injects faults into programs that run under `mitra run`.

use std::io::{self, Write};
use std::process::ExitCode;

use mitra_control::{ControlledProcess, DeviceStatus, Request, Response, list_processes};
use mitra_control::{FaultScript, Settings, run_dir};
use serde::Serialize;

use super::text_table;

/// Inject a fault into the rails of programs under `mitra run`, memory nodes and processes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra fault --list
  mitra fault rail0 down
  mitra fault --pid 4711 'rail0 nic-dead at 500ms; rail1 noise drop=1000ppm'
Applies to this user's programs that have Mitra's device open. Times after `at` count from now. docs/faults.md describes
the faults. --json: {\"processes\": [...]}, each with `pid` and, on failure, `error`; with --list also `program`, `rails`
(`address`, `state`: up, down, failed), `queue_pairs`, `failovers`.
Exit codes: 0 every program accepted the fault; 1 there is no such program, or one refused or did not respond; 2 bad
arguments.")]
pub(crate) struct Args {
    /// Only this process
    #[arg(long)]
    pid: Option<u32>,
    /// List the running programs and the state of their rails
    #[arg(long)]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Fault script: which fault, on which rail, and when; for example rail0 down at 2s
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    script: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    processes: Vec<ProcessResult>,
}

/// The response of one process.
#[derive(Serialize)]
struct ProcessResult {
    pid: u32,
    #[serde(flatten)]
    outcome: RequestOutcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum RequestOutcome {
    Done {},
    Status {
        program: String,
        #[serde(flatten)]
        device: DeviceStatus,
    },
    Failed {
        error: String,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let request = if args.list {
        Request::Status
    } else {
        Request::ApplyFaults(args.script.join(" ").parse::<FaultScript>().map_err(anyhow::Error::msg)?)
    };
    let dir = Settings::from_env()?.run_dir.unwrap_or_else(run_dir::default_path);
    run_dir::ensure(&dir)?;
    let processes =
        list_processes(&dir)?.into_iter().filter(|process| args.pid.is_none_or(|pid| pid == process.pid));
    let report = Report { processes: processes.map(|process| request_from(&process, &request)).collect() };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        text(&mut out, &report)?;
    }
    out.flush()?;
    if report.processes.is_empty() {
        let subject =
            args.pid.map_or("none of your programs".to_owned(), |pid| format!("no process {pid} of yours"));
        eprintln!(
            "mitra: {subject} has Mitra's device open; start one with `mitra run`, and list them with `mitra fault --list`"
        );
    }
    let failed = |reached: &ProcessResult| matches!(reached.outcome, RequestOutcome::Failed { .. });
    let ok = (args.list || !report.processes.is_empty()) && !report.processes.iter().any(failed);
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn request_from(process: &ControlledProcess, request: &Request) -> ProcessResult {
    let outcome = match process.request(request) {
        Ok(Response::Done) => RequestOutcome::Done {},
        Ok(Response::Status { program, device, .. }) => RequestOutcome::Status { program, device },
        Ok(Response::Refused(error)) => RequestOutcome::Failed { error },
        Err(error) => RequestOutcome::Failed { error: error.to_string() },
    };
    ProcessResult { pid: process.pid, outcome }
}

fn text(out: &mut impl Write, report: &Report) -> io::Result<()> {
    for ProcessResult { pid, outcome } in &report.processes {
        match outcome {
            RequestOutcome::Done {} => writeln!(out, "{pid}: done")?,
            RequestOutcome::Failed { error } => writeln!(out, "{pid}: {error}")?,
            RequestOutcome::Status { program, device: DeviceStatus { rails, queue_pairs, failovers } } => {
                writeln!(out, "{pid}: {program}")?;
                writeln!(out, "  queue pairs {queue_pairs}, failovers {failovers}")?;
                let rows = rails.iter().enumerate().map(|(rail, status)| {
                    [format!("rail{rail} {}", status.address), status.state.to_string()]
                });
                text_table::layout(2, &[], rows).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
        }
    }
    Ok(())
}
