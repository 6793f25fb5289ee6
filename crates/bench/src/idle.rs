//! `mitra bench idle`: measures what processes that wait for work cost: their CPU time, and how
//! often the kernel wakes their threads.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use mitra_driver::{DrivenQp, Driver};
use mitra_failover::{Config, ConnectInfo, DetectorConfig, Domain, VirtualQp};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::consensus::start_kv;
use super::endpoint::NicPlacement;
use super::report::{Blocks, Machine, Report, Row};
use super::stopwatch::cpu_seconds;
use super::{Common, PEER_ROLE, RunFailed, Task, progress};

/// The maximum number of vQPs. Each takes four descriptors, of which a process has 20,000.
const MAX_VQPS: u32 = 4000;
/// The time for which each end waits until the other end has connected all vQPs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// CPU time and wake-ups of processes that have nothing to do
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench idle
  mitra bench idle --only kv --seconds 10 --json
Rows: kv/memories, kv/processes and kv of three `mitra memory kv` and three `mitra kv serve` with the default heartbeats;
vqps/1000 of two processes with 1,000 connected vQPs between them, which a `mitra-driver` thread drives in each. Each row
has /cpu, in percent of one processor, and /wakeups, how often a thread of these processes went to sleep in a second.
Both are the kernel's figures (clock_getcpuclockid(3), and voluntary_ctxt_switches of proc(5)).
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a process failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Processes to measure
    #[arg(long, value_delimiter = ',', default_value = "kv,vqps")]
    only: Vec<Idle>,
    /// Number of connected vQPs
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_VQPS)))]
    vqps: u32,
    /// Seconds of a block
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Seconds from the start of the processes to the first block
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    settle: u64,
    /// Blocks per row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Idle {
    Kv,
    Vqps,
}

/// The parameters of the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    vqps: u32,
    placement: NicPlacement,
}

/// The CPU time and the wake-ups of processes since they started.
#[derive(Clone, Copy, Default)]
struct Usage {
    cpu_seconds: f64,
    wakeups: u64,
}

impl Usage {
    fn of(processes: &[u32]) -> anyhow::Result<Usage> {
        let mut sum = Usage::default();
        for &process in processes {
            sum.cpu_seconds += cpu_seconds(process)?;
            sum.wakeups += wakeups(process).context("a measured process has ended")?;
        }
        Ok(sum)
    }
}

/// Returns how often the threads of a process have gone to sleep.
fn wakeups(process: u32) -> anyhow::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may end between the two system calls.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += count.context("no voluntary_ctxt_switches in status")?.trim().parse::<u64>()?;
    }
    Ok(sum)
}

/// Measures groups of processes that run. Returns two rows for each group.
fn measure(args: &Args, groups: &[(String, Vec<u32>)]) -> anyhow::Result<Vec<Row>> {
    sleep(Duration::from_secs(args.settle));
    let mut found = vec![(Blocks::default(), Blocks::default()); groups.len()];
    let usages = || groups.iter().map(|(_, processes)| Usage::of(processes)).collect::<Result<Vec<_>, _>>();
    for _ in 0..args.blocks {
        let (begin, before) = (Instant::now(), usages()?);
        sleep(Duration::from_secs(args.seconds));
        let (seconds, after) = (begin.elapsed().as_secs_f64(), usages()?);
        for ((cpu, wakeups), (before, after)) in found.iter_mut().zip(before.iter().zip(&after)) {
            let percent = 100.0 * (after.cpu_seconds - before.cpu_seconds) / seconds;
            let rate = after.wakeups.saturating_sub(before.wakeups) as f64 / seconds;
            cpu.push(percent, percent);
            wakeups.push(rate, rate);
        }
    }
    let rows = groups.iter().zip(&found).flat_map(|((name, _), (cpu, wakeups))| {
        [cpu.row(format!("{name}/cpu"), "%"), wakeups.row(format!("{name}/wakeups"), "1/s")]
    });
    Ok(rows.collect())
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.common.check_software_nics("this benchmark")?;
    let machine = Machine::detect();
    let bar = progress(args.only.len() as u64);
    let mut rows = Vec::new();
    for what in &args.only {
        rows.extend(match what {
            Idle::Kv => kv(args),
            Idle::Vqps => vqps(args),
        }?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut notes = machine.warnings();
    notes.push("A wake-up is a time at which a thread gave up its processor to wait.".into());
    let settings = serde_json::json!({
        "seconds": args.seconds, "settle": args.settle, "blocks": args.blocks, "vqps": args.vqps,
        "links": args.common.links.to_string(), "rails": 2,
    });
    Report { name: "idle", unit: "%", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

fn kv(args: &Args) -> anyhow::Result<Vec<Row>> {
    let store = start_kv(args.common.links).context(RunFailed)?;
    let (memories, processes) = store.memories_and_processes();
    let all = [memories.clone(), processes.clone()].concat();
    let named = [("kv/memories", memories), ("kv/processes", processes), ("kv", all)];
    let groups = named.map(|(name, processes)| (name.to_owned(), processes));
    measure(args, &groups).context(RunFailed)
}

fn vqps(args: &Args) -> anyhow::Result<Vec<Row>> {
    let [local, remote] = args.common.placements();
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    let setup = |placement| Setup { vqps: args.vqps, placement };
    peer.connection.send(&Task::Idle(setup(remote)))?;
    let ends = Ends::open(&setup(local))?;
    peer.connection.send(&ends.infos())?;
    ends.connect(&peer.connection.receive::<Vec<Vec<u8>>>()?)?;
    let groups = [(format!("vqps/{}", args.vqps), vec![std::process::id(), peer.id()])];
    let rows = measure(args, &groups)?;
    ends.check().context(RunFailed)?;
    peer.connection.send(&())?;
    peer.wait()?;
    Ok(rows)
}

pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let ends = Ends::open(setup)?;
    ends.connect(&connection.receive::<Vec<Vec<u8>>>()?)?;
    connection.send(&ends.infos())?;
    connection.receive_within::<()>(None)?;
    ends.check()
}

/// The vQPs of one process.
struct Ends {
    vqps: Vec<DrivenQp>,
}

impl Ends {
    fn open(setup: &Setup) -> anyhow::Result<Ends> {
        let nics = setup.placement.open()?.map(|nic| nic as Arc<dyn Provider>);
        let domain = Domain::new(nics.to_vec())?;
        let detector = DetectorConfig { first_contact_timeout: CONNECT_TIMEOUT, ..DetectorConfig::default() };
        let config = Config { send_wrs: 8, recv_wrs: 8, detector, ..Config::default() };
        let driver = Driver::start().context("cannot start a thread")?;
        let vqp = |_| driver.serve(VirtualQp::builder(&domain).config(config));
        Ok(Ends { vqps: (0..setup.vqps).map(vqp).collect::<Result<_, _>>()? })
    }

    fn infos(&self) -> Vec<Vec<u8>> {
        self.vqps.iter().map(|vqp| vqp.lock().local_info().encode()).collect()
    }

    fn connect(&self, peers: &[Vec<u8>]) -> anyhow::Result<()> {
        for (vqp, peer) in self.vqps.iter().zip(peers) {
            vqp.lock().connect(&ConnectInfo::decode(peer)?)?;
        }
        Ok(())
    }

    /// Checks that all vQPs are on the first rail.
    fn check(&self) -> anyhow::Result<()> {
        let moved = self.vqps.iter().filter(|vqp| vqp.lock().last_failover().is_some()).count();
        ensure!(moved == 0, "{moved} of {} vQPs left their rail", self.vqps.len());
        Ok(())
    }
}
