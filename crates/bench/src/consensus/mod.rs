//! `mitra bench consensus`: measures the latency of a decision, relative to raw WRITEs to a
//! majority of the memories.

mod fast_and_robust_signers;
mod leader_change;
mod leader_latency;
mod memory_processes;
mod paxos_acceptors;
mod permission_switch;
mod redis_benchmark;
mod repeated_decisions;
mod simulated_counts;
mod store_processes;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use mitra_consensus::disk_paxos::DiskPaxos;
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::heartbeat::Heartbeat;
use mitra_consensus::log::{self as replicated, Log};
use mitra_consensus::paxos::Paxos;
use mitra_consensus::protected_memory_paxos::ProtectedMemoryPaxos;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::{ProcessId, Region};
use mitra_failover::Domain;
use mitra_softnic::Links;
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::endpoint::NicPlacement;
use super::report::{Blocks, Machine, Report};
use super::stopwatch::micros;
use super::{RunFailed, progress};
use fast_and_robust_signers::Unsigned;
use leader_change::PermissionTaker;
use leader_latency::{append, connect, decide, fan_out, lead, leader};
use mitra_peer_process::PeerConnection;
use repeated_decisions::Instances;
pub(crate) use store_processes::start_kv;

/// The capacity of a register in bytes.
const REGISTER_CAPACITY: usize = 256;
/// The number of decisions for which the memories have registers.
const INSTANCES: u16 = 20_000;
/// The number of decisions of Fast & Robust for which the memories have registers.
const SIGNED_INSTANCES: u16 = INSTANCES / 10;
const PROCESSES: u8 = 3;
const LEADER: ProcessId = ProcessId(0);
const HEARTBEAT_PERIOD: Duration = Duration::from_millis(1);
/// The number of leader changes per block.
const LEADER_CHANGES: usize = 20;
/// A key-value store has one block for this many blocks of the protocols, because a store's block
/// takes seconds.
const BLOCKS_OF_STORE: u32 = 3;

/// Latency of decisions over memory nodes, beside raw WRITEs to a majority of them
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench consensus
  mitra bench consensus --size 128 --memories 5 --blocks 5 --json
This process is the leader. Each memory node is a process of its own, which serves every protocol and one RC queue pair from
the same NICs. Each round measures one block of every row. The other processes of each protocol do not run, because the
leader does not need them; Paxos by messages has two more processes, and runs after the others.

fanout_floor       raw WRITEs of the same size to all memories, until a majority has completed: the baseline
round_trip         a raw WRITE to one memory
permission/…       the time that a memory takes to move the write permission between two processes, by three mechanisms
hbo/…, omega/…     rounds and messages, counted by the simulator
kv/…               `mitra kv` under redis-benchmark (Debian's redis-tools): latency, requests per second, and requests
                   per CPU-second of all processes of the store
raft/…, redis/…    the same for a store replicated by openraft over TCP, and for Redis without replication

docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a protocol or a store failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Bytes of a value
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=128))]
    size: u16,
    /// Decisions per block
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    iters: u64,
    /// Blocks per variant
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Memory nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    memories: u8,
    /// Requests to each key-value store per block; four times as many with pipelining
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    requests: u32,
    /// How packets reach the other processes: through shared memory (shm), over UDP (udp), or as
    /// the NICs choose (auto). The key-value stores take what MITRA_LINKS says
    #[arg(long, alias = "rails", default_value_t, value_name = "KIND")]
    links: Links,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Returns the regions of each measured protocol, in the order of
/// [`Memory::addresses`](memory_processes::Memory).
fn protocols(processes: u8, memories: u8) -> Vec<Vec<Region>> {
    vec![
        Instances::<Pmp>::regions(Pmp::regions(processes), INSTANCES),
        Instances::<Disk>::regions(Disk::regions(processes), INSTANCES),
        log(processes, memories).regions(),
        PermissionTaker::regions(processes),
        Heartbeat::regions(processes),
        Instances::<Fast<Unsigned>>::regions(
            Fast::<Unsigned>::regions(processes, BACKUP_TURNS),
            SIGNED_INSTANCES,
        ),
        Instances::<Fast<Ed25519>>::regions(
            Fast::<Ed25519>::regions(processes, BACKUP_TURNS),
            SIGNED_INSTANCES,
        ),
    ]
}

/// The task of a second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Setup {
    Memory(memory_processes::MemorySetup),
    Acceptor(paxos_acceptors::Acceptor),
}

pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    match setup {
        Setup::Memory(shared) => memory_processes::peer(shared, connection),
        Setup::Acceptor(acceptor) => paxos_acceptors::peer(acceptor, connection),
    }
}

fn log(processes: u8, memories: u8) -> replicated::Config {
    replicated::Config {
        processes,
        memories,
        max_inflight: 16,
        window: 16,
        ring_windows: 64,
        register_bytes: REGISTER_CAPACITY as u32,
        snapshot_registers: 1,
        queue_capacity: 64,
    }
}

type Value = Vec<u8>;
type Pmp = ProtectedMemoryPaxos<Value>;
type Disk = DiskPaxos<Value>;
type Fast<K> = FastAndRobust<Value, K>;
/// The number of turns for which the backup protocol has registers. The benchmark never reaches the
/// backup.
const BACKUP_TURNS: u16 = 1;
/// The number of wake-ups until the backup protocol starts.
const BACKUP_WAKES: u8 = u8::MAX;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.iters * u64::from(args.blocks) * 11 / 10 < INSTANCES.into(),
        "iters times blocks must be below {INSTANCES}, less a tenth to warm up"
    );
    let machine = Machine::detect();
    const NAMES: [&str; 7] = [
        "fanout_floor",
        "round_trip",
        "replicated-log/entry",
        "protected-memory-paxos/decide",
        "disk-paxos/decide",
        "fast-and-robust/unsigned",
        "fast-and-robust/decide",
    ];
    let store_blocks = args.blocks.div_ceil(BLOCKS_OF_STORE);
    let bar = progress(u64::from(args.blocks) * NAMES.len() as u64 + redis_benchmark::steps(store_blocks));
    // The stores run before the memory processes start, because the memory processes would take CPU
    // time from the stores.
    let (stores, notes) = redis_benchmark::rows(args.requests, store_blocks, &bar).context(RunFailed)?;

    let placement = NicPlacement { links: args.links, ..NicPlacement::default() };
    let nics = placement.open()?;
    let domain = Domain::with_completion_channels(
        nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
    )?;
    let mut memories = memory_processes::start(args.memories, PROCESSES, &placement, &nics[0])?;
    let m = args.memories;
    let value = vec![7; args.size.into()];
    let new_pmp = || Pmp::new(LEADER, PROCESSES, m, value.clone());
    let new_disk = || Disk::new(LEADER, PROCESSES, m, value.clone());
    let mut pmp = leader(&domain, &memories, 0, new_pmp(), &Pmp::regions(PROCESSES))?;
    let mut disk = leader(&domain, &memories, 1, new_disk(), &Disk::regions(PROCESSES))?;
    let signer = fast_and_robust_signers::ed25519();
    let new_bare = || Fast::new(LEADER, (PROCESSES, m), BACKUP_WAKES, BACKUP_TURNS, Unsigned, value.clone());
    let new_fast =
        || Fast::new(LEADER, (PROCESSES, m), BACKUP_WAKES, BACKUP_TURNS, signer.clone(), value.clone());
    let mut bare =
        leader(&domain, &memories, 5, new_bare(), &Fast::<Unsigned>::regions(PROCESSES, BACKUP_TURNS))?;
    let mut fast =
        leader(&domain, &memories, 6, new_fast(), &Fast::<Ed25519>::regions(PROCESSES, BACKUP_TURNS))?;

    let replicated_sizes = log(PROCESSES, m);
    let process = Log::new(LEADER, replicated_sizes).context("the sizes of the log are invalid")?;
    let mut log = connect(&domain, &memories, 2, LEADER, process)?;
    lead(&mut log)?;

    let mut blocks: [Blocks; NAMES.len()] = Default::default();
    for round in 0..args.blocks as usize {
        for at in 0..NAMES.len() {
            let at = (at + round) % NAMES.len();
            bar.set_message(NAMES[at]);
            let laps = match at {
                0 => fan_out(&mut memories, args, usize::from(m) / 2 + 1)?,
                1 => fan_out(&mut memories[..1], args, 1)?,
                2 => append(&mut log, args, &value)?,
                3 => decide(&mut pmp, args.iters, &value, new_pmp)?,
                4 => decide(&mut disk, args.iters, &value, new_disk)?,
                5 => decide(&mut bare, args.iters / 10, &value, new_bare)?,
                _ => decide(&mut fast, args.iters / 10, &value, new_fast)?,
            };
            blocks[at].push(micros(laps.value_at_quantile(0.5)), micros(laps.value_at_quantile(0.99)));
            bar.inc(1);
        }
    }
    let mut switches: [Blocks; 3] = Default::default();
    bar.set_message("leader changes");
    let next = Log::new(ProcessId(1), replicated_sizes).context("the sizes of the log are invalid")?;
    let mut logs = [log, connect(&domain, &memories, 2, ProcessId(1), next)?];
    let taker = |p| connect(&domain, &memories, 3, ProcessId(p), PermissionTaker::new(ProcessId(p), m));
    let mut takers = [taker(0)?, taker(1)?];
    let beat = |p| connect(&domain, &memories, 4, ProcessId(p), Heartbeat::new(ProcessId(p), PROCESSES, m));
    let mut beats = [beat(0)?, beat(1)?];
    for _ in 0..args.blocks {
        let all = [
            leader_change::permission(&mut takers, LEADER_CHANGES)?,
            leader_change::takeover(&mut logs, LEADER_CHANGES)?,
            leader_change::detection(&mut beats, HEARTBEAT_PERIOD, LEADER_CHANGES / 5)?,
        ];
        switches.iter_mut().zip(all).for_each(|(blocks, (median, p99))| blocks.push(median, p99));
    }
    bar.set_message("paxos/decide");
    let mut by_messages = Blocks::default();
    let (mut paxos, acceptors) = paxos_acceptors::paxos(&domain, &placement)?;
    for _ in 0..args.blocks {
        let laps = decide(&mut paxos, args.iters, &value, || Paxos::new(LEADER, PROCESSES, value.clone()))?;
        by_messages.push(micros(laps.value_at_quantile(0.5)), micros(laps.value_at_quantile(0.99)));
    }
    drop((paxos, acceptors));
    bar.finish_and_clear();
    let mut rows: Vec<_> =
        NAMES.iter().zip(&blocks).map(|(name, blocks)| blocks.row((*name).into(), "us")).collect();
    for at in 2..NAMES.len() {
        rows[at] = std::mem::take(&mut rows[at]).with_baseline(&blocks[at], NAMES[0].into(), &blocks[0]);
    }
    rows[0] = std::mem::take(&mut rows[0]).with_baseline(&blocks[0], NAMES[1].into(), &blocks[1]);
    for (name, found) in
        ["permission/switch", "replicated-log/takeover", "replicated-log/detection"].iter().zip(&switches)
    {
        rows.push(found.row((*name).into(), "us").with_baseline(found, NAMES[1].into(), &blocks[1]));
    }
    let paxos = by_messages.row("paxos/decide".into(), "us");
    rows.push(paxos.with_baseline(&by_messages, NAMES[0].into(), &blocks[0]));
    rows.extend(permission_switch::rows(args.blocks)?);
    rows.extend(simulated_counts::hbo()?);
    rows.push(simulated_counts::omega()?);
    rows.extend(stores);
    let notes = [machine.warnings(), notes].concat();
    let settings = serde_json::json!({
        "iters": args.iters, "blocks": args.blocks, "size": args.size, "memories": m, "processes": PROCESSES, "rails": 2, "links": args.links.to_string(),
        "requests": args.requests,
    });
    Report { name: "agreement", unit: "us", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}
