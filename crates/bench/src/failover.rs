//! `mitra bench failover`: how long the operations in flight take to survive a rail, and what is sent again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::failover_trial::{self, Fault, Plan, Seen};
use super::report::{Machine, Report, Row, median, quantile};
use super::{Common, PEER_ROLE, Task, progress, run_error};
use mitra_peer_process::{PeerConnection, PeerProcess};

/// READs that measure the rail's round trip.
const ROUND_TRIPS: u64 = 5000;

/// Time from a failure to the last completion, and bytes sent again, `exact` beside `blanket`
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Each round connects a fresh vQP over two rails between two processes, keeps a mix of WRITEs, SENDs, READs and FAAs in
flight, and takes the link of rail 0 down when a random packet reaches a random stage (docs/faults.md) at either end.
Rows begin with the policy; `silent` rounds lose every packet without a port event, so that heartbeats must tell.
post_failure_resent counts operations that the responder had executed and that were sent again (READs apart: reading
again is how their data is recovered); under exact it must be 0, and the highest value in `spread` shows that it is.
Fields of --json, and figures: docs/benchmarks.md. Exit codes: 0 done, 1 data was wrong, lost or doubled under exact,
2 bad arguments.")]
pub(crate) struct Args {
    /// Failures under each policy
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Failures that nobody reports, under exact; each takes as long as the detector
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    silent_rounds: u32,
    /// Operations in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100))]
    in_flight: u32,
    /// Bytes of a WRITE, SEND or READ, a multiple of 8
    #[arg(long, default_value = "4096", value_parser = super::size)]
    size: usize,
    /// Of the stages and packets; the same seed makes the same failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time between two heartbeats
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    heartbeat: u64,
    /// Heartbeats missed in a row that fail a rail
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    misses: u32,
    /// Keep a completion log
    #[arg(long)]
    log: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let [ours, theirs] = args.common.placements();
    let plan = Plan {
        placement: theirs,
        blanket: false,
        log: args.log,
        in_flight: args.in_flight,
        size: args.size,
        heartbeat: Duration::from_millis(args.heartbeat),
        misses: args.misses,
        fault: Err(ROUND_TRIPS),
    };
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Failover)?;
    let bar = progress(u64::from(2 * args.rounds + args.silent_rounds));
    peer.connection.send(&Some(&plan))?;
    let rtt = failover_trial::round_trip(&plan, &ours, &mut peer.connection)? / 1000.0;

    let mut exact = Policy::new("exact");
    let mut blanket = Policy::new("blanket");
    let mut silent = Policy::new("exact/silent");
    let mut random = Random(args.seed);
    for _ in 0..args.rounds {
        // The same failures under both policies, one after the other.
        let fault = random.fault(args);
        for policy in [&mut exact, &mut blanket] {
            let plan = Plan { blanket: policy.name == "blanket", fault: Ok(fault), ..plan.clone() };
            policy.round(&plan, &ours, &mut peer)?;
            bar.inc(1);
        }
    }
    for _ in 0..args.silent_rounds {
        let after = 100 + random.below(100);
        let plan = Plan { fault: Ok(Fault::Silent(after)), ..plan.clone() };
        silent.round(&plan, &ours, &mut peer)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    peer.connection.send(&None::<Plan>)?;
    peer.wait()?;

    let mut rows = vec![Row { median: rtt, p99: rtt, ..row("rail_round_trip", "us", &[rtt]) }];
    rows.extend(exact.times(rtt));
    rows.extend(exact.costs());
    rows.extend(blanket.costs());
    if let Some(resent) = rows.iter().find(|row| row.name == "blanket/bytes_resent").map(|row| row.median) {
        let share = exact.beside(&blanket);
        if let Some(row) = rows.iter_mut().find(|row| row.name == "exact/bytes_resent") {
            (row.floor, row.floor_median, row.ratio) =
                (Some("blanket/bytes_resent".to_owned()), Some(resent), Some(share));
        }
    }
    if !silent.seen.is_empty() {
        rows.extend(silent.times(rtt));
    }
    let mut notes = machine.warnings();
    notes.push(format!(
        "{} rounds under each policy, {} without the failure having struck; {} silent ones.",
        args.rounds,
        exact.missed + blanket.missed,
        silent.seen.len()
    ));
    notes.push(format!(
        "Detector: the port's event; in silent rounds {} heartbeats of {} ms missed.",
        args.misses, args.heartbeat
    ));
    let broken = exact.broken() + silent.broken();
    if broken > 0 {
        notes.push(format!("exact BROKE ITS WORD for {broken} operations"));
    }
    let settings = serde_json::json!({
        "rounds": args.rounds, "silent_rounds": args.silent_rounds, "in_flight": args.in_flight,
        "size": args.size, "seed": args.seed, "heartbeat_ms": args.heartbeat, "misses": args.misses,
        "log": args.log, "mix": "3 WRITE : 3 SEND : 1 READ : 1 FAA", "missed": exact.missed + blanket.missed,
    });
    Report { name: "failover", unit: "us", machine, settings, rows, notes }.print(args.common.json)?;
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The second process.
pub(crate) fn peer(connection: &mut PeerConnection) -> anyhow::Result<()> {
    while let Some(plan) = connection.receive::<Option<Plan>>()? {
        failover_trial::responder(&plan, connection)?;
    }
    Ok(())
}

/// The rounds under one policy.
struct Policy {
    name: &'static str,
    seen: Vec<Seen>,
    /// Rounds that ended before the failure struck.
    missed: u32,
}

impl Policy {
    fn new(name: &'static str) -> Policy {
        Policy { name, seen: Vec::new(), missed: 0 }
    }

    fn round(
        &mut self,
        plan: &Plan,
        placement: &super::endpoint::NicPlacement,
        peer: &mut PeerProcess,
    ) -> anyhow::Result<()> {
        peer.connection.send(&Some(plan))?;
        let seen = failover_trial::requester(plan, placement, &mut peer.connection)
            .map_err(|error| run_error(peer, error))
            .with_context(|| format!("in a round under {} with {:?}", self.name, plan.fault))?;
        match seen {
            Some(seen) => self.seen.push(seen),
            None => self.missed += 1,
        }
        Ok(())
    }

    /// What must not be, under `exact`.
    fn broken(&self) -> u64 {
        self.seen.iter().map(|seen| seen.resent + seen.doubled + seen.failed).sum()
    }

    fn row(&self, what: &str, unit: &'static str, of: impl Fn(&Seen) -> f64) -> Row {
        let values: Vec<f64> = self.seen.iter().map(of).collect();
        row(&format!("{}/{what}", self.name), unit, &values)
    }

    fn times(&self, rtt: f64) -> Vec<Row> {
        let us = |duration: Duration| duration.as_secs_f64() * 1e6;
        let done = |seen: &Seen| seen.report.completed_at.unwrap_or(seen.report.decided_at);
        let total = move |seen: &Seen| us(done(seen) - seen.report.detected_at);
        vec![
            self.row("detected_to_last", "us", total),
            self.row("detected_to_last_in_round_trips", "rtt", |seen| total(seen) / rtt),
            self.row("detected_to_fenced", "us", |seen| us(seen.report.fenced_at - seen.report.detected_at)),
            self.row("fenced_to_decided", "us", |seen| us(seen.report.decided_at - seen.report.fenced_at)),
            self.row("decided_to_last", "us", |seen| us(done(seen) - seen.report.decided_at)),
            self.row("fault_to_detected", "us", |seen| us(seen.report.detected_at - seen.struck)),
            self.row("fault_to_last", "us", |seen| us(done(seen) - seen.struck)),
        ]
    }

    fn costs(&self) -> Vec<Row> {
        vec![
            self.row("in_flight", "ops", |seen| seen.report.stats.in_flight.into()),
            self.row("replayed", "ops", |seen| seen.report.stats.replayed.into()),
            self.row("bytes_in_flight", "B", |seen| seen.report.stats.bytes_in_flight as f64),
            self.row("bytes_resent", "B", |seen| seen.report.stats.bytes_replayed as f64),
            self.row("post_failure_resent", "ops", |seen| seen.resent as f64),
            self.row("doubled", "ops", |seen| seen.doubled as f64),
            self.row("failed", "ops", |seen| seen.failed as f64),
        ]
    }

    /// Bytes sent again in all, to those of another policy.
    fn beside(&self, other: &Policy) -> f64 {
        let bytes = |policy: &Policy| -> u64 {
            policy.seen.iter().map(|seen| seen.report.stats.bytes_replayed).sum()
        };
        bytes(self) as f64 / bytes(other).max(1) as f64
    }
}

/// A row of values that are not blocks; `spread` is the lowest and the highest.
fn row(name: &str, unit: &'static str, values: &[f64]) -> Row {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min).min(f64::MAX);
    let high = values.iter().copied().fold(0.0, f64::max);
    Row {
        name: name.to_owned(),
        unit,
        median: median(values),
        p99: quantile(values, 0.99),
        spread: Some((low, high)),
        ..Row::default()
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A stage that a packet of this size meets, and a packet after the pipe has filled.
    fn fault(&mut self, args: &Args) -> Fault {
        // Stage 4 is between two packets of a message.
        let mtu = args.common.mtu.unwrap_or(4096);
        let stages: &[u8] = if args.size > mtu { &[1, 2, 3, 4, 5, 6, 7] } else { &[1, 2, 3, 5, 6, 7] };
        let stage = stages[self.below(stages.len() as u64) as usize];
        let fill = u64::from(args.in_flight) * (args.size.div_ceil(mtu) as u64);
        // Acknowledgements are fewer than requests: a quarter of the operations has an answer of its own.
        let count = if matches!(stage, 6 | 7) { fill.div_ceil(4) } else { fill };
        Fault::Link { stage, nth: (count + self.below(2 * count)) as u32 }
    }
}
