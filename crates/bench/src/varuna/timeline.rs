//! `timeline/…`: the payload per millisecond while the first rail fails and comes back, and while
//! the second rail fails. The second failure returns the vQP to the first rail.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use mitra_peer_process::PeerProcess;
use mitra_verbs::fault::Failure;

use super::{Args, MESSAGE_BYTES};
use crate::bench_qp::{BenchQp, Op, request};
use crate::endpoint::faults;
use crate::failover_trial::{Mix, Place, ResponderReport, Sleepers, TrialEndpoint, TrialPlan, TrialPolicy};
use crate::report::{Row, median, quantile};
use crate::{PEER_ROLE, Task, progress, run_error};

const IN_FLIGHT: u32 = 32;
const PHASE: Duration = Duration::from_millis(250);
/// The phases: on rail 0 before the first failure, on rail 1 between the failures, on rail 0 after
/// the second failure.
const PHASES: usize = 3;
/// The milliseconds at the start of a phase that do not count for its rate.
const SETTLE: usize = 50;
/// The milliseconds of a sample of a phase's rate.
const SAMPLE: usize = 20;
/// The time within which a vQP must have moved.
const MOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The payload completed in each millisecond, in MB/s, and the events of the run.
struct Timeline {
    rates: Vec<f64>,
    /// The millisecond in which each failure was injected.
    failures: [usize; PHASES - 1],
    /// The longest time without a completion after each failure.
    gaps: [Duration; PHASES - 1],
}

pub(super) fn run(args: &Args, notes: &mut Vec<String>) -> anyhow::Result<Vec<Row>> {
    let [local, remote] = args.common.placements();
    let plan = TrialPlan {
        placement: remote,
        policy: TrialPolicy::Exact,
        mix: Mix::Even,
        log: false,
        in_flight: IN_FLIGHT,
        size: MESSAGE_BYTES,
        heartbeat: Duration::from_millis(5),
        misses: 200,
        failback: None,
        sleepers: Sleepers::default(),
        fault: Err(0),
    };
    let bar = progress(1);
    bar.set_message("timeline");
    let mut peer = PeerProcess::start(PEER_ROLE)?;
    peer.connection.send(&Task::Failover)?;
    peer.connection.send(&Some(&plan))?;
    let mut end = TrialEndpoint::open(&plan, &local, &mut peer.connection)?;
    peer.connection.receive::<()>()?;
    let timeline = record(&mut end).map_err(|error| run_error(&mut peer, error))?;
    peer.connection.send(&())?;
    peer.connection.receive::<ResponderReport>()?;
    end.qp.vqp.close()?;
    peer.connection.send(&None::<TrialPlan>)?;
    peer.wait()?;
    bar.finish_and_clear();
    notes.push(format!(
        "timeline: WRITEs of {MESSAGE_BYTES} bytes, {IN_FLIGHT} in flight. The link of rail 0 fails and heals; then the link of rail 1 \
         fails, which moves the vQP back to rail 0. The samples of a phase are {SAMPLE} ms long and leave out its first {SETTLE} ms."
    ));
    Ok(rows(&timeline))
}

/// Runs WRITEs through both failures.
fn record(end: &mut TrialEndpoint) -> anyhow::Result<Timeline> {
    let mut bytes_per_ms: Vec<u64> = Vec::new();
    let (mut failures, mut gaps) = ([0; PHASES - 1], [Duration::ZERO; PHASES - 1]);
    let begin = Instant::now();
    let (mut phase, mut phase_begin, mut last_completion) = (0, begin, begin);
    let mut is_healed = false;
    loop {
        while end.qp.outstanding() < IN_FLIGHT {
            let Place { from, at, len } = Place::of(Op::Write, end.layout, MESSAGE_BYTES);
            let wr = request(&end.qp, Op::Write, from, at, len);
            end.qp.post(wr)?;
        }
        let sent = end.qp.poll()?.sent;
        let now = Instant::now();
        let ms = (now - begin).as_millis() as usize;
        bytes_per_ms.resize(ms + 1, 0);
        if sent > 0 {
            bytes_per_ms[ms] += u64::from(sent) * MESSAGE_BYTES as u64;
            if phase > 0 {
                gaps[phase - 1] = gaps[phase - 1].max(now - last_completion);
            }
            last_completion = now;
        }
        if let Some(ended) = end.qp.vqp.close_reason() {
            bail!("the virtual queue pair ended: {ended}");
        }
        let in_phase = now - phase_begin;
        // The failed link heals in the middle of the phase, so that its rail is ready when the
        // other rail fails.
        if phase > 0 && !is_healed && in_phase > PHASE / 2 {
            faults(&*end.nics[phase - 1])?.heal();
            is_healed = true;
        }
        if in_phase < PHASE {
            continue;
        }
        let on_rail = phase % 2;
        if end.qp.vqp.active_rail() != on_rail || !end.qp.vqp.is_active() {
            ensure!(in_phase < MOVE_TIMEOUT, "the vQP did not move to rail {on_rail}");
            continue;
        }
        if phase + 1 == PHASES {
            break;
        }
        faults(&*end.nics[on_rail])?.fail(Failure::LinkDown);
        failures[phase] = ms;
        (phase, phase_begin, is_healed, last_completion) = (phase + 1, now, false, now);
    }
    end.qp.drain()?;
    bytes_per_ms.pop(); // the last millisecond is not complete
    let rates = bytes_per_ms.iter().map(|&bytes| bytes as f64 / 1e3).collect();
    Ok(Timeline { rates, failures, gaps })
}

fn rows(timeline: &Timeline) -> Vec<Row> {
    let [first, second] = timeline.failures;
    let of = |from: usize, to: usize| -> Vec<f64> {
        let rates = timeline.rates.get(from.min(to)..to).unwrap_or_default();
        rates.chunks_exact(SAMPLE).map(|sample| sample.iter().sum::<f64>() / SAMPLE as f64).collect()
    };
    let phases = [
        ("before", of(SETTLE, first)),
        ("after_failover", of(first + SETTLE, second)),
        ("after_failback", of(second + SETTLE, timeline.rates.len())),
    ];
    let before = median(&phases[0].1);
    let mut rows: Vec<Row> = phases
        .iter()
        .map(|(name, rates)| {
            let is_first = *name == "before";
            Row {
                name: format!("timeline/{name}"),
                unit: "MB/s",
                median: median(rates),
                p99: quantile(rates, 0.01),
                baseline: (!is_first).then(|| "timeline/before".to_owned()),
                baseline_median: (!is_first).then_some(before),
                ratio: (!is_first && before > 0.0).then(|| median(rates) / before),
                ..Row::default()
            }
        })
        .collect();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    for (name, gap) in ["failover", "failback"].iter().zip(timeline.gaps) {
        let name = format!("timeline/gap_at_{name}");
        rows.push(Row { name, unit: "ms", median: ms(gap), p99: ms(gap), ..Row::default() });
    }
    for (name, at) in ["failover", "failback"].iter().zip(timeline.failures) {
        let (name, at) = (format!("timeline/{name}_at"), at as f64);
        rows.push(Row { name, unit: "ms", median: at, p99: at, ..Row::default() });
    }
    rows.push(Row {
        name: "timeline/rate".to_owned(),
        unit: "MB/s",
        median: median(&timeline.rates),
        p99: quantile(&timeline.rates, 0.01),
        blocks: timeline.rates.clone(),
        ..Row::default()
    });
    rows
}
