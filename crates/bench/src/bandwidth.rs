//! `mitra bench bandwidth`: measures payload bytes per second with a window of outstanding
//! requests.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, Op, QUEUE_DEPTH, request};
use super::block_exchange::{Setup, end_blocks, run_block, serve_blocks};
use super::endpoint::{
    BlockTask, Endpoint, Layout, Variant, check_pattern, fill_pattern, serve_until_stop, signal_stop,
};
use super::interleave::{self, interleave_blocks};
use super::report::{Machine, Report, Row, quantile};
use super::stopwatch::Deadline;
use super::udp_baseline::{StreamPlan, UdpBaseline};
use super::{Common, PEER_ROLE, Task, progress};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// Payload bytes per second: an RC queue pair against a UDP stream with GSO, a virtual queue pair
/// against the RC queue pair
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench bandwidth
  mitra bench bandwidth --op write --size 4096,1048576 --links udp
Two processes on this machine keep a window of messages outstanding and check every received byte after each block,
outside the measured time. The baseline is a plain UDP stream with datagrams of the same size, segmentation offload
(UDP_SEGMENT, UDP_GRO) and the same window. GB is 10^9 bytes of payload. 99 % of the blocks reach the value of p99.
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 data was wrong or lost, 2 bad arguments.")]
pub(crate) struct Args {
    /// Operation to measure: write, read or all
    #[arg(long, value_parser = parse_ops, default_value = "all")]
    op: super::Ops,
    /// Message sizes in bytes, multiples of 8, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "65536", value_parser = super::parse_size)]
    size: Vec<usize>,
    /// Outstanding messages
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(QUEUE_DEPTH)))]
    window: u32,
    /// Messages per block
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    iters: u64,
    /// Blocks per variant
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Variants to interleave, separated by commas [default: udp_floor,qp,vqp,aa,vqp+log]
    #[arg(long, value_delimiter = ',')]
    only: Option<Vec<Variant>>,
    #[command(flatten)]
    common: Common,
}

fn parse_ops(text: &str) -> Result<super::Ops, String> {
    match text {
        "write" => Ok(super::Ops(vec![Op::Write])),
        "read" => Ok(super::Ops(vec![Op::Read])),
        "all" | "write,read" => Ok(super::Ops(vec![Op::Write, Op::Read])),
        _ => Err("use write, read or all".to_owned()),
    }
}

/// The parameters of one block, which the first process sends to the second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Block {
    /// The block number, from 1. Every payload contains it, so that data of an earlier block is
    /// detected.
    number: u32,
    variant: Variant,
    op: Op,
    len: usize,
    messages: u64,
    window: u32,
    mtu: usize,
}

impl Block {
    /// Returns the offset of message `i` in its half of the memory. Message `i` reuses the slot of
    /// message `i - window`, which has completed.
    fn slot(&self, i: u64) -> usize {
        (i % u64::from(self.window)) as usize * self.len
    }

    /// Returns the last word of message `i`.
    fn tag(&self, i: u64) -> u64 {
        u64::from(self.number) << 32 | i
    }

    /// Returns the messages whose bytes remain in memory at the end: the last message of each slot.
    fn last_messages(&self) -> std::ops::Range<u64> {
        self.messages.saturating_sub(self.window.into())..self.messages
    }

    fn udp_plan(&self) -> StreamPlan {
        let payload = self.mtu.min(self.len);
        StreamPlan {
            bytes: self.messages * self.len as u64,
            // The size of a MIDDLE packet: BTH, payload, ICRC.
            datagram: 12 + payload + 4,
            payload,
            window: u64::from(self.window) * self.len as u64,
        }
        .whole_runs()
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let half = args.size.iter().copied().max().unwrap_or(8) * args.window as usize;
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    let [local, remote] = args.common.placements();
    peer.connection.send(&Task::Bandwidth(Setup { placement: remote, half }))?;
    let mut endpoint = Endpoint::open(&local, half, &mut peer.connection)?;
    let mtu = endpoint.mtu()?;
    let cases: Vec<(Op, usize)> =
        args.op.0.iter().flat_map(|&op| args.size.iter().map(move |&len| (op, len))).collect();
    let only = args.common.variants(&args.only);
    let bar = progress((cases.len() * only.len()) as u64 * u64::from(args.blocks));
    let (mut rows, mut blocks) = (Vec::new(), Measurement::new(args.window, mtu));
    for (op, len) in cases {
        bar.set_message(format!("{} of {len} bytes", op.name()));
        let results = interleave_blocks(&only, args.blocks, |variant| {
            let rate = blocks.measure(&mut endpoint, &mut peer, variant, op, len, args.iters)?;
            bar.inc(1);
            Ok((rate, rate))
        })?;
        for (row, blocks) in interleave::rows(op, len, "GB/s", &only, &results).into_iter().zip(&results) {
            // The p99 of a rate is the value that 99 % of the blocks reach.
            rows.push(Row { p99: quantile(&blocks.medians, 0.01), ..row });
        }
    }
    bar.finish_and_clear();
    let counters = endpoint.counters();
    end_blocks(&mut peer)?;
    peer.wait()?;
    let mut notes = machine.warnings();
    notes.push(
        "GB/s of payload, ICRC on. Values are medians of blocks, ratios are medians over the rounds.".into(),
    );
    let settings = serde_json::json!({
        "iters": args.iters, "blocks": args.blocks, "window": args.window, "mtu": mtu, "rails": 2, "links": args.common.links.to_string(),
        "send_wrs": QUEUE_DEPTH, "policy": "exact", "progress": "inline polling", "counters": counters,
    });
    Report { name: "bandwidth", unit: "GB/s", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) struct Measurement {
    /// Outstanding messages.
    window: u32,
    mtu: usize,
    /// The number of the last block.
    number: u32,
}

impl Measurement {
    pub(crate) fn new(window: u32, mtu: usize) -> Measurement {
        Measurement { window, mtu, number: 0 }
    }

    /// Measures one block of `messages` between this process and a second process that runs
    /// [`peer`]. Returns the rate of the payload in GB/s.
    pub(crate) fn measure(
        &mut self,
        endpoint: &mut Endpoint,
        peer: &mut PeerProcess,
        variant: Variant,
        op: Op,
        len: usize,
        messages: u64,
    ) -> anyhow::Result<f64> {
        self.number += 1;
        let Measurement { window, mtu, number } = *self;
        let block = Block { number, variant, op, len, messages, window, mtu };
        run_block(endpoint, peer, variant, &block, &Client(&block))
    }
}

pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    serve_blocks(setup, connection, |endpoint, block: &Block, connection| {
        endpoint.run(block.variant, &Server(block), connection)
    })
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// The process that posts and measures. Its output is the bandwidth in GB/s.
struct Client<'a>(&'a Block);

impl BlockTask for Client<'_> {
    type Output = f64;

    fn on_udp(&self, udp: &mut UdpBaseline, connection: &mut PeerConnection) -> anyhow::Result<f64> {
        let plan = self.0.udp_plan();
        connection.receive::<()>()?;
        Ok(rate(plan.bytes, udp.stream(&plan)?))
    }

    fn on_qp<L: BenchQp>(
        &self,
        qp: &mut L,
        layout: Layout,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<f64> {
        let block = self.0;
        let (near, far) = match block.op {
            Op::Read => (layout.inbox(), layout.outbox()),
            _ => (layout.outbox(), layout.inbox()),
        };
        for slot in 0..block.window as usize {
            // Block number 0 marks the buffer of a READ as not yet overwritten.
            let number = if block.op == Op::Read { 0 } else { block.number };
            fill_pattern(qp, near + slot * block.len, block.len, number, 0);
        }
        connection.receive::<()>()?;
        let begin = Instant::now();
        let (mut posted, mut completed) = (0, 0);
        let mut deadline = Deadline::default();
        while completed < block.messages {
            while posted < block.messages && posted - completed < u64::from(block.window) {
                let slot = block.slot(posted);
                if block.op == Op::Write {
                    qp.memory().store(near + slot + block.len - 8, block.tag(posted));
                }
                let wr = request(qp, block.op, near + slot, far + slot, block.len);
                qp.post(wr)?;
                posted += 1;
            }
            let sent = qp.poll()?.sent;
            completed += u64::from(sent);
            if sent > 0 {
                deadline = Deadline::default();
            }
            deadline.check()?;
        }
        let time = begin.elapsed();
        if block.op == Op::Read {
            check_received(qp, near, block, |i| block.tag(i % u64::from(block.window)))?;
        }
        signal_stop(qp, layout, block.tag(0))?;
        qp.drain()?;
        Ok(rate(block.messages * block.len as u64, time))
    }
}

/// Checks every byte of the last message of each slot.
fn check_received<L: BenchQp>(
    qp: &L,
    half: usize,
    block: &Block,
    last: impl Fn(u64) -> u64,
) -> anyhow::Result<()> {
    for i in block.last_messages() {
        let at = half + block.slot(i);
        check_pattern(qp, at, block.len, block.number)?;
        let (word, expected) = (qp.memory().load(at + block.len - 8), last(i));
        ensure!(word == expected, "message {i} ends in {word:#x} instead of {expected:#x}");
    }
    Ok(())
}

/// The process whose memory the client writes and reads.
struct Server<'a>(&'a Block);

impl BlockTask for Server<'_> {
    type Output = ();

    fn on_udp(&self, udp: &mut UdpBaseline, connection: &mut PeerConnection) -> anyhow::Result<()> {
        connection.send(&())?;
        udp.sink(&self.0.udp_plan())
    }

    fn on_qp<L: BenchQp>(
        &self,
        qp: &mut L,
        layout: Layout,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<()> {
        let block = self.0;
        if block.op == Op::Read {
            for i in 0..u64::from(block.window) {
                let at = layout.outbox() + block.slot(i);
                fill_pattern(qp, at, block.len, block.number, block.tag(i));
            }
        }
        connection.send(&())?;
        serve_until_stop(qp, layout, block.tag(0))?;
        if block.op == Op::Write {
            check_received(qp, layout.inbox(), block, |i| block.tag(i))?;
        }
        qp.drain()
    }
}
