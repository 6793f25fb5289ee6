//! A failover trial between two processes: operations in flight, a rail that fails, and the outcome
//! of every operation.

mod plan;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use mitra_failover::{Cause, Completion, Domain, FailoverReport, Outcome, RecoveryStats, Resolution};
use mitra_verbs::fault::{Failure, Noise, Stage, Trigger};
use mitra_verbs::{Mtu, Nic, PortState, Provider, Psn, QpState, Time, WcOpcode};
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, Op, QUEUE_DEPTH, VirtualBenchQp, VqpInfo, request};
use super::endpoint::{Layout, NicPlacement, RailPair, faults, post_recv};
use super::resend_baseline;
use super::stopwatch::{Deadline, Stopwatch};
use mitra_peer_process::PeerConnection;

pub(crate) use plan::{Fault, Mix, Sleepers, TrialPlan, TrialPolicy};

/// The number of receives that each side keeps posted.
pub(crate) const POSTED_RECVS: u32 = QUEUE_DEPTH;
/// The number of polls between two checks for a message from the other process.
pub(crate) const POLLS_PER_CHECK: u32 = 256;
/// The number of operations after which a trial ends if the fault has not triggered.
pub(crate) const MAX_OPS: u64 = 100_000;

/// The result of a trial, as the requester observed it.
pub(crate) struct TrialResult {
    pub(crate) report: FailoverReport,
    /// The time at which the fault triggered, precise to one poll.
    pub(crate) fault_at: Time,
    /// The time from the first post to the fault.
    pub(crate) before_fault: Duration,
    /// The number of operations that the requester sent again although the responder had executed
    /// them before the move. READs are not counted, because a READ is recovered by another READ.
    /// `None` if the responder's NIC does not tell what it executed.
    pub(crate) resent: Option<u64>,
    /// The number of executions of FAAs and SENDs beyond the posted FAAs and SENDs.
    pub(crate) doubled: u64,
    /// The number of operations that did not complete with success.
    pub(crate) failed: u64,
    /// Whether the fault was a reset of the requester's NIC.
    pub(crate) was_reset: bool,
}

/// The responder's report at the end of a trial.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResponderReport {
    /// The number of request packets that the responder's queue pair on the old rail executed.
    /// `None` if the NIC's PSN does not say it.
    pub(crate) executed: Option<u32>,
    /// The time at which the fault triggered at the responder, in ns. `None` if it did not trigger
    /// there.
    pub(crate) fault_at: Option<u64>,
    pub(crate) detected: Option<u64>,
    pub(crate) counter: u64,
    pub(crate) received: u64,
}

/// The requester's observations until the end of a trial.
pub(crate) struct Observed {
    /// The report of the failover, or `None` if there was none.
    pub(crate) report: Option<FailoverReport>,
    /// The time of the first post.
    pub(crate) started: Time,
    /// The time at which the fault triggered at the requester. `None` if it did not trigger there.
    pub(crate) fault_at: Option<Time>,
    pub(crate) mtu: Mtu,
    pub(crate) posted: u64,
    pub(crate) completions: Vec<Completion>,
}

/// The objects of a process that takes part in a trial. Its queue pair is connected to the peer
/// process.
pub(crate) struct TrialEndpoint {
    pub(crate) nics: RailPair,
    pub(crate) qp: VirtualBenchQp,
    pub(crate) layout: Layout,
    /// Whether this end sleeps until an event, instead of polling.
    sleeps: bool,
    fault_at: Option<Time>,
}

impl TrialEndpoint {
    /// Opens an end that polls.
    pub(crate) fn open(
        plan: &TrialPlan,
        placement: &NicPlacement,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<TrialEndpoint> {
        TrialEndpoint::open_end(plan, placement, connection, false)
    }

    fn open_end(
        plan: &TrialPlan,
        placement: &NicPlacement,
        connection: &mut PeerConnection,
        sleeps: bool,
    ) -> anyhow::Result<TrialEndpoint> {
        let nics = placement.open()?;
        let providers = nics.each_ref().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
        let domain = Domain::new(providers.to_vec())?;
        let layout = plan.layout();
        let new = if sleeps { VirtualBenchQp::with_events } else { VirtualBenchQp::new };
        let mut qp = new(&domain, plan.config(), layout.len())?;
        connection.send(&qp.info()?)?;
        let peer: VqpInfo = connection.receive()?;
        qp.connect(&peer)?;
        for _ in 0..POSTED_RECVS {
            post_recv(&mut qp, layout)?;
        }
        Ok(TrialEndpoint { nics, qp, layout, sleeps, fault_at: None })
    }

    /// Returns the completions of a poll, or of the next wake-up. Both may have none. An end that
    /// sleeps also wakes up when `other` is readable.
    fn completions(&mut self, other: Option<BorrowedFd<'_>>) -> anyhow::Result<&[Completion]> {
        if self.sleeps { self.qp.wait_raw(other) } else { Ok(self.qp.poll_raw()) }
    }

    /// Records the time when the link of rail 0 goes down.
    fn detect_link_down(&mut self) {
        if self.fault_at.is_none() && is_link_down(&*self.nics[0]) {
            let now = self.nics[0].now();
            // The vQP may have detected the failure within the same poll.
            let detected = self.qp.vqp.last_failover().map_or(now, |report| report.detected_at);
            self.fault_at = Some(now.min(detected));
        }
    }
}

/// Arms a link failure at the NIC of rail 0. Other faults are not armed: the requester causes them.
pub(crate) fn arm(nic: &dyn Nic, fault: Fault) -> anyhow::Result<()> {
    let Fault::Link { stage, nth } = fault else { return Ok(()) };
    let stage = match stage {
        1 => Stage::Posted,
        2 => Stage::RequestOnWire,
        3 => Stage::Arrived,
        4 => Stage::PartlyExecuted,
        5 => Stage::Executed,
        6 => Stage::AckOnWire,
        7 => Stage::Acknowledged,
        _ => bail!("the fault has no such stage"),
    };
    faults(nic)?.arm(Trigger { stage, nth, failure: Failure::LinkDown });
    Ok(())
}

pub(crate) fn is_link_down(nic: &dyn Nic) -> bool {
    nic.query_port().is_ok_and(|port| port.state == PortState::Down)
}

/// Returns `None` if the fault did not trigger.
pub(crate) fn run_requester(
    plan: &TrialPlan,
    placement: &NicPlacement,
    connection: &mut PeerConnection,
) -> anyhow::Result<Option<TrialResult>> {
    let Ok(fault) = plan.fault else { bail!("the plan of this trial has no fault") };
    if plan.policy == TrialPolicy::Cached {
        return resend_baseline::run_requester(plan, fault, placement, connection);
    }
    let end = TrialEndpoint::open_end(plan, placement, connection, plan.sleepers.requester)?;
    connection.receive::<()>()?;
    if fault.at_requester() {
        arm(&*end.nics[0], fault)?;
    }
    let started = end.nics[0].now();
    let mut run = RequesterRun {
        end,
        plan,
        fault,
        started,
        posted: 0,
        outstanding: VecDeque::new(),
        completions: Vec::new(),
    };
    run.run_until_recovered()?;
    connection.send(&())?;
    let responder: ResponderReport = connection.receive()?;
    let seen = evaluate(plan, &run.observed(), &responder)?;
    // The responder closes first, so that it does not detect the close of this side as a failure.
    run.end.qp.vqp.close()?;
    Ok(seen)
}

/// The memory that an operation of a trial uses.
pub(crate) struct Place {
    /// The offset in the requester's memory.
    pub(crate) from: usize,
    /// The offset in the responder's memory.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Place {
    /// Returns the place of an operation on messages of `size` bytes.
    pub(crate) fn of(op: Op, layout: Layout, size: usize) -> Place {
        match op {
            Op::Write | Op::Send => Place { from: layout.outbox(), at: layout.inbox(), len: size },
            Op::Read => Place { from: layout.inbox(), at: layout.outbox(), len: size },
            Op::Faa => Place { from: layout.word(), at: layout.counter(), len: 8 },
        }
    }
}

struct RequesterRun<'a> {
    end: TrialEndpoint,
    plan: &'a TrialPlan,
    fault: Fault,
    /// The time of the first post.
    started: Time,
    posted: u64,
    /// Sequence numbers of the operations that have not completed, in posting order.
    outstanding: VecDeque<u64>,
    completions: Vec<Completion>,
}

impl RequesterRun<'_> {
    fn run_until_recovered(&mut self) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        loop {
            let vqp = &self.end.qp.vqp;
            let recovered = vqp.last_failover().is_some_and(|report| report.completed_at.is_some());
            let closed = vqp.close_reason().is_some();
            let over = recovered || closed || self.posted >= MAX_OPS;
            // The peer delivers its receives only after it knows that the move is complete.
            if over && self.outstanding.is_empty() && (closed || vqp.is_move_confirmed()) {
                return Ok(());
            }
            while !over && self.outstanding.len() < self.plan.in_flight as usize && self.post()? {}
            self.poll()?;
            if self.end.sleeps { deadline.check_clock() } else { deadline.check() }?;
        }
    }

    /// Posts the next operation. Returns false if an error stopped the vQP.
    fn post(&mut self) -> anyhow::Result<bool> {
        let (layout, qp) = (self.end.layout, &mut self.end.qp);
        let op = self.plan.mix.op(self.posted);
        if qp.vqp.is_halted() || qp.vqp.close_reason().is_some() {
            return Ok(false);
        }
        let Place { from, at, len } = Place::of(op, layout, self.plan.size);
        let wr = request(qp, op, from, at, len);
        let seq = qp.vqp.post_send(wr)?;
        ensure!(seq == self.posted, "operation {} has sequence number {seq}", self.posted);
        self.outstanding.push_back(seq);
        self.posted += 1;
        Ok(true)
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        for completion in self.end.completions(None)? {
            if completion.opcode == WcOpcode::Recv {
                continue;
            }
            let expected = self.outstanding.pop_front();
            ensure!(
                expected == Some(completion.seq),
                "operation {} completed where {} was expected; this is a defect of Mitra, please report it",
                completion.seq,
                expected.map_or("none".to_owned(), |seq| format!("operation {seq}"))
            );
            self.completions.push(*completion);
        }
        if let Some(ended) = self.end.qp.vqp.close_reason()
            && self.plan.policy != TrialPolicy::None
        {
            bail!("the virtual queue pair ended: {ended}");
        }
        match self.fault {
            Fault::Silent(after) if self.end.fault_at.is_none() && self.completions.len() as u64 >= after => {
                let all = Noise { drop_ppm: 1_000_000, ..Noise::default() };
                faults(&*self.end.nics[0])?.set_noise(all, all);
                self.end.fault_at = Some(self.end.nics[0].now());
            }
            Fault::Reset(after) if self.end.fault_at.is_none() && self.completions.len() as u64 >= after => {
                let at = self.end.nics[0].now();
                self.end.nics[0].reset().context("cannot reset the NIC of rail 0")?;
                self.end.fault_at = Some(at);
            }
            Fault::Link { .. } if self.fault.at_requester() => self.end.detect_link_down(),
            _ => {}
        }
        Ok(())
    }

    fn observed(&mut self) -> Observed {
        let mtu = self.end.nics[0].query_port().map_or(Mtu::M4096, |port| port.max_mtu);
        let completions = std::mem::take(&mut self.completions);
        let report = match self.plan.policy {
            TrialPolicy::None => self.report_of_closed(&completions),
            _ => self.end.qp.vqp.last_failover(),
        };
        let (started, fault_at, posted) = (self.started, self.end.fault_at, self.posted);
        Observed { report, started, fault_at, mtu, posted, completions }
    }

    /// Returns the report of a vQP that a failure has closed.
    fn report_of_closed(&self, completions: &[Completion]) -> Option<FailoverReport> {
        self.end.qp.vqp.close_reason()?;
        let failed = completions.iter().filter(|c| c.outcome != Outcome::Success).count() as u32;
        let now = self.end.nics[0].now();
        Some(FailoverReport {
            epoch: 0,
            from: 0,
            to: 0,
            cause: Cause::Device,
            stats: RecoveryStats { in_flight: failed, failed, ..RecoveryStats::default() },
            detected_at: now,
            fence_began_at: now,
            fenced_at: now,
            evidence_at: now,
            decided_at: now,
            completed_at: None,
        })
    }
}

/// Compares what the requester observed with what the responder executed. Returns `None` if the
/// fault did not trigger, or if the vQP had left the rail before the requester caused it.
pub(crate) fn evaluate(
    plan: &TrialPlan,
    observed: &Observed,
    responder: &ResponderReport,
) -> anyhow::Result<Option<TrialResult>> {
    let Some(report) = observed.report else { return Ok(None) };
    if matches!(plan.fault, Ok(Fault::Silent(_) | Fault::Reset(_)))
        && observed.fault_at.is_none_or(|fault_at| report.detected_at < fault_at)
    {
        return Ok(None);
    }
    let fault_at = match (observed.fault_at, responder.fault_at) {
        (Some(here), _) => here,
        (None, Some(there)) => Time::from_nanos(there.min(responder.detected.unwrap_or(there))),
        (None, None) => bail!("the requester left a rail that had not failed ({})", report.cause),
    };
    // Determines which operations the responder's queue pair on the old rail executed, from its PSN
    // and not from the evidence that the vQP read.
    let mut packets_left = responder.executed.map_or(0, u64::from);
    let executed_before = |completion: &&Completion| {
        let packets = match plan.mix.op(completion.seq) {
            Op::Faa => 1,
            _ => observed.mtu.packets(plan.size as u64),
        };
        let logged = plan.log && matches!(completion.opcode, WcOpcode::Write | WcOpcode::FetchAdd);
        let whole = packets_left >= packets;
        packets_left = packets_left.saturating_sub(packets + u64::from(logged));
        whole
    };
    let before: Vec<&Completion> = observed.completions.iter().take_while(executed_before).collect();
    let resent = before.iter().filter(|c| c.resolution == Resolution::Replayed && c.opcode != WcOpcode::Read);
    let posted = |op: Op| plan.mix.count(op, observed.posted);
    let doubled = responder.counter.saturating_sub(posted(Op::Faa))
        + responder.received.saturating_sub(posted(Op::Send));
    let failed = observed.completions.iter().filter(|c| c.outcome != Outcome::Success).count() as u64;
    if plan.policy == TrialPolicy::Exact && failed == 0 {
        ensure!(
            responder.counter == posted(Op::Faa) && responder.received == posted(Op::Send),
            "the responder executed {} FAAs and received {} SENDs, but {} and {} were posted",
            responder.counter,
            responder.received,
            posted(Op::Faa),
            posted(Op::Send)
        );
    }
    let before_fault = fault_at - observed.started;
    let resent = responder.executed.map(|_| resent.count() as u64);
    let was_reset = matches!(plan.fault, Ok(Fault::Reset(_)));
    Ok(Some(TrialResult { report, fault_at, before_fault, resent, doubled, failed, was_reset }))
}

pub(crate) fn run_responder(plan: &TrialPlan, connection: &mut PeerConnection) -> anyhow::Result<()> {
    if plan.policy == TrialPolicy::Cached {
        return resend_baseline::run_responder(plan, connection);
    }
    let sleeps = plan.sleepers.responder;
    let mut end = TrialEndpoint::open_end(plan, &plan.placement, connection, sleeps)?;
    let old = end.qp.vqp.qpn();
    let first =
        end.nics[0].query_qp(old).context("cannot query the first PSN of the rail's queue pair")?.rq_psn;
    let fault = plan.fault.ok().filter(|fault| !fault.at_requester());
    if let Some(fault) = fault {
        arm(&*end.nics[0], fault)?;
    }
    connection.send(&())?;
    let (mut polls, mut received) = (0_u32, 0);
    let (mut psn_at_move, mut over) = (None, false);
    loop {
        let completions = end.completions(Some(connection.as_fd()))?.iter();
        let received_now = completions.filter(|c| c.opcode == WcOpcode::Recv && c.is_success()).count();
        received += received_now as u64;
        // A closed vQP takes no receives.
        let posts = if end.qp.vqp.close_reason().is_none() { received_now } else { 0 };
        for _ in 0..posts {
            post_recv(&mut end.qp, end.layout)?;
        }
        if fault.is_some() {
            end.detect_link_down();
        }
        if psn_at_move.is_none() && !end.qp.vqp.is_active() {
            // The old rail is fenced, so its PSN is final.
            psn_at_move = end.nics[0].query_qp(old).ok().map(|status| status.rq_psn);
        }
        polls = polls.wrapping_add(1);
        // The requester has seen all completions, so every SEND has arrived. Some receives may not
        // have been polled yet.
        if over && received_now == 0 {
            break;
        }
        over = over || (sleeps || polls.is_multiple_of(POLLS_PER_CHECK)) && connection.is_readable()?;
    }
    connection.receive::<()>()?;
    // Without a move, the old rail's QP is still in use. After a move, the vQP may have reset it
    // for failback, and `psn_at_move` holds the PSN.
    let still = || end.nics[0].query_qp(old).ok().filter(|status| status.state != QpState::Reset);
    let now = psn_at_move
        .or_else(|| still().map(|status| status.rq_psn))
        .context("cannot query what the old rail's queue pair executed")?;
    connection.send(&ResponderReport {
        executed: executed_packets(&*end.nics[0], first, now),
        fault_at: end.fault_at.map(Time::as_nanos),
        detected: end.qp.vqp.last_failover().map(|report| report.detected_at.as_nanos()),
        counter: end.qp.memory().load(end.layout.counter()),
        received,
    })?;
    end.qp.vqp.close()?;
    Ok(())
}

/// Returns the number of packets between two responder PSNs, if the NIC counts them.
pub(crate) fn executed_packets(nic: &dyn Nic, first: Psn, now: Psn) -> Option<u32> {
    nic.attr().capabilities.psn_query.then(|| now.value().wrapping_sub(first.value()) & 0xff_ffff)
}

/// Measures the round-trip time of rail 0 in nanoseconds: the median of 8-byte READs through a vQP.
pub(crate) fn measure_round_trip(
    plan: &TrialPlan,
    placement: &NicPlacement,
    connection: &mut PeerConnection,
) -> anyhow::Result<f64> {
    let Err(times) = plan.fault else { bail!("the plan of a round-trip measurement has a fault") };
    let mut end = TrialEndpoint::open(plan, placement, connection)?;
    connection.receive::<()>()?;
    let mut watch = Stopwatch::start(times);
    for _ in 0..watch.rounds() {
        let wr = request(&end.qp, Op::Read, end.layout.inbox(), end.layout.outbox(), 8);
        end.qp.post(wr)?;
        end.qp.drain()?;
        watch.lap();
    }
    connection.send(&())?;
    connection.receive::<ResponderReport>()?;
    end.qp.vqp.close()?;
    Ok(watch.into_histogram().value_at_quantile(0.5) as f64)
}
