//! `mitra watch`: shows the rails, virtual queue pairs and failovers of running programs.

mod observation;
mod view;
mod vqp_table;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use console::Term;
use mitra_control::{ControlledProcess, Settings, list_processes, run_dir};
use serde::Serialize;

use super::fault::{is_selected, no_process};
use super::{complain, write_json};
use observation::{Observation, observe};
use view::Size;
use vqp_table::Order;

/// Show the rails, virtual queue pairs and failovers of running programs, live
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra watch
  mitra watch --pid 4711 --interval 0.2
  mitra watch --once --json
Shows this user's processes that have Mitra's device open: programs under `mitra run`, `mitra demo`, memory nodes, processes
of `mitra kv`, `elect` and `propose`, and programs that start a `ControlServer`. Ends when the last of them has ended, or by
Ctrl-C. Of a rail: `resent` packets that were sent again on it, `failed` failures that virtual queue pairs noticed on it,
`left` how often one left it. Of a virtual queue pair: `queue` sends that have not completed, `moved` failovers, `back` those
to a rail that it had left before, `replay` operations that were sent again after a move, `failed` those that a move ended in
an error, `polled` the time since the program last drove it. --once shows no rates, which need two looks.
docs/observability.md explains the fields.
--json: one object per interval, {\"processes\": [...]}, each with `pid` and `program`, and `error`, or the fields of a snapshot:
`rails`, `queue_pairs`, `vqp_count`, `recovering`, `vqps`, `closed`, `events`, `durations`, `latency`.
Exit codes: 0 success; 1 there is no such process, or with --once, one did not respond; 2 bad arguments.")]
pub(crate) struct Args {
    /// Show this process; can be given several times
    #[arg(long)]
    pid: Vec<u32>,
    /// Show the processes that run this program, given by its file name: ib_write_bw, mitra
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    program: Option<String>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Order of the virtual queue pairs; those with a failover in progress come first
    #[arg(long, value_enum, default_value_t = Order::Failovers)]
    sort: Order,
    /// Look once
    #[arg(long)]
    once: bool,
    /// Print one JSON object per look
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "use seconds from 0.05 to 3600".to_owned())
}

#[derive(Serialize)]
struct Report<'a> {
    processes: &'a [Observation],
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = Settings::from_env()?.run_dir.unwrap_or_else(run_dir::default_path);
    run_dir::ensure(&dir)?;
    let selected = || -> io::Result<Vec<ControlledProcess>> {
        let mut processes = list_processes(&dir)?;
        processes.retain(|process| is_selected(process, &args.pid, args.program.as_deref()));
        Ok(processes)
    };
    let (mut before, mut looked_at): (Vec<Observation>, _) = (Vec::new(), Instant::now());
    loop {
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut looked_at, now);
        let observations: Vec<Observation> = selected()?.iter().filter_map(observe).collect();
        if observations.is_empty() && before.is_empty() {
            if args.json && args.once {
                print(args, &[], &[], Duration::ZERO)?;
            }
            complain(no_process(args.program.as_deref(), &args.pid));
            return Ok(ExitCode::FAILURE);
        }
        if observations.is_empty() {
            if is_live(args) {
                println!(); // the cursor is at the end of the last line
            }
            complain("the last process has ended");
            return Ok(ExitCode::SUCCESS);
        }
        print(args, &observations, &before, elapsed)?;
        if args.once {
            let failed = observations.iter().any(|observation| observation.error().is_some());
            return Ok(ExitCode::from(u8::from(failed)));
        }
        before = observations;
        thread::sleep(args.interval.saturating_sub(now.elapsed()));
    }
}

/// Returns whether the screen of a terminal is overwritten at each look.
fn is_live(args: &Args) -> bool {
    !args.once && !args.json && io::stdout().is_terminal()
}

/// Prints the observations; on a terminal, over the previous observations. The rates are computed
/// from `before`, the observations of `elapsed` ago.
fn print(
    args: &Args,
    observations: &[Observation],
    before: &[Observation],
    elapsed: Duration,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.json {
        write_json(&mut out, &Report { processes: observations })?;
        return Ok(out.flush()?);
    }
    let is_live = is_live(args);
    let size = match Term::stdout().size_checked() {
        Some((rows, columns)) if is_live => Size { rows: rows.into(), columns: columns.into() },
        // A terminal without a size, for example a serial line, reports 0 rows.
        None if is_live => Size { rows: 24, columns: 80 },
        Some((_, columns)) => Size { rows: usize::MAX, columns: columns.into() },
        None => Size { rows: usize::MAX, columns: usize::MAX },
    };
    let lines = view::lines(observations, before, elapsed, args.sort, size);
    if is_live {
        // The screen is overwritten line by line, because clearing it first would flicker. The last
        // line has no line feed, which would scroll.
        write!(out, "\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))?;
    } else {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        if !args.once {
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}
