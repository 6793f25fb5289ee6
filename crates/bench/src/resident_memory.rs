//! `mitra bench memory`: resident bytes of a queue pair and of a virtual one.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use mitra_failover::{Config, Domain};
use mitra_verbs::Provider;
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, DEPTH, INLINE, Op, RD_ATOMIC, RcQp, VqpUnderTest, request};
use super::endpoint::{Layout, NicPlacement, random};
use super::report::{Blocks, Machine, Report, Row};
use super::{Common, PEER_ROLE, Task, progress};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// Processes that each measure once.
const SAMPLES: u32 = 3;
/// WRITEs that use a queue pair.
const BURST: usize = 64;

/// Resident bytes of a queue pair, and of a virtual one over two rails
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A fresh process makes so many connected queue pairs, each with its completion queue and a region of a few words, and
looks at its resident memory before and after; then each sends 64 WRITEs, which fills what fills on demand, and it looks
again. Queue depths are in `settings`. Fields of --json, and figures: docs/benchmarks.md. Exit codes: 0 done, 1 something
failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// How many to make
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1000))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum What {
    Qp,
    Vqp,
    VqpLog,
}

/// What the second process makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    what: What,
    count: u32,
    placement: NicPlacement,
}

/// What it found: bytes of each.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    idle: f64,
    used: f64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let kinds = [(What::Qp, "qp"), (What::Vqp, "vqp"), (What::VqpLog, "vqp+log")];
    let bar = progress(u64::from(SAMPLES) * kinds.len() as u64);
    let [placement, _] = args.common.placements();
    let mut rows: Vec<Row> = Vec::new();
    for (what, name) in kinds {
        let (mut idle, mut used) = (Blocks::default(), Blocks::default());
        for _ in 0..SAMPLES {
            let mut peer = PeerProcess::start(PEER_ROLE)?;
            peer.connection.send(&Task::Memory(Setup {
                what,
                count: args.count,
                placement: placement.clone(),
            }))?;
            let found: Found = peer.connection.receive()?;
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
        "count": args.count, "send_wrs": DEPTH, "recv_wrs": DEPTH, "cqe": 2 * DEPTH + 16, "rails_of_vqp": 2,
        "region_bytes": Layout::new(INLINE).len(), "used_by": BURST,
    });
    let notes = vec![format!(
        "Resident bytes of each of {} with a completion queue and a region, queues of {DEPTH} requests each way. A vQP has \
         on each of two rails a queue pair for data and one for control messages, with 32 receive buffers.",
        args.count
    )];
    Report { name: "memory", unit: "B", machine, settings, rows, notes }.print(args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The second process.
pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let nics = setup.placement.open()?.map(|nic| nic as Arc<dyn Provider>);
    let domain = Domain::new(nics.to_vec())?;
    let layout = Layout::new(INLINE);
    let config = Config {
        send_wrs: DEPTH,
        recv_wrs: DEPTH,
        rd_atomic: RD_ATOMIC,
        completion_log: setup.what == What::VqpLog,
        ..Config::default()
    };
    let pairs = setup.count / 2;
    let found = match setup.what {
        What::Qp => measure(pairs, layout, || {
            let make = || RcQp::new(&nics[0], layout.len(), random()? as u32);
            let (mut a, mut b) = (make()?, make()?);
            let (of_a, of_b) = (a.info()?, b.info()?);
            a.connect(&of_b)?;
            b.connect(&of_a)?;
            Ok([a, b])
        }),
        What::Vqp | What::VqpLog => measure(pairs, layout, || {
            let make = || VqpUnderTest::new(&domain, config, layout.len(), [random()?, random()?]);
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
) -> anyhow::Result<Found> {
    // What the first one makes once for all is not a later one's cost.
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
    Ok(Found { idle: each(idle), used: each(used) })
}

/// Bytes of this process that are in memory.
fn resident() -> anyhow::Result<u64> {
    let text =
        fs::read_to_string("/proc/self/smaps_rollup").context("cannot read /proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no Rss in smaps_rollup")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}
