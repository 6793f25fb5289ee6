//! `mitra check`: explores every order of steps of a protocol, at a small size.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use mitra_consensus_check::{CATALOGUE, Entry};
use serde::Serialize;

/// Explore every order of steps of a protocol, at a small size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra check protected-memory-paxos
  mitra check paxos --explore 127.0.0.1:3000
The state machines are those that users run; only processes, memories and what is on its way are modelled. --list names them, and
what is explored of each.
Exit codes: 0 all that it is meant to show holds, 1 there is a counterexample, 2 bad arguments.
--json: `name`, `states`, `holds` (what was looked at), `counterexample` (what does not hold, or null), `counterexample_steps`
(an array; empty if all holds).")]
pub(crate) struct Args {
    /// The protocol
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Tell which there are
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Serve the states to a browser at this address instead, step by step
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:3000")]
    explore: Option<SocketAddr>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    name: &'static str,
    states: usize,
    holds: &'static [&'static str],
    counterexample: Option<&'static str>,
    counterexample_steps: Vec<String>,
}

/// The protocol of this name.
pub(super) fn find(name: &str) -> anyhow::Result<&'static Entry> {
    CATALOGUE.iter().find(|entry| entry.name == name).with_context(|| {
        let names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
        format!("there is no protocol {name:?}; there are: {}", names.join(", "))
    })
}

/// A sign of life on a terminal while something takes long.
fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(name) = &args.name else {
        for entry in CATALOGUE {
            writeln!(out, "{:<28}{}", entry.name, entry.explored)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let entry = find(name)?;
    if let Some(at) = args.explore {
        writeln!(out, "http://{at}/: {}: {}; interrupt to end", entry.name, entry.explored)?;
        entry.serve(at);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = spinner(format!("{}: {}", entry.name, entry.explored));
    let found = entry.explore();
    bar.finish_and_clear();
    let (counterexample, steps) = found.counterexample.unzip();
    let report = Report {
        name: entry.name,
        states: found.states,
        holds: entry.holds,
        counterexample,
        counterexample_steps: steps.unwrap_or_default().iter().map(|step| format!("{step:?}")).collect(),
    };
    if args.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}: {}", report.name, entry.explored)?;
        match report.counterexample {
            None => writeln!(out, "{} states: {} in all of them", report.states, report.holds.join(" and "))?,
            Some(what) => {
                writeln!(out, "{what} does not hold after {} steps:", report.counterexample_steps.len())?;
                report.counterexample_steps.iter().try_for_each(|step| writeln!(out, "  {step}"))?;
            }
        }
    }
    Ok(if counterexample.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
