#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// A part of the program without an interface of its own (RELEASING.md).
#![allow(missing_docs)]

mod alarms;
mod bandwidth;
mod bench_qp;
mod block_exchange;
mod c_program;
mod consensus;
mod endpoint;
mod failover;
mod failover_trial;
mod idle;
mod interleave;
mod latency;
mod link_return;
mod many;
mod memory;
mod output_file;
mod peers;
mod programs;
mod report;
mod resend_baseline;
mod shm_links;
mod silent_run;
mod stopwatch;
mod tpcc;
mod udp_baseline;
mod varuna;

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mitra_nics::TwoEnds;
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_softnic::Links;
use mitra_verbs::Mtu;
use serde::{Deserialize, Serialize};

use bench_qp::Op;
use endpoint::{NicPlacement, Variant};
pub use output_file::OutputFile;

/// The role of the second process on the command line of `mitra peer`.
pub const PEER_ROLE: &str = "bench";

/// Measure latency, bandwidth, failover, memory use and consensus on this machine
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Most benchmarks measure in rounds, and each round measures one block of every variant: many repetitions in a row. A figure is
the median over the blocks, and a ratio the median over the rounds of a row's block beside that of its baseline. A variant
`aa` (A/A) is the baseline measured a second time: the distance of its ratio from 1 is the noise. `faa` is a fetch-and-add.
With the defaults, a benchmark takes minutes; --blocks 1, where it exists, gives a quick look.
Exit codes: 0 success, 1 a measured run failed, 2 bad arguments.")]
pub struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Alarms(alarms::Args),
    Consensus(consensus::Args),
    Latency(latency::Args),
    Links(shm_links::Args),
    Many(many::Args),
    Bandwidth(bandwidth::Args),
    Failover(failover::Args),
    Idle(idle::Args),
    Memory(memory::Args),
    Peers(peers::Args),
    Programs(programs::Args),
    Return(link_return::Args),
    Tpcc(tpcc::Args),
    Varuna(varuna::Args),
}

/// Options of every benchmark that opens NICs.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// The four NICs: this process on rails 0 and 1, the peer on rails 0 and 1. A name is an RDMA
    /// device of the kernel, an address a software NIC; two devices serve both processes
    /// [default: software NICs at free loopback addresses]
    #[arg(long, alias = "addresses", value_name = "A,B,C,D")]
    device: Option<TwoEnds>,
    /// Largest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096
    /// [default: the MTU of the interfaces]
    #[arg(long, value_parser = parse_mtu)]
    mtu: Option<usize>,
    /// How packets reach the peer: through shared memory (shm), over UDP (udp), or as the NICs
    /// choose (auto)
    #[arg(long, alias = "rails", default_value_t, value_name = "KIND")]
    links: Links,
}

impl Common {
    /// Returns the placements of this process's NICs and of the peer's NICs.
    fn placements(&self) -> [NicPlacement; 2] {
        [0, 1].map(|end| NicPlacement {
            nics: self.device.as_ref().map(|TwoEnds(ends)| ends[end].clone()),
            mtu: self.mtu,
            links: self.links,
        })
    }

    /// Whether a NIC is a device of the kernel, whose faults are no part of the measurements.
    fn has_devices(&self) -> bool {
        self.device.as_ref().is_some_and(TwoEnds::have_devices)
    }

    /// Describes the NICs in the settings of a report.
    fn nics(&self) -> String {
        self.device.as_ref().map_or_else(|| "software NICs".to_owned(), ToString::to_string)
    }

    /// Returns the variants to measure. Without a choice of the user, the UDP baseline is left out
    /// over devices of the kernel, because its packets do not pass them.
    fn variants(&self, chosen: &Option<Vec<Variant>>) -> Vec<Variant> {
        let of_nics = [Variant::Qp, Variant::Vqp, Variant::Aa, Variant::VqpLog];
        let baseline = (!self.has_devices()).then_some(Variant::UdpBaseline);
        chosen.clone().unwrap_or_else(|| baseline.into_iter().chain(of_nics).collect())
    }

    /// Refuses devices of the kernel where a benchmark measures or fails software NICs.
    fn check_software_nics(&self, what: &str) -> anyhow::Result<()> {
        ensure!(
            !self.has_devices(),
            "{what} needs software NICs; --device takes devices of the kernel in latency, bandwidth, failover and varuna"
        );
        Ok(())
    }
}

/// Runs the benchmark that the command line names, and prints its report.
///
/// # Errors
///
/// Fails if an argument is invalid or this machine lacks something that the benchmark needs. If the
/// measured run fails, the function prints the error and returns `Ok` with exit code 1.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let done = match &args.command {
        BenchCommand::Alarms(args) => alarms::run(args),
        BenchCommand::Consensus(args) => consensus::run(args),
        BenchCommand::Latency(args) => latency::run(args),
        BenchCommand::Links(args) => shm_links::run(args),
        BenchCommand::Many(args) => many::run(args),
        BenchCommand::Bandwidth(args) => bandwidth::run(args),
        BenchCommand::Failover(args) => failover::run(args),
        BenchCommand::Idle(args) => idle::run(args),
        BenchCommand::Memory(args) => memory::run(args),
        BenchCommand::Peers(args) => peers::run(args),
        BenchCommand::Programs(args) => programs::run(args),
        BenchCommand::Return(args) => link_return::run(args),
        BenchCommand::Tpcc(args) => tpcc::run(args),
        BenchCommand::Varuna(args) => varuna::run(args),
    };
    match done {
        Err(error) if error.is::<RunFailed>() => {
            eprintln!("mitra: {error:#}");
            Ok(ExitCode::FAILURE)
        }
        done => done,
    }
}

#[derive(Serialize, Deserialize)]
enum Task {
    Alarms(alarms::Setup),
    Consensus(consensus::Setup),
    Latency(block_exchange::Setup),
    Bandwidth(block_exchange::Setup),
    Failover,
    Idle(idle::Setup),
    Links(shm_links::Setup),
    Memory(memory::Setup),
    ManyVqps(varuna::ManyVqpsSetup),
    Tpcc(Box<tpcc::Role>),
}

/// Runs the second process. The first message from the first process describes the task.
///
/// # Errors
///
/// Any error of the benchmark. The caller reports it to the first process.
pub fn run_peer(connection: &mut PeerConnection) -> anyhow::Result<()> {
    match connection.receive()? {
        Task::Alarms(setup) => alarms::peer(&setup, connection),
        Task::Consensus(setup) => consensus::peer(&setup, connection),
        Task::Latency(setup) => latency::peer(&setup, connection),
        Task::Bandwidth(setup) => bandwidth::peer(&setup, connection),
        Task::Failover => failover::peer(connection),
        Task::Idle(setup) => idle::peer(&setup, connection),
        Task::Links(setup) => shm_links::peer(&setup, connection),
        Task::Memory(setup) => memory::peer(&setup, connection),
        Task::Tpcc(role) => tpcc::peer(*role, connection),
        Task::ManyVqps(setup) => varuna::many_vqps_peer(&setup, connection),
    }
}

/// Marks an error of the measured run, as opposed to an error of the arguments or of this machine.
#[derive(Clone, Copy, Debug)]
struct RunFailed;

impl fmt::Display for RunFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the benchmark failed")
    }
}

/// Marks `error` as [`RunFailed`] and adds the error that the second process reported, if it
/// reported one.
fn run_error(peer: &mut PeerProcess, error: anyhow::Error) -> anyhow::Error {
    match peer.reported_error() {
        Some(reported) => error.context(reported).context(RunFailed),
        None => error.context(RunFailed),
    }
}

#[derive(Clone, Debug)]
struct Ops(Vec<Op>);

impl Default for Ops {
    fn default() -> Ops {
        Ops(Op::ALL.to_vec())
    }
}

fn parse_ops(text: &str) -> Result<Ops, String> {
    if text == "all" {
        return Ok(Ops::default());
    }
    text.split(',')
        .map(|name| Op::from_str(name, false))
        .collect::<Result<_, _>>()
        .map(Ops)
        .map_err(|_| "use write, read, send or faa, several separated by commas, or all".to_owned())
}

/// The length of the longest message, in bytes.
const MAX_SIZE: usize = 1 << 20;

fn parse_size(text: &str) -> anyhow::Result<usize> {
    match text.parse() {
        Ok(len @ 8..=MAX_SIZE) if len % 8 == 0 => Ok(len),
        _ => bail!("a message size is a multiple of 8 from 8 to {MAX_SIZE} bytes"),
    }
}

fn parse_mtu(text: &str) -> anyhow::Result<usize> {
    match text.parse().ok().and_then(Mtu::from_bytes) {
        Some(mtu) => Ok(mtu.bytes()),
        None => bail!("the MTUs of RoCEv2 are 256, 512, 1024, 2048 and 4096"),
    }
}

/// Returns a progress bar on standard error. It is hidden if standard error is not a terminal.
fn progress(steps: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} {eta}").expect("a valid template");
    ProgressBar::with_draw_target(Some(steps), target).with_style(style)
}
