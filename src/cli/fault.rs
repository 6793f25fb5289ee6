//! `mitra fault`: injects faults into programs that run under `mitra run`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::ensure;
use clap::builder::NonEmptyStringValueParser;
use mitra_control::{ControlledProcess, DeviceStatus, Request, RequestError, Response, list_processes};
use mitra_control::{FaultScript, Settings, run_dir};
use serde::Serialize;

use super::{complain, text_table, write_json};

/// Inject a fault into the rails of programs under `mitra run`, memory nodes and processes
#[derive(clap::Args)]
#[command(after_help = concat!("\
Examples:
  mitra fault --list
  mitra fault --pid 4711 'rail0 nic-dead at 500ms; rail1 noise drop=1000ppm'
  mitra fault --program ib_write_bw rail0 down
  mitra fault --all rail0 down
Applies to this user's processes that have Mitra's device open: programs under `mitra run`, memory nodes, and processes
of `mitra kv`, `elect`, `propose` and `txn`, and those of `mitra demo`. Without --pid, --program or --all, lists them and
injects nothing.
", faults_in_help!(), "\
--json: {\"processes\": [...]}, each with `pid` and, on failure, `error`; in a list also `program`, `rails` (`address`,
`device`: the kernel's name of it, `state`: up, down, failed), `queue_pairs` (over several rails: virtual ones), `failovers`.
Exit codes: 0 every selected process accepted the fault; 1 there is no such process, or one refused or did not respond;
2 bad arguments, or none of --pid, --program and --all selects a process."))]
pub(crate) struct Args {
    /// Inject the fault into this process; can be given several times
    #[arg(long)]
    pid: Vec<u32>,
    /// Inject the fault into the processes that run this program, given by its file name:
    /// ib_write_bw, mitra
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    program: Option<String>,
    /// Inject the fault into all processes
    #[arg(long, conflicts_with_all = ["pid", "program"])]
    all: bool,
    /// List the processes and the state of their rails
    #[arg(long)]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Fault script: which fault, on which rail, and when; for example rail0 down at 2s
    #[arg(conflicts_with = "list")]
    script: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    processes: Vec<ProcessResult>,
}

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
    // The script is checked first: a wrong script is an error, whichever processes run.
    let selects = args.all || args.program.is_some() || !args.pid.is_empty();
    let script = match args.script.is_empty() {
        true => None,
        false => Some(args.script.join(" ").parse::<FaultScript>().map_err(anyhow::Error::msg)?),
    };
    ensure!(
        script.is_some() || args.list || !selects,
        "the fault is missing: say which, for example `rail0 down`, or --list; see --help"
    );
    let request = match script {
        Some(script) if selects => Request::ApplyFaults(script),
        _ => Request::Status,
    };
    let dir = Settings::from_env()?.run_dir.unwrap_or_else(run_dir::default_path);
    run_dir::ensure(&dir)?;
    let processes = list_processes(&dir)?
        .into_iter()
        .filter(|process| is_selected(process, &args.pid, args.program.as_deref()));
    let report =
        Report { processes: processes.filter_map(|process| request_from(&process, &request)).collect() };
    let mut out = io::stdout().lock();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        text(&mut out, &report)?;
    }
    out.flush()?;
    if report.processes.is_empty() {
        complain(no_process(args.program.as_deref(), &args.pid));
    }
    if !args.list && !selects {
        complain(
            "nothing was injected: select processes with --pid, --program or --all, and name a fault; see --help",
        );
        return Ok(ExitCode::from(2));
    }
    let failed = |reached: &ProcessResult| matches!(reached.outcome, RequestOutcome::Failed { .. });
    let ok = (args.list || !report.processes.is_empty()) && !report.processes.iter().any(failed);
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether these process IDs and this program name select a process. No IDs and no name select all
/// processes.
pub(crate) fn is_selected(process: &ControlledProcess, pids: &[u32], program: Option<&str>) -> bool {
    (pids.is_empty() || pids.contains(&process.pid)) && program.is_none_or(|name| runs(process, name))
}

/// Whether a process runs a program with this file name; false if the process does not respond.
fn runs(process: &ControlledProcess, name: &str) -> bool {
    let Ok(Response::Status { program, .. }) = process.request(&Request::Status) else { return false };
    let path = program.split(' ').next().unwrap_or_default();
    Path::new(path).file_name().is_some_and(|file| file == name)
}

/// Returns the message that these process IDs and this program name select no process.
pub(crate) fn no_process(program: Option<&str>, pids: &[u32]) -> String {
    const LIST: &str = ", or list those that have with `mitra fault --list`";
    let (subject, way_out) = match (program, pids) {
        (None, []) => ("none of your programs".to_owned(), ""),
        (Some(program), _) => (format!("no process of yours that runs {program}"), LIST),
        (None, pids) => {
            let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
            (format!("no process {} of yours", pids.join(", ")), LIST)
        }
    };
    format!("{subject} has Mitra's device open; start one with `mitra run`{way_out}")
}

/// Sends a request to a process. Returns `None` if the process has ended.
fn request_from(process: &ControlledProcess, request: &Request) -> Option<ProcessResult> {
    let outcome = match process.request(request) {
        Ok(Response::Done) => RequestOutcome::Done {},
        Ok(Response::Status { program, device, .. }) => RequestOutcome::Status { program, device },
        Ok(Response::Refused(error) | Response::Failed(error)) => RequestOutcome::Failed { error },
        Ok(Response::Snapshot { .. }) => {
            RequestOutcome::Failed { error: "it sent another response".to_owned() }
        }
        Err(RequestError::ProcessEnded(_)) => return None,
        Err(error) => RequestOutcome::Failed { error: error.to_string() },
    };
    Some(ProcessResult { pid: process.pid, outcome })
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
                    [format!("rail{rail} {}", status.address_and_device()), status.state.to_string()]
                });
                text_table::layout(2, &[], rows).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
        }
    }
    Ok(())
}
