//! `mitra bench return`: the throughput of a vQP that moves back to its first rail when the link of
//! that rail is up again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, ensure};
use mitra_failover::Cause;
use mitra_peer_process::PeerProcess;
use mitra_softnic::Links;
use mitra_verbs::Time;
use mitra_verbs::fault::Failure;

use super::bench_qp::{BenchQp, Op, request};
use super::endpoint::{NicPlacement, faults};
use super::failover_trial::{Mix, Place, ResponderReport, Sleepers, TrialEndpoint, TrialPlan, TrialPolicy};
use super::report::{Machine, Report, Row, median, quantile, row};
use super::{PEER_ROLE, Task, progress, run_error};

const MESSAGE: usize = 4096;
const IN_FLIGHT: u32 = 32;
/// How long the throughput is measured before the link goes down and after the failback.
const STEADY: Duration = Duration::from_millis(300);
/// The time after the first post that does not count.
const SETTLE: Duration = Duration::from_millis(50);
/// The time from the failback after which the throughput counts as that after it.
const RETURNED: Duration = Duration::from_millis(10);
/// The time after the beginning of the failback in which the longest gap is looked for.
const NEAR: Duration = Duration::from_millis(50);
/// Completions are counted in bins of this length. A window has ten.
const BIN: Duration = Duration::from_micros(100);
const BINS_PER_WINDOW: usize = 10;
/// The share of the throughput before that counts as the whole.
const WHOLE: f64 = 0.98;
/// The longest wait for a failback, whose delay grows up to a minute after short stays.
const FAILBACK_TIMEOUT: Duration = Duration::from_secs(90);

/// Throughput of a vQP that moves back to its first rail
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench return
  mitra bench return --links shm --down 10 --rounds 3
  mitra bench return --flaps 100 --rounds 3 --json
A vQP with a preferred rail writes 4 KiB messages, 32 in flight. The link of the preferred rail goes down and comes up
again, and the vQP moves back to it. With --flaps, the link goes down and up as often before.
Rows for each kind of links: `before`, `aa` (a second time), `away` and `after` are MB/s before the link went down, on the
second rail, and from 10 ms after the failback began; `down_to_away`, from the last failure of the link until the vQP has
moved away; `link_up_to_failback`; `failback_to_full`, until the end of the first window of 1 ms with 98 % of the throughput
before; `gap`, the longest time without a completion in the 50 ms after the failback began; `moves`, all moves of the vQP.
docs/benchmarks.md describes the fields of --json.
Exit codes: 0 success, 1 the run failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Rounds, each with a new vQP
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seconds for which the link is down
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    down: Duration,
    /// Number of times that the link goes down and up before
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    flaps: u32,
    /// Milliseconds for which the link is down, and then up, each of these times
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    flap: u64,
    /// Milliseconds for which both ends must have been able to use the rail before the vQP moves
    /// back
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    delay: u64,
    /// How packets reach the peer [default: shm and udp, one after the other]
    #[arg(long, value_name = "KIND")]
    links: Option<Links>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "use a number of seconds from 0.001 to 3600".to_owned())
}

/// The figures of one round.
struct Round {
    before: Vec<f64>,
    /// The same a second time. Its ratio to `before` is the noise.
    aa: Vec<f64>,
    away: Vec<f64>,
    after: Vec<f64>,
    down_to_away: Duration,
    link_up_to_failback: Duration,
    failback_to_full: Duration,
    gap: Duration,
    moves: u64,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::detect();
    let kinds = args.links.map_or_else(|| vec![Links::SharedMemory, Links::Udp], |links| vec![links]);
    let bar = progress(kinds.len() as u64 * u64::from(args.rounds));
    let mut rows = Vec::new();
    for links in kinds {
        let mut peer = PeerProcess::start(PEER_ROLE)?;
        peer.connection.send(&Task::Failover)?;
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            let round = measure(args, links, &mut peer).map_err(|error| run_error(&mut peer, error))?;
            rounds.push(round);
            bar.inc(1);
        }
        peer.connection.send(&None::<TrialPlan>)?;
        peer.wait()?;
        rows.extend(rows_of(links, &rounds));
    }
    bar.finish_and_clear();
    let settings = serde_json::json!({
        "rounds": args.rounds, "down_ms": args.down.as_secs_f64() * 1e3, "flaps": args.flaps,
        "flap_ms": args.flap,
        "delay_ms": args.delay, "message": MESSAGE, "in_flight": IN_FLIGHT,
    });
    let notes = machine.warnings();
    Report { name: "return", unit: "MB/s", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, links: Links, peer: &mut PeerProcess) -> anyhow::Result<Round> {
    let placement = NicPlacement { links, ..NicPlacement::default() };
    let plan = TrialPlan {
        placement: placement.clone(),
        policy: TrialPolicy::Exact,
        mix: Mix::Even,
        log: false,
        in_flight: IN_FLIGHT,
        size: MESSAGE,
        heartbeat: Duration::from_millis(20),
        // On a busy machine, missed heartbeats are no sign of a failure.
        misses: 50,
        failback: Some(Duration::from_millis(args.delay)),
        sleepers: Sleepers::default(),
        fault: Err(0),
    };
    peer.connection.send(&Some(&plan))?;
    let end = TrialEndpoint::open(&plan, &placement, &mut peer.connection)?;
    peer.connection.receive::<()>()?;
    let mut run = Run::start(end);
    let round = run.round(args)?;
    run.end.qp.drain()?;
    peer.connection.send(&())?;
    peer.connection.receive::<ResponderReport>()?;
    run.end.qp.vqp.close()?;
    Ok(round)
}

/// A vQP that writes all the time, and the bytes that have completed in each bin.
struct Run {
    end: TrialEndpoint,
    begin: Time,
    now: Time,
    bytes: Vec<u64>,
    last_completion: Time,
    /// The longest time without a completion since it was set to 0.
    gap: Duration,
}

impl Run {
    fn start(end: TrialEndpoint) -> Run {
        let now = end.nics[0].now();
        Run { end, begin: now, now, bytes: Vec::new(), last_completion: now, gap: Duration::ZERO }
    }

    fn round(&mut self, args: &Args) -> anyhow::Result<Round> {
        self.write_for(SETTLE + STEADY)?;
        let before = self.windows(self.begin + SETTLE, self.now);
        let before_aa = self.now;
        self.write_for(STEADY)?;
        let aa = self.windows(before_aa, self.now);
        let flap = Duration::from_millis(args.flap);
        for _ in 0..args.flaps {
            faults(&*self.end.nics[0])?.fail(Failure::LinkDown);
            self.write_for(flap)?;
            faults(&*self.end.nics[0])?.heal();
            self.write_for(flap)?;
        }
        faults(&*self.end.nics[0])?.fail(Failure::LinkDown);
        let down_at = self.now;
        self.write_until("away from rail 0", |run| run.is_on(1))?;
        let away_at = self.now;
        self.write_for(args.down)?;
        let away = self.windows(away_at, self.now);
        faults(&*self.end.nics[0])?.heal();
        let up_at = self.now;
        self.write_until("back to rail 0", |run| run.is_on(0))?;
        let report = self.end.qp.vqp.last_failover();
        let Some(report) = report.filter(|report| report.detected_at >= down_at && report.to == 0) else {
            bail!("the vQP reports no return to rail 0");
        };
        ensure!(
            matches!(report.cause, Cause::Failback | Cause::Peer),
            "the vQP returned for another cause: {}",
            report.cause
        );
        // The failback began before the poll that has noticed its end.
        let failback_at = report.detected_at;
        let gap = self.now.saturating_since(failback_at).max(self.gap);
        self.gap = Duration::ZERO;
        self.write_until("", |run| run.now.saturating_since(failback_at) >= NEAR)?;
        let gap = gap.max(self.gap);
        self.write_until("", |run| run.now.saturating_since(failback_at) >= RETURNED + STEADY)?;
        let full = WHOLE * mean(&before);
        let (first, last) = (self.bin(failback_at), self.bin(self.now));
        let rate = |at: usize| self.window(at);
        let reached = (first..last.saturating_sub(BINS_PER_WINDOW)).find(|&at| rate(at) >= full);
        let failback_to_full = match reached {
            Some(at) => (self.begin + BIN * (at + BINS_PER_WINDOW) as u32).saturating_since(failback_at),
            None => self.now.saturating_since(failback_at),
        };
        Ok(Round {
            before,
            aa,
            away,
            after: self.windows(failback_at + RETURNED, self.now),
            down_to_away: away_at.saturating_since(down_at),
            link_up_to_failback: failback_at.saturating_since(up_at),
            failback_to_full,
            gap,
            moves: self
                .end
                .qp
                .vqp
                .domain()
                .telemetry()
                .snapshot(0)
                .rails
                .iter()
                .map(|rail| rail.failovers)
                .sum(),
        })
    }

    fn is_on(&self, rail: usize) -> bool {
        self.end.qp.vqp.active_rail() == rail && self.end.qp.vqp.is_active()
    }

    fn write_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = self.now + time;
        self.write_until("", |run| run.now >= end)
    }

    /// Writes until `done` returns true. The gap is that of this call.
    fn write_until(&mut self, what: &str, done: impl Fn(&Run) -> bool) -> anyhow::Result<()> {
        let begin = self.now;
        self.gap = Duration::ZERO;
        while !done(self) {
            self.step()?;
            let waited = self.now.saturating_since(begin);
            ensure!(
                what.is_empty() || waited < FAILBACK_TIMEOUT,
                "the vQP did not move {what} in {waited:?}"
            );
        }
        Ok(())
    }

    fn step(&mut self) -> anyhow::Result<()> {
        while self.end.qp.outstanding() < IN_FLIGHT {
            let Place { from, at, len } = Place::of(Op::Write, self.end.layout, MESSAGE);
            let wr = request(&self.end.qp, Op::Write, from, at, len);
            self.end.qp.post(wr)?;
        }
        let sent = self.end.qp.poll()?.sent;
        if let Some(ended) = self.end.qp.vqp.close_reason() {
            bail!("the virtual queue pair ended: {ended}");
        }
        self.now = self.end.nics[0].now();
        let bin = self.bin(self.now);
        self.bytes.resize(bin + 1, 0);
        if sent > 0 {
            self.bytes[bin] += u64::from(sent) * MESSAGE as u64;
            self.gap = self.gap.max(self.now.saturating_since(self.last_completion));
            self.last_completion = self.now;
        }
        Ok(())
    }

    fn bin(&self, at: Time) -> usize {
        (at.saturating_since(self.begin).as_nanos() / BIN.as_nanos()) as usize
    }

    /// The MB/s of the window that begins with this bin.
    fn window(&self, at: usize) -> f64 {
        let bytes: u64 = self.bytes.iter().skip(at).take(BINS_PER_WINDOW).sum();
        bytes as f64 / (BIN * BINS_PER_WINDOW as u32).as_secs_f64() / 1e6
    }

    /// The MB/s of the whole windows between two times, one after the other.
    fn windows(&self, from: Time, to: Time) -> Vec<f64> {
        let (from, to) = (self.bin(from) + 1, self.bin(to));
        let starts = (from..to).step_by(BINS_PER_WINDOW).filter(|at| at + BINS_PER_WINDOW <= to);
        starts.map(|at| self.window(at)).collect()
    }
}

/// The mean of windows. A median would leave out the times without a processor.
fn mean(windows: &[f64]) -> f64 {
    windows.iter().sum::<f64>() / windows.len().max(1) as f64
}

fn rows_of(links: Links, rounds: &[Round]) -> Vec<Row> {
    let rates = |name: &str, of: fn(&Round) -> &Vec<f64>| {
        let medians: Vec<f64> = rounds.iter().map(|round| mean(of(round))).collect();
        let all: Vec<f64> = rounds.iter().flat_map(of).copied().collect();
        let p99 = quantile(&all, 0.01);
        Row { p99, blocks: medians.clone(), ..row(&format!("{links}/{name}"), "MB/s", &medians) }
    };
    let before = rates("before", |round| &round.before);
    let mut rows = vec![before.clone()];
    for (name, of) in [
        ("aa", (|round| &round.aa) as fn(&Round) -> &Vec<f64>),
        ("away", |round| &round.away),
        ("after", |round| &round.after),
    ] {
        let mut row = rates(name, of);
        let ratios: Vec<f64> =
            rounds.iter().map(|round| mean(of(round)) / mean(&round.before).max(1e-9)).collect();
        row.ratio = Some(median(&ratios));
        (row.baseline, row.baseline_median) = (Some(before.name.clone()), Some(before.median));
        rows.push(row);
    }
    let times = |name: &str, of: fn(&Round) -> Duration| {
        let values: Vec<f64> = rounds.iter().map(|round| of(round).as_secs_f64() * 1e3).collect();
        Row { blocks: values.clone(), ..row(&format!("{links}/{name}"), "ms", &values) }
    };
    rows.push(times("down_to_away", |round| round.down_to_away));
    rows.push(times("link_up_to_failback", |round| round.link_up_to_failback));
    rows.push(times("failback_to_full", |round| round.failback_to_full));
    rows.push(times("gap", |round| round.gap));
    let moves: Vec<f64> = rounds.iter().map(|round| round.moves as f64).collect();
    rows.push(row(&format!("{links}/moves"), "moves", &moves));
    rows
}
