//! `mitra bench`: what the NICs and the virtual queue pairs cost, measured on this machine.
//!
//! Two processes on loopback. What is compared takes turns in blocks within one run, equal things are compared too (A/A),
//! and everything that arrives is checked: a figure with wrong data is none.

mod agreement;
mod bandwidth;
mod clock;
mod failover;
mod floor;
mod lane;
mod latency;
mod memory;
mod programs;
mod round;
mod rows;
mod station;
mod turns;

use std::io::IsTerminal;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_verbs::Mtu;
use serde::{Deserialize, Serialize};

use super::pair::{Failed, Link};
use lane::Op;
use station::Place;

/// Measure latency, bandwidth, failover, memory and agreement on this machine
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Agreement(agreement::Args),
    Latency(latency::Args),
    Bandwidth(bandwidth::Args),
    Failover(failover::Args),
    Memory(memory::Args),
    Programs(programs::Args),
}

/// What all benches take.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// The addresses of the four NICs: ours on rail 0 and 1, the peer's on rail 0 and 1. Free loopback addresses by default
    #[arg(long, value_name = "A,B,C,D", value_parser = addresses)]
    addresses: Option<[[IpAddr; 2]; 2]>,
    /// Payload bytes of a packet, at most: 256, 512, 1024, 2048 or 4096. By default what the interfaces carry
    #[arg(long, value_parser = mtu)]
    mtu: Option<usize>,
}

impl Common {
    /// Ours and the peer's.
    fn places(&self) -> [Place; 2] {
        [0, 1].map(|end| Place { addresses: self.addresses.map(|ends| ends[end]), mtu: self.mtu })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let done = match &args.what {
        What::Agreement(args) => agreement::run(args),
        What::Latency(args) => latency::run(args),
        What::Bandwidth(args) => bandwidth::run(args),
        What::Failover(args) => failover::run(args),
        What::Memory(args) => memory::run(args),
        What::Programs(args) => programs::run(args),
    };
    match done {
        Err(error) if error.is::<Failed>() => {
            eprintln!("mitra: {error:#}");
            Ok(ExitCode::FAILURE)
        }
        done => done,
    }
}

/// What the second process of a bench is to do.
#[derive(Serialize, Deserialize)]
enum Task {
    Agreement(agreement::Setup),
    Latency(latency::Setup),
    Bandwidth(bandwidth::Setup),
    Failover,
    Memory(memory::Setup),
}

/// The second process.
pub(crate) fn peer(link: &mut Link) -> anyhow::Result<()> {
    match link.receive()? {
        Task::Agreement(setup) => agreement::peer(&setup, link),
        Task::Latency(setup) => latency::peer(&setup, link),
        Task::Bandwidth(setup) => bandwidth::peer(&setup, link),
        Task::Failover => failover::peer(link),
        Task::Memory(setup) => memory::peer(&setup, link),
    }
}

/// The operations to measure.
#[derive(Clone, Debug)]
struct Ops(Vec<Op>);

impl Default for Ops {
    fn default() -> Ops {
        Ops(Op::ALL.to_vec())
    }
}

fn ops(text: &str) -> Result<Ops, String> {
    if text == "all" {
        return Ok(Ops::default());
    }
    text.split(',')
        .map(|name| Op::from_str(name, false))
        .collect::<Result<_, _>>()
        .map(Ops)
        .map_err(|_| "use write, read, send, faa, several of them separated by commas, or all".to_owned())
}

/// The longest message of a bench.
const MAX_SIZE: usize = 1 << 20;

fn size(text: &str) -> anyhow::Result<usize> {
    match text.parse() {
        Ok(len @ 8..=MAX_SIZE) if len % 8 == 0 => Ok(len),
        _ => bail!("a message has 8 to {MAX_SIZE} bytes, a multiple of 8"),
    }
}

fn mtu(text: &str) -> anyhow::Result<usize> {
    match text.parse().ok().and_then(Mtu::from_bytes) {
        Some(mtu) => Ok(mtu.bytes()),
        None => bail!("RoCEv2 has the MTUs 256, 512, 1024, 2048 and 4096"),
    }
}

fn addresses(text: &str) -> anyhow::Result<[[IpAddr; 2]; 2]> {
    let part = |part: &str| part.parse().with_context(|| format!("'{part}' is no IP address"));
    match text.split(',').map(part).collect::<anyhow::Result<Vec<IpAddr>>>()?[..] {
        [a, b, c, d] => Ok([[a, b], [c, d]]),
        _ => bail!("four addresses are needed, separated by commas"),
    }
}

/// Progress on stderr, if somebody sees it.
fn progress(steps: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}").expect("a valid template");
    ProgressBar::with_draw_target(Some(steps), target).with_style(style)
}
