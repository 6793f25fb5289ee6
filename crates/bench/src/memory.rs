//! `mitra bench memory`: measures the resident memory per RC queue pair and per virtual queue pair.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use mitra_failover::{CompletionLogConfig, Config, Domain};
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, MAX_INLINE, Op, QUEUE_DEPTH, RD_ATOMIC, RcBenchQp, VirtualBenchQp, request};
use super::endpoint::{Layout, NicPlacement, random};
use super::report::{Blocks, Machine, Report, Row};
use super::{Common, PEER_ROLE, Task, progress};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// The number of processes per kind of queue pair. Each takes one sample.
const SAMPLES: u32 = 3;
/// The number of WRITEs on each queue pair between the idle and the used sample.
const BURST: usize = 64;

/// Resident bytes per queue pair, RC and virtual over two rails
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench memory
  mitra bench memory --count 100 --json
A new process creates connected queue pairs, each with a completion queue and a small memory region, and compares its
resident memory before and after (`idle`). Then each queue pair posts 64 WRITEs, which makes it allocate
memory that it needs only in use, and the process measures again (`used`). `settings` of --json has the queue depths.
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 a process failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Queue pairs per process, rounded down to an even number
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1000))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum QpKind {
    Qp,
    Vqp,
    VqpLog,
}

/// The parameters of the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    kind: QpKind,
    count: u32,
    placement: NicPlacement,
}

/// Resident bytes per queue pair, before and after use.
#[derive(Debug, Serialize, Deserialize)]
struct BytesPerQp {
    idle: f64,
    used: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.common.check_software_nics("this benchmark")?;
    let machine = Machine::detect();
    let kinds = [(QpKind::Qp, "qp"), (QpKind::Vqp, "vqp"), (QpKind::VqpLog, "vqp+log")];
    let bar = progress(u64::from(SAMPLES) * kinds.len() as u64);
    let [placement, _] = args.common.placements();
    let mut rows: Vec<Row> = Vec::new();
    for (kind, name) in kinds {
        let (mut idle, mut used) = (Blocks::default(), Blocks::default());
        for _ in 0..SAMPLES {
            let mut peer = PeerProcess::start(PEER_ROLE)?;
            peer.connection.send(&Task::Memory(Setup {
                kind,
                count: args.count,
                placement: placement.clone(),
            }))?;
            let found: BytesPerQp = peer.connection.receive()?;
            peer.wait()?;
            idle.push(found.idle, found.idle);
            used.push(found.used, found.used);
            bar.inc(1);
        }
        rows.push(idle.row(format!("{name}/idle"), "B"));
        rows.push(used.row(format!("{name}/used"), "B"));
    }
    bar.finish_and_clear();
    let settings = serde_json::json!({
        "count": args.count, "send_wrs": QUEUE_DEPTH, "recv_wrs": QUEUE_DEPTH, "cqe": 2 * QUEUE_DEPTH + 16, "rails_of_vqp": 2,
        "region_bytes": Layout::new(MAX_INLINE).len(), "used_by": BURST,
    });
    let notes = vec![format!(
        "Resident bytes per queue pair of {}, each with a completion queue, a region, and a send and a receive queue of \
         {QUEUE_DEPTH} requests. On each of its two rails, a vQP has one queue pair for data and one for control messages, \
         with 32 receive buffers.",
        args.count
    )];
    Report { name: "memory", unit: "B", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let nics = setup.placement.open()?.map(|nic| nic as Arc<dyn Provider>);
    let domain = Domain::new(nics.to_vec())?;
    let layout = Layout::new(MAX_INLINE);
    let mut config = Config {
        send_wrs: QUEUE_DEPTH,
        recv_wrs: QUEUE_DEPTH,
        rd_atomic: RD_ATOMIC,
        completion_log: (setup.kind == QpKind::VqpLog).then(CompletionLogConfig::default),
        ..Config::default()
    };
    // This thread polls one vQP at a time, so the other vQPs answer no heartbeats.
    config.detector.max_missed_heartbeats = 0;
    let pairs = setup.count / 2;
    let found = match setup.kind {
        QpKind::Qp => measure(pairs, layout, || {
            let make = || RcBenchQp::new(&nics[0], layout.len(), random()? as u32);
            let (mut a, mut b) = (make()?, make()?);
            let (of_a, of_b) = (a.info()?, b.info()?);
            a.connect(&of_b)?;
            b.connect(&of_a)?;
            Ok([a, b])
        }),
        QpKind::Vqp | QpKind::VqpLog => measure(pairs, layout, || {
            let make = || VirtualBenchQp::new(&domain, config, layout.len());
            let (mut a, mut b) = (make()?, make()?);
            let (of_a, of_b) = (a.info()?, b.info()?);
            a.connect(&of_b)?;
            b.connect(&of_a)?;
            Ok([a, b])
        }),
    }?;
    Ok(connection.send(&found)?)
}

fn measure<L: BenchQp>(
    pairs: u32,
    layout: Layout,
    mut connected: impl FnMut() -> anyhow::Result<[L; 2]>,
) -> anyhow::Result<BytesPerQp> {
    // The first pair allocates the memory that all pairs share, so `idle` does not count it.
    let mut all = vec![connected()?];
    all.reserve(pairs as usize);
    let before = resident()?;
    for _ in 0..pairs {
        all.push(connected()?);
    }
    let idle = resident()?;
    for [a, b] in &mut all {
        for qp in [a, b] {
            for _ in 0..BURST {
                let wr = request(qp, Op::Write, layout.outbox(), layout.inbox(), 8);
                qp.post_when_room(wr)?;
            }
            qp.drain()?;
        }
    }
    let used = resident()?;
    let each = |bytes: u64| bytes.saturating_sub(before) as f64 / f64::from(2 * pairs);
    Ok(BytesPerQp { idle: each(idle), used: each(used) })
}

/// Returns the resident bytes of this process.
pub(crate) fn resident() -> anyhow::Result<u64> {
    let text =
        fs::read_to_string("/proc/self/smaps_rollup").context("cannot read /proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no Rss in smaps_rollup")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}
