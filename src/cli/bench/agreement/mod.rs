//! `mitra bench agreement`: what it costs to decide, over what it costs to write to a majority.

mod instances;
mod kv;
mod memories;
mod permission;
mod stores;
mod switch;

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use mitra_agreement::disk_paxos::DiskPaxos;
use mitra_agreement::heartbeat::Heartbeat;
use mitra_agreement::log::{self as replicated, Delivery, Fate, Log, Payload};
use mitra_agreement::protected_memory_paxos::ProtectedMemoryPaxos;
use mitra_agreement::{Input, Process, ProcessId, Region};
use mitra_failover::Domain;
use mitra_node::{Node, NodeConfig};
use mitra_verbs::Provider;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::clock::{Deadline, Stopwatch, micros};
use super::lane::{Lane, Op, request};
use super::progress;
use super::rows::{Blocks, Machine, Report};
use super::station::Place;
use instances::Instances;
use memories::Memory;
pub(crate) use memories::{Setup, peer};
use switch::Taker;

use crate::cli::pair::Failed;

/// Bytes of a register's contents, at most.
const ROOM: usize = 256;
/// Decisions for which there are registers.
const INSTANCES: u16 = 20_000;
const PROCESSES: u8 = 3;
const LEADER: ProcessId = ProcessId(0);
/// Time between two heartbeats.
const BEAT: Duration = Duration::from_millis(1);
/// Changes of leaders in a block.
const SWITCHES: usize = 20;
/// Blocks to one of the key-value stores, which takes seconds.
const BLOCKS_OF_STORE: u32 = 3;

/// Decisions over memories, against raw WRITEs to a majority of them
#[derive(clap::Args)]
#[command(after_help = "\
The leader is this process; each memory is a process of its own, which serves every protocol and one bare queue pair from the
same NICs. What is compared takes turns in blocks. `fanout_floor` writes as many bytes to all memories by bare queue pairs and waits for a
majority; `round_trip` writes to one. The other processes of each protocol have crashed: the leader needs none of them.
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
    ]
}

/// The sizes of the log.
fn log(processes: u8, memories: u8) -> replicated::Config {
    replicated::Config {
        processes,
        memories,
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

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    ensure!(
        args.iters * u64::from(args.blocks) * 11 / 10 < INSTANCES.into(),
        "iters times blocks is to be below {INSTANCES}, less a tenth to warm up"
    );
    let machine = Machine::look();
    const NAMES: [&str; 5] = [
        "fanout_floor",
        "round_trip",
        "replicated-log/entry",
        "protected-memory-paxos/decide",
        "disk-paxos/decide",
    ];
    let store_blocks = args.blocks.div_ceil(BLOCKS_OF_STORE);
    let bar = progress(u64::from(args.blocks) * NAMES.len() as u64 + kv::steps(store_blocks));
    // Before anything else runs that would take processors from them.
    let (stores, notes) = kv::rows(args.requests, store_blocks, &bar).context(Failed)?;

    let nics = Place::default().open()?;
    let domain = Domain::notifying(nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect())?;
    let mut memories = memories::start(args.memories, PROCESSES, &nics[0])?;
    let m = args.memories;
    let mut pmp = leader(&domain, &memories, 0, Pmp::new(LEADER, PROCESSES, m, Value::new()))?;
    let mut disk = leader(&domain, &memories, 1, Disk::new(LEADER, PROCESSES, m, Value::new()))?;

    let replicated_sizes = log(PROCESSES, m);
    let process = Log::new(LEADER, replicated_sizes).context("the log's sizes do not fit")?;
    let mut log = connect(&domain, &memories, 2, LEADER, process)?;
    lead(&mut log)?;

    let mut blocks: [Blocks; NAMES.len()] = Default::default();
    let value = vec![7; args.size.into()];
    for round in 0..args.blocks as usize {
        for at in 0..NAMES.len() {
            let at = (at + round) % NAMES.len();
            bar.set_message(NAMES[at]);
            let laps = match at {
                0 => fan_out(&mut memories, args, usize::from(m) / 2 + 1)?,
                1 => fan_out(&mut memories[..1], args, 1)?,
                2 => append(&mut log, args, &value)?,
                3 => decide(&mut pmp, args, &value, || Pmp::new(LEADER, PROCESSES, m, value.clone()))?,
                _ => decide(&mut disk, args, &value, || Disk::new(LEADER, PROCESSES, m, value.clone()))?,
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
            switch::permission(&mut takers, SWITCHES)?,
            switch::takeover(&mut logs, SWITCHES)?,
            switch::detection(&mut beats, BEAT, SWITCHES / 5)?,
        ];
        switches.iter_mut().zip(all).for_each(|(blocks, (median, p99))| blocks.push(median, p99));
    }
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
    rows.extend(permission::rows(args.blocks)?);
    rows.extend(stores);
    let notes = [machine.warnings(), notes].concat();
    let settings = serde_json::json!({
        "iters": args.iters, "blocks": args.blocks, "size": args.size, "memories": m, "processes": PROCESSES, "rails": 2,
        "requests": args.requests,
    });
    Report { name: "agreement", unit: "us", machine, settings, rows, notes }.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The leader of a protocol with an instance for each decision.
fn leader<P>(
    domain: &Arc<Domain>,
    memories: &[Memory],
    protocol: usize,
    first: P,
) -> anyhow::Result<Node<Instances<P>>>
where
    P: Process,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    connect(domain, memories, protocol, LEADER, Instances::new(first, memories.len() as u8, PROCESSES.into()))
}

/// A process, connected to all memories.
fn connect<P>(
    domain: &Arc<Domain>,
    memories: &[Memory],
    protocol: usize,
    me: ProcessId,
    process: P,
) -> anyhow::Result<Node<P>>
where
    P: Process,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    let door = TcpListener::bind("127.0.0.1:0").context("cannot open a door")?;
    let regions = protocols(PROCESSES, memories.len() as u8).swap_remove(protocol);
    let config = NodeConfig {
        me,
        tokens: memories::tokens(PROCESSES),
        processes: vec![door.local_addr()?; PROCESSES.into()],
        memories: memories.iter().map(|memory| (memory.doors[protocol], regions.clone())).collect(),
        room: ROOM,
        message: 512,
        wake: BEAT,
        failover: memories::config(),
    };
    let mut node = Node::new(process, domain, door, &config)?;
    let mut deadline = Deadline::patient();
    while node.memories() < memories.len() {
        node.rest(Duration::from_millis(1));
        deadline.check()?;
    }
    Ok(node)
}

/// The log's leader takes the memories.
fn lead(node: &mut Node<Log>) -> anyhow::Result<()> {
    node.tell(Input::Leader(LEADER));
    let mut deadline = Deadline::patient();
    while !node.process().leads() || node.memories() == 0 {
        node.poll();
        deadline.check()?;
    }
    Ok(())
}

/// Appends so many entries, one after the other.
fn append(node: &mut Node<Log>, args: &Args, value: &[u8]) -> anyhow::Result<Histogram<u64>> {
    let mut watch = Stopwatch::start(args.iters);
    for _ in 0..watch.rounds() {
        node.with(|log, out| log.submit(value.to_vec(), out))?;
        let mut deadline = Deadline::default();
        let fate = loop {
            if let Some((_, fate)) = node.with(|log, _| log.take_fates()).pop() {
                break fate;
            }
            node.poll();
            deadline.check()?;
        };
        ensure!(matches!(fate, Fate::Committed { .. }), "the leader was deposed, and there is nobody else");
        node.with(|log, out| {
            let committed = log.take_committed();
            let is_ours = |delivery: &Delivery| {
                matches!(delivery, Delivery::Entry { payload: Payload::Commands(commands), .. } if *commands == [value])
            };
            ensure!(committed.iter().all(is_ours), "the log holds what was not submitted");
            // Small, but as often as the ring needs it.
            if log.wants_snapshot() {
                log.snapshot(vec![0; 8], out)?;
            }
            Ok(())
        })?;
        watch.lap();
    }
    Ok(watch.done())
}

/// Decides so many times.
fn decide<P>(
    node: &mut Node<Instances<P>>,
    args: &Args,
    value: &Value,
    mut next: impl FnMut() -> P,
) -> anyhow::Result<Histogram<u64>>
where
    P: Process<Value = Value>,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    let mut watch = Stopwatch::start(args.iters);
    for _ in 0..watch.rounds() {
        let process = next();
        node.with(|instances, out| instances.next(process, LEADER, out));
        let mut deadline = Deadline::default();
        while node.process().decision().is_none() {
            node.poll();
            deadline.check()?;
        }
        ensure!(node.process().decision() == Some(value), "another value was decided than was proposed");
        watch.lap();
    }
    Ok(watch.done())
}

/// Writes to all by bare queue pairs, and waits for so many.
fn fan_out(memories: &mut [Memory], args: &Args, enough: usize) -> anyhow::Result<Histogram<u64>> {
    let mut watch = Stopwatch::start(args.iters);
    // What was asked for, and what has completed, at each.
    let mut done = vec![0; memories.len()];
    for round in 1..=watch.rounds() {
        for memory in &mut *memories {
            let write = request(&memory.floor, Op::Write, 0, 0, args.size.into());
            memory.floor.post_when_room(write)?;
        }
        let mut deadline = Deadline::default();
        while done.iter().filter(|&&done| done >= round).count() < enough {
            for (memory, done) in memories.iter_mut().zip(&mut done) {
                *done += u64::from(memory.floor.poll()?.sent);
            }
            deadline.check()?;
        }
        watch.lap();
    }
    for memory in memories {
        memory.floor.drain()?;
    }
    Ok(watch.done())
}
