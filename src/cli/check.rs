//! `mitra check`: explores every interleaving of a protocol's steps, at a small size.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use mitra_consensus_check::{CATALOGUE, CatalogueEntry};
use serde::Serialize;
use serde_json::json;

use super::{text_table, write_json};

/// Explore every interleaving of a protocol's steps, at a small size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra check protected-memory-paxos
  mitra check paxos --explore 127.0.0.1:3000
The model runs the same state machines as a real deployment; only processes, memories and messages in transit are
modelled. --list shows the protocols and the explored configuration of each.
--json: `name`, `states`, `holds` (the checked properties), `counterexample` (the violated property, or null),
`counterexample_steps` (an array; empty if every property holds); with --list `protocols`, each with `name` and
`explored`. --explore shows states in a browser and has no result to print, so it excludes --json.
Exit codes: 0 every property holds, 1 there is a counterexample, 2 bad arguments.")]
pub(crate) struct Args {
    /// Protocol to check
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the protocols
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Serve the states to a web browser at this address instead [default: 127.0.0.1:3000]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:3000",
        conflicts_with_all = ["json", "list"]
    )]
    explore: Option<SocketAddr>,
    /// Print one JSON object
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

/// Returns the catalogue entry of a protocol.
fn find(name: &str) -> anyhow::Result<&'static CatalogueEntry> {
    CATALOGUE.iter().find(|entry| entry.name == name).with_context(|| {
        let names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
        format!("there is no protocol {name:?}; the protocols are: {}", names.join(", "))
    })
}

/// Returns a spinner for a long computation.
fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(name) = &args.name else {
        if args.json {
            let entry = |e: &CatalogueEntry| json!({"name": e.name, "explored": e.explored_world});
            writeln!(out, "{}", json!({"protocols": CATALOGUE.iter().map(entry).collect::<Vec<_>>()}))?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows = CATALOGUE.iter().map(|entry| [entry.name.to_owned(), entry.explored_world.to_owned()]);
        text_table::layout(0, &[], rows).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        return Ok(ExitCode::SUCCESS);
    };
    let entry = find(name)?;
    if let Some(at) = args.explore {
        // The server of the states panics if it cannot listen.
        TcpListener::bind(at)
            .with_context(|| format!("cannot listen at {at}; give --explore another address"))?;
        writeln!(out, "http://{at}/: {}: {}; press Ctrl-C to stop", entry.name, entry.explored_world)?;
        entry.serve(at);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = spinner(format!("{}: {}", entry.name, entry.explored_world));
    let exploration = entry.explore();
    bar.finish_and_clear();
    let (counterexample, steps) = exploration.counterexample.unzip();
    let report = Report {
        name: entry.name,
        states: exploration.states,
        holds: entry.properties,
        counterexample,
        counterexample_steps: steps.unwrap_or_default(),
    };
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        writeln!(out, "{}: {}", report.name, entry.explored_world)?;
        match report.counterexample {
            None => writeln!(out, "{} states: {} in all of them", report.states, report.holds.join(" and "))?,
            Some(property) => {
                writeln!(out, "{property} does not hold after {} steps:", report.counterexample_steps.len())?;
                report.counterexample_steps.iter().try_for_each(|step| writeln!(out, "  {step}"))?;
            }
        }
    }
    Ok(if counterexample.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
