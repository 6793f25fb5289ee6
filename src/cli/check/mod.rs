//! `mitra check`: explores every interleaving of a protocol's steps, at a small size.

mod replay;
mod theorem;
mod vqp_run;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use mitra_model_check::{CATALOGUE, CatalogueEntry, THEOREMS, replay_example};
use serde::Serialize;
use serde_json::json;

use self::replay::Replayed;
use super::{text_table, write_json};

/// Explore every interleaving of a protocol's steps, at a small size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  mitra check protected-memory-paxos
  mitra check paxos --explore 127.0.0.1:3000
  mitra check double-fadd --replay
The model of a protocol runs the same state machines as a real deployment; only processes, memories and messages in transit are
modelled. A theorem says that something is impossible; its steps show this. --list shows the protocols, the
theorems and the explored configuration of each.
--json: `name`, `states`, `holds` (the checked properties, or the theorem), `counterexample` (the violated property, or
null), `counterexample_steps` (an array; empty if every property holds, the steps that show it for a theorem),
with --replay also `replayed` (for each history: `executions`, `completions`, `word`), and for a theorem `on_a_vqp` (what a vQP
makes of the same failure: these and `value`), for fence-evidence-replay `example_steps`; with --list `protocols` and
`theorems`, each with `name` and `explored`. --explore shows states in a browser and has no result to print, so it excludes --json.
Exit codes: 0 every property or the theorem holds, 1 there is a counterexample, or the theorem is not shown, 2 bad
arguments.")]
pub(crate) struct Args {
    /// Protocol or theorem to check, by a name that --list shows
    name: Option<String>,
    /// List the protocols and the theorems
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Serve the states to a web browser at this address instead; give NAME first
    /// [default: 127.0.0.1:3000]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:3000",
        conflicts_with_all = ["json", "list"]
    )]
    explore: Option<SocketAddr>,
    /// Run the steps of a theorem on the software NIC too, and its failure on a vQP
    #[arg(long, conflicts_with_all = ["list", "explore"])]
    replay: bool,
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    example_steps: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replayed: Vec<Replayed>,
}

fn find(name: &str) -> anyhow::Result<&'static CatalogueEntry> {
    CATALOGUE.iter().find(|entry| entry.name == name).with_context(|| {
        let names = |names: Vec<&str>| names.join(", ");
        let (protocols, theorems) = (CATALOGUE.iter().map(|e| e.name), THEOREMS.iter().map(|t| t.name));
        let (protocols, theorems) = (names(protocols.collect()), names(theorems.collect()));
        format!("there is no protocol {name:?}; the protocols are: {protocols}; the theorems are: {theorems}")
    })
}

fn spinner(message: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn announce_server(
    out: &mut impl Write,
    at: SocketAddr,
    name: &str,
    explored_world: &str,
) -> anyhow::Result<()> {
    // The server of the states panics if it cannot listen.
    TcpListener::bind(at)
        .with_context(|| format!("cannot listen at {at}; give --explore another address"))?;
    writeln!(out, "http://{at}/: {name}: {explored_world}; press Ctrl-C to stop")?;
    Ok(())
}

fn write_steps(out: &mut impl Write, steps: &[String]) -> io::Result<()> {
    let width = steps.len().to_string().len();
    (1..).zip(steps).try_for_each(|(number, step)| writeln!(out, "  {number:width$}. {step}"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(name) = &args.name else {
        ensure!(args.list, "the NAME of a protocol or theorem is missing; --list shows the names");
        let protocols = CATALOGUE.iter().map(|entry| (entry.name, entry.explored_world));
        let theorems = THEOREMS.iter().map(|theorem| (theorem.name, theorem.explored_world));
        if args.json {
            let entry = |(name, explored)| json!({"name": name, "explored": explored});
            let [protocols, theorems] =
                [protocols.map(entry).collect::<Vec<_>>(), theorems.map(entry).collect()];
            writeln!(out, "{}", json!({"protocols": protocols, "theorems": theorems}))?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows = protocols.chain(theorems).map(|(name, explored)| [name.to_owned(), explored.to_owned()]);
        text_table::layout(0, &[], rows).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(theorem) = THEOREMS.iter().find(|theorem| theorem.name == name) {
        if let Some(at) = args.explore {
            announce_server(&mut out, at, theorem.name, theorem.explored_world)?;
            theorem.serve(at);
            return Ok(ExitCode::SUCCESS);
        }
        return theorem::run(theorem, args.replay, args.json, &mut out);
    }
    let entry = find(name)?;
    if let Some(at) = args.explore {
        announce_server(&mut out, at, entry.name, entry.explored_world)?;
        entry.serve(at);
        return Ok(ExitCode::SUCCESS);
    }
    if args.replay && entry.name != "fence-evidence-replay" {
        let theorems: Vec<&str> = THEOREMS.iter().map(|theorem| theorem.name).collect();
        bail!(
            "--replay runs the steps of a theorem, and {name} is a protocol; the theorems are: {}, fence-evidence-replay",
            theorems.join(", ")
        );
    }
    let bar = spinner(format!("{}: {}", entry.name, entry.explored_world));
    let exploration = entry.explore();
    bar.finish_and_clear();
    let (counterexample, steps) = exploration.counterexample.unzip();
    let (mut example, mut replayed) = (Vec::new(), Vec::new());
    if args.replay {
        let (setup, steps) = replay_example();
        replayed.push(replay::run(setup, &steps)?);
        example = steps.iter().map(|step| format!("{step:?}")).collect();
    }
    let report = Report {
        name: entry.name,
        states: exploration.states,
        holds: entry.properties,
        counterexample,
        counterexample_steps: steps.unwrap_or_default(),
        example_steps: example,
        replayed,
    };
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        writeln!(out, "{}: {}", report.name, entry.explored_world)?;
        match report.counterexample {
            None => writeln!(out, "{} states: {} in all of them", report.states, report.holds.join(" and "))?,
            Some(property) => {
                writeln!(out, "{property} does not hold after {} steps:", report.counterexample_steps.len())?;
                write_steps(&mut out, &report.counterexample_steps)?;
            }
        }
        if let [replayed] = &report.replayed[..] {
            writeln!(out, "A run of 4 operations:")?;
            write_steps(&mut out, &report.example_steps)?;
            writeln!(out, "  On the software NIC: {replayed}.")?;
        }
    }
    Ok(if counterexample.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
