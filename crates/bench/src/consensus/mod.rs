//! `mitra bench consensus`: what it costs to decide, over what it costs to write to a majority.

mod instances;
mod kv_stores;
mod leader_change;
mod leader_latency;
mod memory_processes;
mod paxos_acceptors;
mod permission_switch;
mod redis_benchmark;
mod signers;
mod simulated_counts;

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
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::clock::micros;
use super::endpoint::NicPlacement;
use super::report::{Blocks, Machine, Report};
use super::{RunFailed, progress};
use instances::Instances;
use leader_change::Taker;
use leader_latency::{append, connect, decide, fan_out, lead, leader};
use mitra_peer_process::PeerConnection;
use signers::Unsigned;

/// Bytes of a register's contents, at most.
const ROOM: usize = 256;
/// Decisions for which there are registers.
const INSTANCES: u16 = 20_000;
/// The same of what is signed: that takes a while.
const SIGNED: u16 = INSTANCES / 10;
const PROCESSES: u8 = 3;
const LEADER: ProcessId = ProcessId(0);
/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(1);
/// Changes of leaders in a block.
const SWITCHES: usize = 20;
/// Blocks to one of the key-value stores, which takes seconds.
const BLOCKS_OF_STORE: u32 = 3;

/// Decisions over memories, against raw WRITEs to a majority of them
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The leader is this process; each memory is a process of its own, which serves every protocol and one bare queue pair from the
same NICs. What is compared takes turns in blocks. `fanout_floor` writes as many bytes to all memories by bare queue pairs and waits for a
majority; `round_trip` writes to one. The other processes of each protocol have crashed: the leader needs none of them, but in Paxos,
where they are two processes more, after the others. hbo/… and omega/… are counted by the simulator.
permission/… is the memory's own work to take a right from one process and give it to another, by each of three mechanisms.
kv/… is `mitra kv` under redis-benchmark (Debian's redis-tools), beside raft/…, a store replicated by openraft over TCP, and redis/…, which is
not replicated: latency, requests a second, and requests per CPU-second of all processes of the store. Each is started for its turn.
Fields of --json, and figures: docs/benchmarks.md. Exit codes: 0 done, 1 something failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Bytes of a value
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(8..=128))]
    size: u16,
    /// Decisions in a block
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    iters: u64,
    /// Blocks of each thing
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Memories
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    memories: u8,
    /// Requests to each key-value store in a block, and four times as many in pipelines
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    requests: u32,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The regions of each protocol that is measured, in the order of the doors.
fn protocols(processes: u8, memories: u8) -> Vec<Vec<Region>> {
    vec![
        Instances::<Pmp>::regions(Pmp::regions(processes), INSTANCES),
        Instances::<Disk>::regions(Disk::regions(processes), INSTANCES),
        log(processes, memories).regions(),
        Taker::regions(processes),
        Heartbeat::regions(processes),
        Instances::<Fast<Unsigned>>::regions(Fast::<Unsigned>::regions(processes, TURNS), SIGNED),
        Instances::<Fast<Ed25519>>::regions(Fast::<Ed25519>::regions(processes, TURNS), SIGNED),
    ]
}

/// What another process of a bench is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Setup {
    Memory(memory_processes::Shared),
    Acceptor(paxos_acceptors::Acceptor),
}

/// Another process of a bench.
pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    match setup {
        Setup::Memory(shared) => memory_processes::peer(shared, connection),
        Setup::Acceptor(acceptor) => paxos_acceptors::peer(acceptor, connection),
    }
}

/// The sizes of the log.
fn log(processes: u8, memories: u8) -> replicated::Config {
    replicated::Config {
        processes,
        memories,
        depth: 16,
        window: 16,
        windows: 64,
        register_bytes: ROOM as u32,
        snapshot_registers: 1,
        queue: 64,
    }
}

type Value = Vec<u8>;
type Pmp = ProtectedMemoryPaxos<Value>;
type Disk = DiskPaxos<Value>;
type Fast<K> = FastAndRobust<Value, K>;
/// Turns for which its backup has room, which it does not need here, and polls before it would.
const TURNS: u16 = 1;
const PATIENT: u8 = u8::MAX;

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.iters * u64::from(args.blocks) * 11 / 10 < INSTANCES.into(),
        "iters times blocks is to be below {INSTANCES}, less a tenth to warm up"
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
    // Before anything else runs that would take processors from them.
    let (stores, notes) = redis_benchmark::rows(args.requests, store_blocks, &bar).context(RunFailed)?;

    let nics = NicPlacement::default().open()?;
    let domain = Domain::with_completion_channels(
        nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
    )?;
    let mut memories = memory_processes::start(args.memories, PROCESSES, &nics[0])?;
    let m = args.memories;
    let value = vec![7; args.size.into()];
    let new_pmp = || Pmp::new(LEADER, PROCESSES, m, value.clone());
    let new_disk = || Disk::new(LEADER, PROCESSES, m, value.clone());
    let mut pmp = leader(&domain, &memories, 0, new_pmp(), &Pmp::regions(PROCESSES))?;
    let mut disk = leader(&domain, &memories, 1, new_disk(), &Disk::regions(PROCESSES))?;
    let signer = signers::ed25519();
    let new_bare = || Fast::new(LEADER, (PROCESSES, m), PATIENT, TURNS, Unsigned, value.clone());
    let new_fast = || Fast::new(LEADER, (PROCESSES, m), PATIENT, TURNS, signer.clone(), value.clone());
    let mut bare = leader(&domain, &memories, 5, new_bare(), &Fast::<Unsigned>::regions(PROCESSES, TURNS))?;
    let mut fast = leader(&domain, &memories, 6, new_fast(), &Fast::<Ed25519>::regions(PROCESSES, TURNS))?;

    let replicated_sizes = log(PROCESSES, m);
    let process = Log::new(LEADER, replicated_sizes).context("the log's sizes do not fit")?;
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
    bar.set_message("from one leader to the next");
    let next = Log::new(ProcessId(1), replicated_sizes).context("the log's sizes do not fit")?;
    let mut logs = [log, connect(&domain, &memories, 2, ProcessId(1), next)?];
    let taker = |p| connect(&domain, &memories, 3, ProcessId(p), Taker::new(ProcessId(p), m));
    let mut takers = [taker(0)?, taker(1)?];
    let beat = |p| connect(&domain, &memories, 4, ProcessId(p), Heartbeat::new(ProcessId(p), PROCESSES, m));
    let mut beats = [beat(0)?, beat(1)?];
    for _ in 0..args.blocks {
        let all = [
            leader_change::permission(&mut takers, SWITCHES)?,
            leader_change::takeover(&mut logs, SWITCHES)?,
            leader_change::detection(&mut beats, BEAT, SWITCHES / 5)?,
        ];
        switches.iter_mut().zip(all).for_each(|(blocks, (median, p99))| blocks.push(median, p99));
    }
    bar.set_message("paxos/decide");
    let mut by_messages = Blocks::default();
    let (mut paxos, acceptors) = paxos_acceptors::paxos(&domain)?;
    for _ in 0..args.blocks {
        let laps = decide(&mut paxos, args.iters, &value, || Paxos::new(LEADER, PROCESSES, value.clone()))?;
        by_messages.push(micros(laps.value_at_quantile(0.5)), micros(laps.value_at_quantile(0.99)));
    }
    drop((paxos, acceptors));
    bar.finish_and_clear();
    let mut rows: Vec<_> =
        NAMES.iter().zip(&blocks).map(|(name, blocks)| blocks.row((*name).into(), "us")).collect();
    for at in 2..NAMES.len() {
        rows[at] = std::mem::take(&mut rows[at]).beside(&blocks[at], NAMES[0].into(), &blocks[0]);
    }
    rows[0] = std::mem::take(&mut rows[0]).beside(&blocks[0], NAMES[1].into(), &blocks[1]);
    for (name, found) in
        ["permission/switch", "replicated-log/takeover", "replicated-log/detection"].iter().zip(&switches)
    {
        rows.push(found.row((*name).into(), "us").beside(found, NAMES[1].into(), &blocks[1]));
    }
    let paxos = by_messages.row("paxos/decide".into(), "us");
    rows.push(paxos.beside(&by_messages, NAMES[0].into(), &blocks[0]));
    rows.extend(permission_switch::rows(args.blocks)?);
    rows.extend(simulated_counts::hbo()?);
    rows.push(simulated_counts::omega()?);
    rows.extend(stores);
    let notes = [machine.warnings(), notes].concat();
    let settings = serde_json::json!({
        "iters": args.iters, "blocks": args.blocks, "size": args.size, "memories": m, "processes": PROCESSES, "rails": 2,
        "requests": args.requests,
    });
    Report { name: "agreement", unit: "us", machine, settings, rows, notes }.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}
