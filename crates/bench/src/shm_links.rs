//! `mitra bench links`: what links through shared memory take, and how many queue pairs stream to a
//! receiver that often has no processor.

use std::collections::HashSet;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_softnic::{Config, Links, SoftNic};
use mitra_verbs::{Buffer, Provider};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, Op, RcBenchQp, RcQpInfo, request};
use super::endpoint::random;
use super::report::{Blocks, Machine, Report, Row};
use super::{PEER_ROLE, Task, progress, run_error};

/// The message of a stream, in bytes, and the outstanding messages of each queue pair.
const MESSAGE: usize = 64 << 10;
const WINDOW: u32 = 16;
/// The bytes that each end of a link sends at once to use it.
const BURST: usize = 1 << 20;
/// A link that was not used for a second gives memory back.
const IDLE: Duration = Duration::from_secs(3);
/// How long the receiver of a stream is stopped, and runs, in turn.
const STOPPED: Duration = Duration::from_millis(20);
const RUNS: Duration = Duration::from_millis(2);

/// Links through shared memory: their memory and descriptors, and many queue pairs that stream to a
/// receiver which often has no processor
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench links
  mitra bench links --peers 3 --qps 64 --blocks 2
`link/…` rows: one NIC exchanges WRITEs with each of --peers others. Per link, which has a ring for each direction: the
memory of its rings after WRITEs of 8 bytes (`first`), after 1 MiB in each direction (`used`), and three seconds later
(`idle`); and the descriptors of one end. `stream/…` rows: --qps queue pairs of one NIC write 64 KiB messages to the NIC
of a second process, 16 outstanding each. `busy` stops that process for 20 ms of every 22, as a machine does that lacks
processors. `again` is the share of packets that were sent again, `lost` the number of datagrams that a link dropped.
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a process failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// NICs at the other ends of the links
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=64))]
    peers: u32,
    /// Queue pairs of a stream
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    qps: u32,
    /// Blocks per variant
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Length of a block in milliseconds
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=20_000))]
    block_ms: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The parameters of the second process, which serves a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// `auto`, `shm` or `udp`.
    links: String,
    /// The queue pairs of the first process.
    senders: Vec<RcQpInfo>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let bar = progress(1 + 4 * u64::from(args.blocks));
    let mut rows = links(args.peers)?;
    bar.inc(1);
    let kinds =
        [(Links::SharedMemory, false), (Links::Udp, false), (Links::SharedMemory, true), (Links::Udp, true)];
    let mut results = vec![[Blocks::default(), Blocks::default(), Blocks::default()]; kinds.len()];
    for _ in 0..args.blocks {
        for ((links, is_busy), blocks) in kinds.into_iter().zip(&mut results) {
            let figures = stream(args, links, is_busy)?;
            blocks.iter_mut().zip(figures).for_each(|(blocks, figure)| blocks.push(figure, figure));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    for (index, ((links, is_busy), blocks)) in kinds.into_iter().zip(&results).enumerate() {
        let name = |links: Links| format!("stream/{links}{}", if is_busy { "/busy" } else { "" });
        let [rate, again, lost] = blocks;
        let row = rate.row(name(links), "GB/s");
        rows.push(match links {
            // The variant behind is the same over UDP.
            Links::SharedMemory => row.with_baseline(rate, name(Links::Udp), &results[index + 1][0]),
            _ => row,
        });
        rows.push(again.row(format!("{}/again", name(links)), "%"));
        rows.push(lost.row(format!("{}/lost", name(links)), "datagrams"));
    }
    let settings = serde_json::json!({
        "peers": args.peers, "qps": args.qps, "window": WINDOW, "message": MESSAGE, "block_ms": args.block_ms,
        "stopped_ms": STOPPED.as_millis() as u64, "runs_ms": RUNS.as_millis() as u64,
    });
    Report { name: "links", unit: "KiB", machine, settings, rows, claims: Vec::new(), notes: Vec::new() }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Measures the links of one NIC to `peers` others, all in this process.
fn links(peers: u32) -> anyhow::Result<Vec<Row>> {
    let hub = open(Links::SharedMemory)?;
    let spokes = (0..peers).map(|_| open(Links::SharedMemory)).collect::<anyhow::Result<Vec<_>>>()?;
    let before = descriptors()?;
    let mut pairs =
        spokes.iter().map(|spoke| connected_pair(&hub, spoke)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut row = |name: &str, len: usize, pause: Duration| -> anyhow::Result<Row> {
        for pair in &mut pairs {
            for end in pair {
                end.post(request(end, Op::Write, 0, BURST, len))?;
                end.drain()?;
            }
        }
        thread::sleep(pause);
        let mut blocks = Blocks::default();
        let each = ring_memory()? as f64 / 1024.0 / f64::from(peers);
        blocks.push(each, each);
        Ok(blocks.row(format!("link/{name}"), "KiB"))
    };
    let mut rows =
        vec![row("first", 8, Duration::ZERO)?, row("used", BURST, Duration::ZERO)?, row("idle", 8, IDLE)?];
    let mut blocks = Blocks::default();
    // Both ends of each link are in this process.
    let each = descriptors()?.saturating_sub(before) as f64 / f64::from(2 * peers);
    blocks.push(each, each);
    rows.push(blocks.row("link/descriptors".to_owned(), ""));
    Ok(rows)
}

fn connected_pair(a: &Arc<SoftNic>, b: &Arc<SoftNic>) -> anyhow::Result<[RcBenchQp; 2]> {
    let memory = Arc::new(Buffer::new(2 * BURST));
    let make = |nic: &Arc<SoftNic>| {
        let nic = Arc::clone(nic) as Arc<dyn Provider>;
        RcBenchQp::with_memory(&nic, Arc::clone(&memory), random()? as u32)
    };
    let (mut a, mut b) = (make(a)?, make(b)?);
    let (of_a, of_b) = (a.info()?, b.info()?);
    a.connect(&of_b)?;
    b.connect(&of_a)?;
    Ok([a, b])
}

fn open(links: Links) -> anyhow::Result<Arc<SoftNic>> {
    SoftNic::open(Config { links, ..Config::loopback() }).context("cannot open a NIC")
}

/// Returns the bytes of all rings that this process has mapped. A page that is mapped by both ends
/// counts once.
fn ring_memory() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/self/smaps").context("cannot read /proc/self/smaps")?;
    let mut is_ring = false;
    let mut kib = 0;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("Pss:") {
            kib += if is_ring { value.trim().trim_end_matches(" kB").trim().parse::<u64>()? } else { 0 };
        } else if line.split_whitespace().nth(4).is_some() {
            is_ring = line.contains("memfd:mitra-ring");
        }
    }
    Ok(kib * 1024)
}

/// Returns the number of this process's descriptors of Unix sockets and of rings.
fn descriptors() -> anyhow::Result<usize> {
    let unix = fs::read("/proc/self/net/unix").context("cannot read /proc/self/net/unix")?;
    // The names of sockets are bytes.
    let unix = String::from_utf8_lossy(&unix);
    let unix: HashSet<&str> = unix.lines().filter_map(|line| line.split_whitespace().nth(6)).collect();
    let mut count = 0;
    for entry in fs::read_dir("/proc/self/fd").context("cannot read /proc/self/fd")? {
        // The descriptor of this directory is closed meanwhile.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        count +=
            usize::from(inode.is_some_and(|inode| unix.contains(inode)) || target.contains("mitra-ring"));
    }
    Ok(count)
}

/// Streams for one block. Returns GB/s, the percentage of packets that were sent again, and the
/// number of datagrams that the link dropped.
fn stream(args: &Args, links: Links, is_busy: bool) -> anyhow::Result<[f64; 3]> {
    let nic = open(links)?;
    let memory = Arc::new(Buffer::new(MESSAGE));
    let provider = Arc::clone(&nic) as Arc<dyn Provider>;
    let mut qps = (0..args.qps)
        .map(|_| RcBenchQp::with_memory(&provider, Arc::clone(&memory), random()? as u32))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    let senders = qps.iter().map(RcBenchQp::info).collect::<anyhow::Result<_>>()?;
    peer.connection.send(&Task::Links(Setup { links: links.to_string(), senders }))?;
    let receivers: Vec<RcQpInfo> =
        peer.connection.receive().map_err(|error| run_error(&mut peer, error.into()))?;
    ensure!(receivers.len() == qps.len(), "the second process has another number of queue pairs");
    for (qp, receiver) in qps.iter_mut().zip(&receivers) {
        qp.connect(receiver)?;
    }
    let counter =
        |name: &str| nic.counters().iter().find(|counter| counter.name == name).map_or(0, |c| c.value);
    let names = ["packets_sent", "retransmitted_packets", "tx_ring_full"];
    let is_done = AtomicBool::new(false);
    let (figures, process) = (&is_done, Pid::from_raw(peer.id() as i32));
    thread::scope(|scope| {
        let stopper = scope.spawn(move || {
            while is_busy && !figures.load(Ordering::Relaxed) {
                // The process lives until this thread has ended.
                let _ = kill(process, Signal::SIGSTOP);
                thread::sleep(STOPPED);
                let _ = kill(process, Signal::SIGCONT);
                thread::sleep(RUNS);
            }
        });
        let sent = send_for(&mut qps, Duration::from_millis(args.block_ms));
        let after = names.map(counter);
        is_done.store(true, Ordering::Relaxed);
        let _ = stopper.join();
        let (messages, took) = sent.map_err(|error| error.context(super::RunFailed))?;
        for qp in &mut qps {
            qp.drain()?;
        }
        peer.connection.send(&())?;
        peer.wait()?;
        let [packets, again, lost] = after.map(|value| value as f64);
        Ok([
            (messages * MESSAGE as u64) as f64 / took.as_secs_f64() / 1e9,
            100.0 * again / packets.max(1.0),
            lost,
        ])
    })
}

/// Keeps [`WINDOW`] messages outstanding on each queue pair. Returns the number of completed ones,
/// and the time that they took.
fn send_for(qps: &mut [RcBenchQp], block: Duration) -> anyhow::Result<(u64, Duration)> {
    let (started, mut messages) = (Instant::now(), 0);
    while started.elapsed() < block {
        for qp in &mut *qps {
            while qp.outstanding() < WINDOW {
                qp.post(request(qp, Op::Write, 0, 0, MESSAGE))?;
            }
            messages += u64::from(qp.poll()?.sent);
        }
    }
    Ok((messages, started.elapsed()))
}

/// Runs the second process: a NIC to which the first process streams.
pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let links = setup.links.parse().map_err(anyhow::Error::msg)?;
    let nic = open(links)? as Arc<dyn Provider>;
    let memory = Arc::new(Buffer::new(MESSAGE));
    let mut receivers = Vec::new();
    for sender in &setup.senders {
        let mut qp = RcBenchQp::with_memory(&nic, Arc::clone(&memory), random()? as u32)?;
        qp.connect(sender)?;
        receivers.push(qp);
    }
    connection.send(&receivers.iter().map(RcBenchQp::info).collect::<anyhow::Result<Vec<_>>>()?)?;
    Ok(connection.receive()?)
}
