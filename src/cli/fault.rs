//! `mitra fault`: lets faults befall programs that run under `mitra run`.

use std::io::{self, Write};
use std::process::ExitCode;

use mitra_control::{ControlledProcess, DeviceStatus, Request, Response, list_processes};
use mitra_control::{FaultScript, Settings, run_dir};
use serde::Serialize;

/// Let a fault befall the rails of programs that run under `mitra run`, and of memories and processes of an agreement
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra fault --list
  mitra fault rail0 down
  mitra fault --pid 4711 'rail0 nic-dead at 500ms; rail1 noise drop=1000ppm'
Reaches this user's programs that have Mitra's device open. `at` counts from now. Faults are described in docs/faults.md.
Exit codes: 0 every program that was reached took it; 1 there was none, or one refused or did not answer; 2 bad
arguments. --json: {\"processes\": [...]}, each with `pid`, and `error`, or with --list `program`, `rails` (`address`,
`state`: up, down, failed), `queue_pairs`, `failovers`.")]
pub(crate) struct Args {
    /// This process only
    #[arg(long)]
    pid: Option<u32>,
    /// Tell which programs there are, and how their rails are
    #[arg(long)]
    list: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// What befalls which rail, and when: rail0 down at 2s
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    script: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    processes: Vec<Reached>,
}

/// What a process answered.
#[derive(Serialize)]
struct Reached {
    pid: u32,
    #[serde(flatten)]
    told: Told,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Told {
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
    let found =
        list_processes(&dir)?.into_iter().filter(|process| args.pid.is_none_or(|pid| pid == process.pid));
    let report = Report { processes: found.map(|process| reach(&process, &request)).collect() };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        text(&mut out, &report)?;
    }
    out.flush()?;
    if report.processes.is_empty() {
        let whose =
            args.pid.map_or("no program of yours".to_owned(), |pid| format!("process {pid} is none that"));
        eprintln!(
            "mitra: {whose} has Mitra's device open; start one with `mitra run`, mitra fault --list shows them"
        );
    }
    let failed = |reached: &Reached| matches!(reached.told, Told::Failed { .. });
    let ok = (args.list || !report.processes.is_empty()) && !report.processes.iter().any(failed);
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn reach(process: &ControlledProcess, request: &Request) -> Reached {
    let told = match process.request(request) {
        Ok(Response::Done) => Told::Done {},
        Ok(Response::Status { program, device, .. }) => Told::Status { program, device },
        Ok(Response::Refused(error)) => Told::Failed { error },
        Err(error) => Told::Failed { error: error.to_string() },
    };
    Reached { pid: process.pid, told }
}

fn text(out: &mut impl Write, report: &Report) -> io::Result<()> {
    for Reached { pid, told } in &report.processes {
        match told {
            Told::Done {} => writeln!(out, "{pid}: done")?,
            Told::Failed { error } => writeln!(out, "{pid}: {error}")?,
            Told::Status { program, device: DeviceStatus { rails, queue_pairs, failovers } } => {
                writeln!(out, "{pid}: {program}")?;
                writeln!(out, "  queue pairs {queue_pairs}, failovers {failovers}")?;
                for (rail, state) in rails.iter().enumerate() {
                    writeln!(out, "  rail{rail} {:<28} {}", state.address, state.state)?;
                }
            }
        }
    }
    Ok(())
}
