//! `mitra bench latency`: measures half of a round-trip time.

use std::process::ExitCode;

use anyhow::ensure;
use hdrhistogram::Histogram;
use mitra_verbs::SendFlags;
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, Op, QUEUE_DEPTH, request};
use super::block_exchange::{Setup, end_blocks, run_block, serve_blocks};
use super::endpoint::{
    BlockTask, Endpoint, Layout, Variant, check_pattern, fill_pattern, post_recv, serve_until_stop,
    signal_stop,
};
use super::interleave::{self, interleave_blocks};
use super::report::{Machine, Report};
use super::stopwatch::{Deadline, Stopwatch, micros};
use super::udp_baseline::UdpBaseline;
use super::{Common, PEER_ROLE, Task, progress};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// One-way latency: an RC queue pair against a UDP socket, a virtual queue pair against the RC
/// queue pair
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench latency
  mitra bench latency --op write,read --size 8,4096
  mitra bench latency --addresses 10.0.0.1,10.1.0.1,10.0.0.2,10.1.0.2
Two processes on this machine play ping-pong. Each round measures one block of every variant, and a row's ratio is the
median over the rounds. `aa` is a second RC queue pair: the distance of its ratio from 1 is the noise.
Rows: write/8/qp, write/8/vqp, write/8/vqp+log, write/8/aa, write/8/udp_floor, and so on; us is microseconds, one way.
docs/benchmarks.md describes the fields of --json and reports figures.
Exit codes: 0 success, 1 data was wrong or lost, 2 bad arguments.")]
pub(crate) struct Args {
    /// Operations to measure: write, read, send, faa (fetch-and-add), separated by commas, or all
    /// [default: all]
    #[arg(long, value_parser = super::parse_ops)]
    op: Option<super::Ops>,
    /// Message sizes in bytes, multiples of 8, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "8,4096,65536", value_parser = super::parse_size)]
    size: Vec<usize>,
    /// Round trips per block for 8 bytes; half as many for 4 KiB, a tenth for 64 KiB, a hundredth
    /// for 1 MiB
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    iters: u64,
    /// Blocks per variant
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// Request a completion for every Nth WRITE and SEND
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=u64::from(QUEUE_DEPTH / 4)))]
    signal_every: u64,
    /// Variants to interleave, separated by commas [default: udp_floor,qp,vqp,aa,vqp+log]
    #[arg(long, value_delimiter = ',')]
    only: Option<Vec<Variant>>,
    #[command(flatten)]
    common: Common,
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
    rounds: u64,
    signal_every: u64,
}

impl Block {
    /// Returns the last word of message `i`.
    fn tag(&self, i: u64) -> u64 {
        u64::from(self.number) << 32 | i
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let ops = args.op.clone().unwrap_or_default().0;
    let half = args.size.iter().copied().max().unwrap_or(8);
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    let [local, remote] = args.common.placements();
    peer.connection.send(&Task::Latency(Setup { placement: remote, half }))?;
    let mut endpoint = Endpoint::open(&local, half, &mut peer.connection)?;
    let mtu = endpoint.mtu()?;

    let mut cases = Vec::new();
    for &op in &ops {
        let sizes: &[usize] = if op == Op::Faa { &[8] } else { &args.size };
        cases.extend(sizes.iter().map(|&len| (op, len)));
    }
    let chosen = args.common.variants(&args.only);
    // The UDP baseline sends one datagram, so it is comparable only with messages of one packet.
    let variants = |len: usize| -> Vec<Variant> {
        chosen.iter().copied().filter(|&variant| variant != Variant::UdpBaseline || len <= mtu).collect()
    };
    let total: u64 = cases.iter().map(|&(_, len)| variants(len).len() as u64 * u64::from(args.blocks)).sum();
    let bar = progress(total);
    let (mut rows, mut blocks) = (Vec::new(), Measurement::new(args.iters, args.signal_every));
    for (op, len) in cases {
        bar.set_message(format!("{} of {len} bytes", op.name()));
        let variants = variants(len);
        let results = interleave_blocks(&variants, args.blocks, |variant| {
            let measured = blocks.measure(&mut endpoint, &mut peer, variant, op, len)?;
            bar.inc(1);
            Ok(measured)
        })?;
        rows.extend(interleave::rows(op, len, "us", &variants, &results));
    }
    bar.finish_and_clear();
    end_blocks(&mut peer)?;
    peer.wait()?;
    let mut notes = machine.warnings();
    notes.push(
        "One way: half of a round trip. Values are medians of blocks, ratios are medians over the rounds."
            .into(),
    );
    let settings = serde_json::json!({
        "iters": args.iters, "blocks": args.blocks, "mtu": mtu, "rails": 2, "links": args.common.links.to_string(),
        "signal_every": args.signal_every, "send_wrs": QUEUE_DEPTH, "policy": "exact", "progress": "inline polling",
    });
    Report { name: "latency", unit: "us", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) struct Measurement {
    /// Round trips per block for 8 bytes.
    iters: u64,
    signal_every: u64,
    /// The number of the last block.
    number: u32,
}

impl Measurement {
    pub(crate) fn new(iters: u64, signal_every: u64) -> Measurement {
        Measurement { iters, signal_every, number: 0 }
    }

    /// Measures one block between this process and a second process that runs [`peer`]. Returns the
    /// median and the 99th percentile of the one-way latency, in microseconds.
    pub(crate) fn measure(
        &mut self,
        endpoint: &mut Endpoint,
        peer: &mut PeerProcess,
        variant: Variant,
        op: Op,
        len: usize,
    ) -> anyhow::Result<(f64, f64)> {
        self.number += 1;
        let rounds = (self.iters / iteration_divisor(len)).max(10);
        let block = Block { number: self.number, variant, op, len, rounds, signal_every: self.signal_every };
        let laps = run_block(endpoint, peer, variant, &block, &Client(&block))?;
        let one_way = |quantile| micros(laps.value_at_quantile(quantile)) / 2.0;
        Ok((one_way(0.5), one_way(0.99)))
    }
}

/// Returns the divisor of the number of round trips for messages of this length, relative to 8
/// bytes.
fn iteration_divisor(len: usize) -> u64 {
    match len {
        0..1024 => 1,
        1024..=16384 => 2,
        16385..=262_144 => 10,
        _ => 100,
    }
}

pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    serve_blocks(setup, connection, |endpoint, block: &Block, connection| {
        endpoint.run(block.variant, &Server(block), connection)
    })
}

/// One side of a ping-pong with WRITEs or SENDs.
struct PingPong<'a, L> {
    qp: &'a mut L,
    layout: Layout,
    block: &'a Block,
    /// The last word of the previous message.
    last: u64,
}

impl<L: BenchQp> PingPong<'_, L> {
    #[inline]
    fn send(&mut self, i: u64) -> anyhow::Result<()> {
        let (from, len) = (self.layout.outbox(), self.block.len);
        self.qp.memory().store(from + len - 8, self.block.tag(i));
        let mut wr = request(self.qp, self.block.op, from, self.layout.inbox(), len);
        if !i.is_multiple_of(self.block.signal_every) && i != Stopwatch::with_warm_up(self.block.rounds) {
            wr.flags = SendFlags::empty();
        }
        self.qp.post_when_room(wr)
    }

    #[inline]
    fn receive(&mut self, i: u64) -> anyhow::Result<()> {
        let (at, expected) = (self.layout.inbox() + self.block.len - 8, self.block.tag(i));
        let mut deadline = Deadline::default();
        if self.block.op == Op::Send {
            while self.qp.poll()?.received == 0 {
                deadline.check()?;
            }
            ensure!(self.qp.memory().load(at) == expected, "a SEND delivered other data than was sent");
        } else {
            loop {
                let word = self.qp.memory().load(at);
                if word == expected {
                    break;
                }
                ensure!(word == self.last, "a WRITE placed {word:#x} instead of {expected:#x}");
                self.qp.poll()?;
                deadline.check()?;
            }
        }
        self.last = expected;
        Ok(())
    }

    /// Posts a receive in place of the receive that a SEND consumed. The caller sends the next
    /// message first, so that this post adds no latency.
    #[inline]
    fn repost_receive(&mut self) -> anyhow::Result<()> {
        if self.block.op == Op::Send { post_recv(self.qp, self.layout) } else { Ok(()) }
    }
}

/// The process that sends first and measures.
struct Client<'a>(&'a Block);

impl BlockTask for Client<'_> {
    type Output = Histogram<u64>;

    fn on_udp(
        &self,
        udp: &mut UdpBaseline,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<Histogram<u64>> {
        connection.receive::<()>()?;
        udp.ping(self.0.op.datagrams(self.0.len)[0], self.0.rounds)
    }

    fn on_qp<L: BenchQp>(
        &self,
        qp: &mut L,
        layout: Layout,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<Histogram<u64>> {
        let block = self.0;
        let mut watch;
        match block.op {
            Op::Write | Op::Send => {
                fill_pattern(qp, layout.outbox(), block.len, block.number, 0);
                let last = qp.memory().load(layout.inbox() + block.len - 8);
                let mut ping_pong = PingPong { qp, layout, block, last };
                connection.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    ping_pong.send(i)?;
                    if i > 1 {
                        ping_pong.repost_receive()?;
                    }
                    ping_pong.receive(i)?;
                    watch.lap();
                }
                ping_pong.repost_receive()?;
                check_pattern(qp, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                connection.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    fetch_once(qp, layout, block, i)?;
                    watch.lap();
                }
                if block.op == Op::Read {
                    check_pattern(qp, layout.inbox(), block.len, block.number)?;
                }
                signal_stop(qp, layout, block.tag(0))?;
            }
        }
        qp.drain()?;
        Ok(watch.into_histogram())
    }
}

/// Fetches once by READ or FAA, and checks the value.
#[inline]
fn fetch_once<L: BenchQp>(qp: &mut L, layout: Layout, block: &Block, i: u64) -> anyhow::Result<()> {
    let (len, last) = (block.len, layout.inbox() + block.len - 8);
    let (at, expected) = match block.op {
        Op::Faa => (layout.counter(), block.tag(i - 1)),
        _ => (layout.outbox(), block.tag(0)),
    };
    qp.memory().store(last, 0);
    let wr = request(qp, block.op, layout.inbox(), at, len);
    qp.post(wr)?;
    qp.drain()?;
    let got = qp.memory().load(last);
    ensure!(got == expected, "{} returned {got:#x} instead of {expected:#x}", block.op.name());
    Ok(())
}

struct Server<'a>(&'a Block);

impl BlockTask for Server<'_> {
    type Output = ();

    fn on_udp(&self, udp: &mut UdpBaseline, connection: &mut PeerConnection) -> anyhow::Result<()> {
        connection.send(&())?;
        udp.pong(self.0.op.datagrams(self.0.len)[1], self.0.rounds)
    }

    fn on_qp<L: BenchQp>(
        &self,
        qp: &mut L,
        layout: Layout,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<()> {
        let block = self.0;
        fill_pattern(qp, layout.outbox(), block.len, block.number, block.tag(0));
        qp.memory().store(layout.counter(), block.tag(0));
        match block.op {
            Op::Write | Op::Send => {
                let last = qp.memory().load(layout.inbox() + block.len - 8);
                let mut ping_pong = PingPong { qp, layout, block, last };
                connection.send(&())?;
                for i in 1..=Stopwatch::with_warm_up(block.rounds) {
                    ping_pong.receive(i)?;
                    ping_pong.send(i)?;
                    ping_pong.repost_receive()?;
                }
                check_pattern(qp, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                connection.send(&())?;
                serve_until_stop(qp, layout, block.tag(0))?;
                let count = qp.memory().load(layout.counter());
                let expected = block.tag(Stopwatch::with_warm_up(block.rounds));
                ensure!(
                    block.op != Op::Faa || count == expected,
                    "the counter is {count:#x} instead of {expected:#x}"
                );
            }
        }
        qp.drain()
    }
}
