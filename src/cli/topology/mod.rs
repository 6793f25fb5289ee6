//! `mitra topology`: computes how many crashes a shared-memory graph tolerates, and which crashes
//! it does not tolerate.

mod drawing;
mod json;
mod layout;
mod report;
mod text;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_bench::OutputFile;
use mitra_topology::edge_list::{self, MAX_BYTES};
use mitra_topology::{Graph, Stage, Suggestion, generators, suggest};

use super::write_json;
use json::Summary;

/// Compute how many crashes a shared-memory graph tolerates, and which crashes it does not tolerate
///
/// Neighbours in the graph can access each other's memory, which survives a crash of its process.
/// Messages reach every process. HBO decides while the live processes and their neighbours form a
/// majority. Sparse graphs with high expansion tolerate crashes of more than half of the processes,
/// with few connections per NIC.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("graph").required(true).args(["edges", "family", "suggest"])))]
#[command(after_help = "\
Families: ring N, complete N, star N, empty N, hypercube DIMENSION, petersen, grid ROWS COLUMNS, torus ROWS COLUMNS,
random-regular N DEGREE.
Examples:
  mitra topology --family petersen
  mitra topology --edges graph.txt --json
  mitra topology --suggest 24 17 --write graph.txt --report graph.html
Each printed line has a measure, its value, and the formula or the processes that explain it. f is a number of crashes.
HBO is the protocol of that name (hybrid Ben-Or). A process is represented while it or a neighbour of it lives.
  expansion h        the least ratio of outside neighbours to members, over the sets of at most half of the processes
  theorem's bound f  crashes that HBO tolerates by the theorem about h
  misread bound f    the bound of another reading of the theorem, which is not valid
  HBO f              crashes that HBO tolerates exactly
  best possible f    crashes that the best algorithm tolerates
Results are exact for up to 32 processes, and for larger graphs whose search ends in time; otherwise they are bounds,
for up to 100,000 processes. docs/topology.md describes the fields of --json.
Exit codes: 0 success, exact or not; 2 bad arguments or input.")]
pub(crate) struct Args {
    /// Edge list: one edge `u v` per line, vertices from 0; an isolated vertex is alone on its
    /// line; # begins a comment; - reads standard input
    #[arg(long, value_name = "FILE")]
    edges: Option<PathBuf>,
    /// Graph family and its sizes
    #[arg(long, value_names = ["NAME", "SIZE"], num_args = 1..=3)]
    family: Option<Vec<String>>,
    /// Propose a graph of N processes that tolerates F crashes under HBO, with few connections per
    /// NIC
    #[arg(long, value_names = ["N", "F"], num_args = 2)]
    suggest: Option<Vec<usize>>,
    /// Seed for random graphs and for the search in large graphs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Write an HTML page with the measures and a drawing of the graph
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write the drawing only
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Write the graph as an edge list
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let progress = Progress::new();
    let (name, graph, suggestion) = graph(args, &progress)?;
    if args.svg.is_some() && !drawing::is_drawable(&graph) {
        bail!("--svg draws at most {}; omit it", drawing::DRAWING_LIMITS);
    }
    // The paths are checked before the computation, so that the command fails early.
    let [write, svg, report] =
        [output_file(&args.write)?, output_file(&args.svg)?, output_file(&args.report)?];
    let on_stage = |stage| progress.stage(stage);
    let measures = match &suggestion {
        Some(suggestion) => suggestion.measures(args.seed, &on_stage),
        None => mitra_topology::Measures::of(&graph, args.seed, &on_stage),
    };
    drop(progress);
    let summary = Summary::new(&graph, &measures, suggestion.as_ref());
    if let Some(file) = write {
        file.write(&edge_list::format(&graph))?;
    }
    if let Some(file) = svg {
        file.write(&drawing::drawing(&graph, &measures))?;
    }
    if let Some(file) = report {
        file.write(&report::page(&name, &graph, &measures, &summary)?)?;
    }
    let mut out = io::stdout().lock();
    if args.json {
        write_json(&mut out, &summary)?;
    } else {
        text::print(&mut out, &name, &graph, &measures, &summary)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name of the graph that the arguments describe, the graph, and the suggestion that
/// `--suggest` requests.
fn graph(args: &Args, progress: &Progress) -> anyhow::Result<(String, Graph, Option<Suggestion>)> {
    if let Some(path) = &args.edges {
        let name = path.display().to_string();
        let graph = edge_list::parse(&read(path)?).with_context(|| name.clone())?;
        return Ok((name, graph, None));
    }
    if let Some([name, sizes @ ..]) = args.family.as_deref() {
        let number = |size: &String| {
            size.parse::<usize>()
                .map_err(|_| anyhow::anyhow!("a size of {name} is a whole number, not '{size}'"))
        };
        let sizes = sizes.iter().map(number).collect::<anyhow::Result<Vec<_>>>()?;
        let graph = generators::generate(name, &sizes, args.seed)?;
        let sizes: String = sizes.iter().map(|size| format!(" {size}")).collect();
        return Ok((format!("{name}{sizes}"), graph, None));
    }
    let Some(&[n, f]) = args.suggest.as_deref() else { bail!("--suggest needs two numbers") };
    let suggestion = suggest(n, f, args.seed, &|degree| progress.show(format!("trying degree {degree}")))
        .with_context(|| format!("cannot suggest a graph of {n} processes that tolerates {f} crashes"))?;
    let name = format!("suggested for {n} processes, {f} crashes");
    Ok((name, suggestion.graph.clone(), Some(suggestion)))
}

/// Reads an edge list. Stops one byte after [`MAX_BYTES`], so that the parser detects a longer
/// file.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(|| {
            format!("cannot open {}; give the path of an edge list, or - for standard input", path.display())
        })?)
    };
    let mut text = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    input.take(limit).read_to_end(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text)
}

/// Checks that a file can be written, if its path is given.
fn output_file(path: &Option<PathBuf>) -> anyhow::Result<Option<OutputFile>> {
    path.clone().map(OutputFile::new).transpose()
}

/// A spinner on standard error that shows the current step. It is hidden if standard error is not a
/// terminal.
struct Progress {
    bar: ProgressBar,
    is_ticking: Cell<bool>,
}

impl Progress {
    fn new() -> Progress {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("  {spinner} {msg} {elapsed}").expect("a valid template");
        Progress {
            bar: ProgressBar::with_draw_target(None, target).with_style(style),
            is_ticking: false.into(),
        }
    }

    fn show(&self, message: String) {
        self.bar.set_message(message);
        if !self.is_ticking.replace(true) {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    fn stage(&self, stage: Stage) {
        self.show(match stage {
            Stage::HeuristicSearch => "searching for sets that defeat the graph".to_owned(),
            Stage::ExactSearch(measure) => format!("searching all sets for {measure}"),
            Stage::EigenvalueBounds => "bounding the eigenvalues".to_owned(),
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
