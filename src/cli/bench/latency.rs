//! `mitra bench latency`: half of a round trip.

use std::process::ExitCode;

use anyhow::{bail, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::clock::{Deadline, Stopwatch, micros};
use super::lane::{Lane, Op, request};
use super::rows::{Blocks, Machine, Report, Row};
use super::station::{Place, Station, Variant, check, fill, post_recv};
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
    let variants = |len: usize| -> Vec<Variant> {
        let mut list = vec![Variant::Qp, Variant::Vqp, Variant::Aa, Variant::VqpLog];
        if len <= mtu {
            list.insert(0, Variant::Floor);
        }
        list
    };
    let total: u64 = cases.iter().map(|&(_, len)| variants(len).len() as u64 * u64::from(args.blocks)).sum();
    let bar = progress(total);
    let (mut rows, mut number) = (Vec::new(), 0);
    for (op, len) in cases {
        bar.set_message(format!("{} of {len} bytes", op.name()));
        let variants = variants(len);
        let mut results = vec![Blocks::default(); variants.len()];
        let rounds = (args.iters / rarer(len)).max(10);
        for round in 0..args.blocks as usize {
            for at in 0..variants.len() {
                // Each begins a round equally often.
                let at = (at + round) % variants.len();
                number += 1;
                let block = Block { number, variant: variants[at], op, len, rounds };
                pair.link.send(&Some(block))?;
                let laps = client(&mut station, &block, &mut pair.link)?;
                results[at].push(
                    micros(laps.value_at_quantile(0.5)) / 2.0,
                    micros(laps.value_at_quantile(0.99)) / 2.0,
                );
                bar.inc(1);
            }
        }
        rows.extend(rows_of(op, len, &variants, &results));
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
        "send_wrs": super::lane::DEPTH, "policy": "exact", "progress": "inline polling",
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

fn rows_of(op: Op, len: usize, variants: &[Variant], results: &[Blocks]) -> Vec<Row> {
    let find = |wanted| variants.iter().position(|&v| v == wanted).map(|at| &results[at]);
    let name = |variant: Variant| format!("{}/{len}/{}", op.name(), variant.name());
    let aa = find(Variant::Aa).zip(find(Variant::Qp)).map(|(aa, qp)| aa.ratio_to(qp));
    let row = |(&variant, blocks): (&Variant, &Blocks)| {
        let row = blocks.row(name(variant), "us");
        let floor = match variant {
            Variant::Floor => None,
            Variant::Qp => Some(Variant::Floor),
            Variant::Aa | Variant::Vqp | Variant::VqpLog => Some(Variant::Qp),
        };
        match floor.and_then(|floor| Some((floor, find(floor)?))) {
            Some((floor, beside)) => {
                let aa_ratio = aa.filter(|_| floor == Variant::Qp && variant != Variant::Aa);
                Row { aa_ratio, ..row.beside(blocks, name(floor), beside) }
            }
            None => row,
        }
    };
    variants.iter().zip(results).map(row).collect()
}

/// The second process.
pub(crate) fn peer(setup: &Setup, link: &mut Link) -> anyhow::Result<()> {
    let mut station = Station::open(&setup.place, setup.half, link)?;
    while let Some(block) = link.receive::<Option<Block>>()? {
        server(&mut station, &block, link)?;
        link.send(&())?;
    }
    Ok(())
}

fn client(station: &mut Station, block: &Block, link: &mut Link) -> anyhow::Result<Histogram<u64>> {
    let layout = station.layout;
    let laps = match block.variant {
        Variant::Floor => {
            link.receive::<()>()?;
            let laps = station.floor.ping(block.op.datagrams(block.len)[0], block.rounds)?;
            link.receive::<()>()?;
            return Ok(laps);
        }
        Variant::Qp => Client { lane: &mut station.qp, layout, block }.run(link),
        Variant::Aa => Client { lane: &mut station.aa, layout, block }.run(link),
        Variant::Vqp => Client { lane: &mut station.vqp, layout, block }.run(link),
        Variant::VqpLog => Client { lane: &mut station.vqp_log, layout, block }.run(link),
    }?;
    link.receive::<()>()?;
    Ok(laps)
}

fn server(station: &mut Station, block: &Block, link: &mut Link) -> anyhow::Result<()> {
    let layout = station.layout;
    match block.variant {
        Variant::Floor => {
            link.send(&())?;
            station.floor.pong(block.op.datagrams(block.len)[1], block.rounds)
        }
        Variant::Qp => Server { lane: &mut station.qp, layout, block }.run(link),
        Variant::Aa => Server { lane: &mut station.aa, layout, block }.run(link),
        Variant::Vqp => Server { lane: &mut station.vqp, layout, block }.run(link),
        Variant::VqpLog => Server { lane: &mut station.vqp_log, layout, block }.run(link),
    }
}

/// Sends one message and waits for one, in the ways of WRITE and of SEND.
struct Ball<'a, L> {
    lane: &'a mut L,
    layout: super::station::Layout,
    block: &'a Block,
    /// The last word that came.
    last: u64,
}

impl<L: Lane> Ball<'_, L> {
    #[inline]
    fn throw(&mut self, i: u64) -> anyhow::Result<()> {
        let (from, len) = (self.layout.outbox(), self.block.len);
        self.lane.memory().store(from + len - 8, self.block.tag(i));
        let wr = request(self.lane, self.block.op, from, self.layout.inbox(), len);
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

struct Client<'a, L> {
    lane: &'a mut L,
    layout: super::station::Layout,
    block: &'a Block,
}

impl<L: Lane> Client<'_, L> {
    fn run(mut self, link: &mut Link) -> anyhow::Result<Histogram<u64>> {
        let (layout, block) = (self.layout, self.block);
        let mut watch;
        match block.op {
            Op::Write | Op::Send => {
                fill(self.lane, layout.outbox(), block.len, block.number, 0);
                let last = self.lane.memory().load(layout.inbox() + block.len - 8);
                let mut ball = Ball { lane: self.lane, layout, block, last };
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
                check(ball.lane, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                link.receive::<()>()?;
                watch = Stopwatch::start(block.rounds);
                for i in 1..=watch.rounds() {
                    self.fetch(i)?;
                    watch.lap();
                }
                if block.op == Op::Read {
                    check(self.lane, layout.inbox(), block.len, block.number)?;
                }
                self.lane.memory().store(layout.word(), block.tag(0));
                let stop = request(self.lane, Op::Write, layout.word(), layout.stop(), 8);
                self.lane.post(stop)?;
            }
        }
        self.lane.drain()?;
        Ok(watch.done())
    }

    #[inline]
    fn fetch(&mut self, i: u64) -> anyhow::Result<()> {
        let (layout, block) = (self.layout, self.block);
        let (len, last) = (block.len, layout.inbox() + block.len - 8);
        let (at, expected) = match block.op {
            Op::Faa => (layout.counter(), block.tag(i - 1)),
            _ => (layout.outbox(), block.tag(0)),
        };
        self.lane.memory().store(last, 0);
        let wr = request(self.lane, block.op, layout.inbox(), at, len);
        self.lane.post(wr)?;
        let mut deadline = Deadline::default();
        while self.lane.outstanding() > 0 {
            self.lane.poll()?;
            deadline.check()?;
        }
        let got = self.lane.memory().load(last);
        ensure!(got == expected, "{} gave {got:#x} where {expected:#x} was due", block.op.name());
        Ok(())
    }
}

struct Server<'a, L> {
    lane: &'a mut L,
    layout: super::station::Layout,
    block: &'a Block,
}

impl<L: Lane> Server<'_, L> {
    fn run(self, link: &mut Link) -> anyhow::Result<()> {
        let (layout, block) = (self.layout, self.block);
        fill(self.lane, layout.outbox(), block.len, block.number, block.tag(0));
        self.lane.memory().store(layout.counter(), block.tag(0));
        match block.op {
            Op::Write | Op::Send => {
                let last = self.lane.memory().load(layout.inbox() + block.len - 8);
                let mut ball = Ball { lane: self.lane, layout, block, last };
                link.send(&())?;
                for i in 1..=Stopwatch::rounds_of(block.rounds) {
                    ball.catch(i)?;
                    ball.throw(i)?;
                    ball.refill()?;
                }
                check(ball.lane, layout.inbox(), block.len, block.number)?;
            }
            Op::Read | Op::Faa => {
                link.send(&())?;
                let mut deadline = Deadline::patient();
                while self.lane.memory().load(layout.stop()) != block.tag(0) {
                    self.lane.poll()?;
                    deadline.check()?;
                }
                let (count, expected) = (
                    self.lane.memory().load(layout.counter()),
                    block.tag(Stopwatch::rounds_of(block.rounds)),
                );
                if block.op == Op::Faa && count != expected {
                    bail!("the counter stands at {count:#x} instead of {expected:#x}");
                }
            }
        }
        self.lane.drain()
    }
}
