//! `mitra bench latency`: half of a round trip.

use std::process::ExitCode;

use anyhow::ensure;
use hdrhistogram::Histogram;
use mitra_verbs::SendFlags;
use serde::{Deserialize, Serialize};

use super::clock::{Deadline, Stopwatch, micros};
use super::floor::Floor;
use super::lane::{DEPTH, Lane, Op, request};
use super::rows::{Machine, Report};
use super::station::{
    InBlock, Layout, Place, Station, Variant, check, fill, post_recv, say_stop, until_stop,
};
use super::turns::{self, alternate};
use super::{Common, Task, progress};
use crate::cli::pair::{Link, Pair, Role};

/// One-way latency: a bare queue pair against a plain UDP socket, a virtual one against the bare one
#[derive(clap::Args)]
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
    place: Place,
    half: usize,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::look();
    let ops = args.op.clone().unwrap_or_default().0;
    let half = args.size.iter().copied().max().unwrap_or(8);
    let mut pair = Pair::start(Role::Bench)?;
    let [ours, theirs] = args.common.places();
    pair.link.send(&Task::Latency(Setup { place: theirs, half }))?;
    let mut station = Station::open(&ours, half, &mut pair.link)?;
    let mtu = station.mtu()?;

    let mut cases = Vec::new();
    for &op in &ops {
        let sizes: &[usize] = if op == Op::Faa { &[8] } else { &args.size };
        cases.extend(sizes.iter().map(|&len| (op, len)));
    }
    // What takes several packets has no plain datagram beside it.
    let variants = |len: usize| -> Vec<Variant> {
        args.only.iter().copied().filter(|&variant| variant != Variant::Floor || len <= mtu).collect()
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
            pair.link.send(&Some(block))?;
            let laps = station
                .run(variant, &Client(&block), &mut pair.link)
                .and_then(|laps| pair.link.receive::<()>().map(|()| laps))
                .map_err(|error| pair.explain(error))?;
            bar.inc(1);
            let one_way = |quantile| micros(laps.value_at_quantile(quantile)) / 2.0;
            Ok((one_way(0.5), one_way(0.99)))
        })?;
        rows.extend(turns::rows(op, len, "us", &variants, &results));
    }
    bar.finish_and_clear();
    pair.link.send(&None::<Block>)?;
    pair.finish()?;
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
pub(crate) fn peer(setup: &Setup, link: &mut Link) -> anyhow::Result<()> {
    let mut station = Station::open(&setup.place, setup.half, link)?;
    while let Some(block) = link.receive::<Option<Block>>()? {
        station.run(block.variant, &Server(&block), link)?;
        link.send(&())?;
    }
    Ok(())
}

/// Sends one message and waits for one, in the ways of WRITE and of SEND.
struct Ball<'a, L> {
    lane: &'a mut L,
    layout: Layout,
    block: &'a Block,
    /// The last word that came.
    last: u64,
}

impl<L: Lane> Ball<'_, L> {
    #[inline]
    fn throw(&mut self, i: u64) -> anyhow::Result<()> {
        let (from, len) = (self.layout.outbox(), self.block.len);
        self.lane.memory().store(from + len - 8, self.block.tag(i));
        let mut wr = request(self.lane, self.block.op, from, self.layout.inbox(), len);
        if !i.is_multiple_of(self.block.signal_every) && i != Stopwatch::rounds_of(self.block.rounds) {
            wr.flags = SendFlags::empty();
        }
        self.lane.post_when_room(wr)
    }

    #[inline]
    fn catch(&mut self, i: u64) -> anyhow::Result<()> {
        let (at, expected) = (self.layout.inbox() + self.block.len - 8, self.block.tag(i));
        let mut deadline = Deadline::default();
        if self.block.op == Op::Send {
            while self.lane.poll()?.received == 0 {
                deadline.check()?;
            }
            ensure!(self.lane.memory().load(at) == expected, "a SEND brought something else than was sent");
        } else {
            loop {
                let word = self.lane.memory().load(at);
                if word == expected {
                    break;
                }
                ensure!(word == self.last, "a WRITE placed {word:#x} where {expected:#x} was due");
                self.lane.poll()?;
                deadline.check()?;
            }
        }
        self.last = expected;
        Ok(())
    }

    /// Puts back the receive that a SEND took; not on the way of the next message.
    #[inline]
    fn refill(&mut self) -> anyhow::Result<()> {
        if self.block.op == Op::Send { post_recv(self.lane, self.layout) } else { Ok(()) }
    }
}

/// The end that begins, and measures.
struct Client<'a>(&'a Block);

impl InBlock for Client<'_> {
    type Output = Histogram<u64>;

    fn on_floor(&self, floor: &mut Floor, link: &mut Link) -> anyhow::Result<Histogram<u64>> {
        link.receive::<()>()?;
        floor.ping(self.0.op.datagrams(self.0.len)[0], self.0.rounds)
    }

    fn on_lane<L: Lane>(
        &self,
        lane: &mut L,
        layout: Layout,
        link: &mut Link,
    ) -> anyhow::Result<Histogram<u64>> {
        let block = self.0;
        let mut watch;
        match block.op {
            Op::Write | Op::Send => {
                fill(lane, layout.outbox(), block.len, block.number, 0);
                let last = lane.memory().load(layout.inbox() + block.len - 8);
                let mut ball = Ball { lane, layout, block, last };
                link.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    ball.throw(i)?;
                    if i > 1 {
                        ball.refill()?;
                    }
                    ball.catch(i)?;
                    watch.lap();
                }
                ball.refill()?;
                check(lane, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                link.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    fetch(lane, layout, block, i)?;
                    watch.lap();
                }
                if block.op == Op::Read {
                    check(lane, layout.inbox(), block.len, block.number)?;
                }
                say_stop(lane, layout, block.tag(0))?;
            }
        }
        lane.drain()?;
        Ok(watch.done())
    }
}

/// Fetches once, by READ or FAA.
#[inline]
fn fetch<L: Lane>(lane: &mut L, layout: Layout, block: &Block, i: u64) -> anyhow::Result<()> {
    let (len, last) = (block.len, layout.inbox() + block.len - 8);
    let (at, expected) = match block.op {
        Op::Faa => (layout.counter(), block.tag(i - 1)),
        _ => (layout.outbox(), block.tag(0)),
    };
    lane.memory().store(last, 0);
    let wr = request(lane, block.op, layout.inbox(), at, len);
    lane.post(wr)?;
    lane.drain()?;
    let got = lane.memory().load(last);
    ensure!(got == expected, "{} gave {got:#x} where {expected:#x} was due", block.op.name());
    Ok(())
}

/// The end that answers.
struct Server<'a>(&'a Block);

impl InBlock for Server<'_> {
    type Output = ();

    fn on_floor(&self, floor: &mut Floor, link: &mut Link) -> anyhow::Result<()> {
        link.send(&())?;
        floor.pong(self.0.op.datagrams(self.0.len)[1], self.0.rounds)
    }

    fn on_lane<L: Lane>(&self, lane: &mut L, layout: Layout, link: &mut Link) -> anyhow::Result<()> {
        let block = self.0;
        fill(lane, layout.outbox(), block.len, block.number, block.tag(0));
        lane.memory().store(layout.counter(), block.tag(0));
        match block.op {
            Op::Write | Op::Send => {
                let last = lane.memory().load(layout.inbox() + block.len - 8);
                let mut ball = Ball { lane, layout, block, last };
                link.send(&())?;
                for i in 1..=Stopwatch::rounds_of(block.rounds) {
                    ball.catch(i)?;
                    ball.throw(i)?;
                    ball.refill()?;
                }
                check(lane, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                link.send(&())?;
                until_stop(lane, layout, block.tag(0))?;
                let count = lane.memory().load(layout.counter());
                let expected = block.tag(Stopwatch::rounds_of(block.rounds));
                ensure!(
                    block.op != Op::Faa || count == expected,
                    "the counter stands at {count:#x} instead of {expected:#x}"
                );
            }
        }
        lane.drain()
    }
}
