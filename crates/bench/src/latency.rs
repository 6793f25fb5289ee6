//! `mitra bench latency`: half of a round trip.

use std::process::ExitCode;

use anyhow::ensure;
use hdrhistogram::Histogram;
use mitra_verbs::SendFlags;
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, DEPTH, Op, request};
use super::clock::{Deadline, Stopwatch, micros};
use super::endpoint::{
    BlockTask, Endpoint, Layout, NicPlacement, Variant, check, fill, post_recv, serve_until_stop, signal_stop,
};
use super::interleave::{self, alternate};
use super::report::{Machine, Report};
use super::udp_baseline::UdpBaseline;
use super::{Common, PEER_ROLE, Task, progress, run_error};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// One-way latency: a bare queue pair against a plain UDP socket, a virtual one against the bare one
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Two processes on this machine play ping-pong; what is compared takes turns within each round (blocks), and each row's
ratio is the median over the rounds. `aa` is a second bare queue pair: what its ratio is off 1 is noise.
Rows: write/8/qp, write/8/vqp, write/8/vqp+log, write/8/aa, write/8/udp_floor, and so on; us is microseconds, one way.
Fields of --json, and figures: docs/benchmarks.md. Exit codes: 0 done, 1 data was wrong or lost, 2 bad arguments.")]
pub(crate) struct Args {
    /// What to measure; `all` by default
    #[arg(long, value_parser = super::ops)]
    op: Option<super::Ops>,
    /// Bytes of a message, a multiple of 8; several are separated by commas
    #[arg(long, value_delimiter = ',', default_value = "8,4096,65536", value_parser = super::size)]
    size: Vec<usize>,
    /// Round trips of 8 bytes in a block; half as many of 4 KiB, a tenth of 64 KiB
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    iters: u64,
    /// Blocks of each thing
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    blocks: u32,
    /// WRITEs and SENDs that ask for a completion: every so manieth. Who waits for the answer needs no more
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=u64::from(DEPTH / 4)))]
    signal_every: u64,
    /// What takes turns
    #[arg(long, value_delimiter = ',', default_value = "udp_floor,qp,vqp,aa,vqp+log")]
    only: Vec<Variant>,
    #[command(flatten)]
    common: Common,
}

/// What both ends do next.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Block {
    /// From 1; in all that is sent, so that nothing old passes for new.
    number: u32,
    variant: Variant,
    op: Op,
    len: usize,
    rounds: u64,
    signal_every: u64,
}

impl Block {
    /// The last word of message `i`.
    fn tag(&self, i: u64) -> u64 {
        u64::from(self.number) << 32 | i
    }
}

/// What this process opens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    placement: NicPlacement,
    half: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let ops = args.op.clone().unwrap_or_default().0;
    let half = args.size.iter().copied().max().unwrap_or(8);
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    let [ours, theirs] = args.common.placements();
    peer.connection.send(&Task::Latency(Setup { placement: theirs, half }))?;
    let mut endpoint = Endpoint::open(&ours, half, &mut peer.connection)?;
    let mtu = endpoint.mtu()?;

    let mut cases = Vec::new();
    for &op in &ops {
        let sizes: &[usize] = if op == Op::Faa { &[8] } else { &args.size };
        cases.extend(sizes.iter().map(|&len| (op, len)));
    }
    // What takes several packets has no plain datagram beside it.
    let variants = |len: usize| -> Vec<Variant> {
        args.only.iter().copied().filter(|&variant| variant != Variant::UdpBaseline || len <= mtu).collect()
    };
    let total: u64 = cases.iter().map(|&(_, len)| variants(len).len() as u64 * u64::from(args.blocks)).sum();
    let bar = progress(total);
    let (mut rows, mut number) = (Vec::new(), 0);
    for (op, len) in cases {
        bar.set_message(format!("{} of {len} bytes", op.name()));
        let variants = variants(len);
        let rounds = (args.iters / rarer(len)).max(10);
        let results = alternate(&variants, args.blocks, |variant| {
            number += 1;
            let signal_every = args.signal_every;
            let block = Block { number, variant, op, len, rounds, signal_every };
            peer.connection.send(&Some(block))?;
            let laps = endpoint
                .run(variant, &Client(&block), &mut peer.connection)
                .and_then(|laps| Ok(peer.connection.receive::<()>().map(|()| laps)?))
                .map_err(|error| run_error(&mut peer, error))?;
            bar.inc(1);
            let one_way = |quantile| micros(laps.value_at_quantile(quantile)) / 2.0;
            Ok((one_way(0.5), one_way(0.99)))
        })?;
        rows.extend(interleave::rows(op, len, "us", &variants, &results));
    }
    bar.finish_and_clear();
    peer.connection.send(&None::<Block>)?;
    peer.wait()?;
    let mut notes = machine.warnings();
    notes.push(
        "One way: half of a round trip. Medians of blocks; ratios are medians of the rounds' ratios.".into(),
    );
    let settings = serde_json::json!({
        "iters": args.iters, "blocks": args.blocks, "mtu": mtu, "rails": 2,
        "signal_every": args.signal_every, "send_wrs": DEPTH, "policy": "exact", "progress": "inline polling",
    });
    Report { name: "latency", unit: "us", machine, settings, rows, notes }.print(args.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// How much rarer than messages of 8 bytes those of this length are.
fn rarer(len: usize) -> u64 {
    match len {
        0..1024 => 1,
        1024..=16384 => 2,
        _ => 10,
    }
}

/// The second process.
pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let mut endpoint = Endpoint::open(&setup.placement, setup.half, connection)?;
    while let Some(block) = connection.receive::<Option<Block>>()? {
        endpoint.run(block.variant, &Server(&block), connection)?;
        connection.send(&())?;
    }
    Ok(())
}

/// Sends one message and waits for one, in the ways of WRITE and of SEND.
struct PingPong<'a, L> {
    qp: &'a mut L,
    layout: Layout,
    block: &'a Block,
    /// The last word that came.
    last: u64,
}

impl<L: BenchQp> PingPong<'_, L> {
    #[inline]
    fn send(&mut self, i: u64) -> anyhow::Result<()> {
        let (from, len) = (self.layout.outbox(), self.block.len);
        self.qp.memory().store(from + len - 8, self.block.tag(i));
        let mut wr = request(self.qp, self.block.op, from, self.layout.inbox(), len);
        if !i.is_multiple_of(self.block.signal_every) && i != Stopwatch::rounds_of(self.block.rounds) {
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
            ensure!(self.qp.memory().load(at) == expected, "a SEND brought something else than was sent");
        } else {
            loop {
                let word = self.qp.memory().load(at);
                if word == expected {
                    break;
                }
                ensure!(word == self.last, "a WRITE placed {word:#x} where {expected:#x} was due");
                self.qp.poll()?;
                deadline.check()?;
            }
        }
        self.last = expected;
        Ok(())
    }

    /// Puts back the receive that a SEND took; not on the way of the next message.
    #[inline]
    fn refill(&mut self) -> anyhow::Result<()> {
        if self.block.op == Op::Send { post_recv(self.qp, self.layout) } else { Ok(()) }
    }
}

/// The end that begins, and measures.
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
                fill(qp, layout.outbox(), block.len, block.number, 0);
                let last = qp.memory().load(layout.inbox() + block.len - 8);
                let mut ping_pong = PingPong { qp, layout, block, last };
                connection.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    ping_pong.send(i)?;
                    if i > 1 {
                        ping_pong.refill()?;
                    }
                    ping_pong.receive(i)?;
                    watch.lap();
                }
                ping_pong.refill()?;
                check(qp, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                connection.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    fetch(qp, layout, block, i)?;
                    watch.lap();
                }
                if block.op == Op::Read {
                    check(qp, layout.inbox(), block.len, block.number)?;
                }
                signal_stop(qp, layout, block.tag(0))?;
            }
        }
        qp.drain()?;
        Ok(watch.done())
    }
}

/// Fetches once, by READ or FAA.
#[inline]
fn fetch<L: BenchQp>(qp: &mut L, layout: Layout, block: &Block, i: u64) -> anyhow::Result<()> {
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
    ensure!(got == expected, "{} gave {got:#x} where {expected:#x} was due", block.op.name());
    Ok(())
}

/// The end that answers.
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
        fill(qp, layout.outbox(), block.len, block.number, block.tag(0));
        qp.memory().store(layout.counter(), block.tag(0));
        match block.op {
            Op::Write | Op::Send => {
                let last = qp.memory().load(layout.inbox() + block.len - 8);
                let mut ping_pong = PingPong { qp, layout, block, last };
                connection.send(&())?;
                for i in 1..=Stopwatch::rounds_of(block.rounds) {
                    ping_pong.receive(i)?;
                    ping_pong.send(i)?;
                    ping_pong.refill()?;
                }
                check(qp, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                connection.send(&())?;
                serve_until_stop(qp, layout, block.tag(0))?;
                let count = qp.memory().load(layout.counter());
                let expected = block.tag(Stopwatch::rounds_of(block.rounds));
                ensure!(
                    block.op != Op::Faa || count == expected,
                    "the counter stands at {count:#x} instead of {expected:#x}"
                );
            }
        }
        qp.drain()
    }
}
