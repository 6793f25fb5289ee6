//! The baseline *resend with cached requests*. The requester keeps a copy of each request until the
//! request completes. After a failure, the requester sends all requests in flight again, over a
//! backup queue pair that was connected in advance. The requester neither fences the old rail nor
//! reads evidence, so the responder executes some requests twice.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context, ensure};
use mitra_failover::{Cause, Completion, FailoverReport, Outcome, RecoveryStats, Resolution};
use mitra_peer_process::PeerConnection;
use mitra_verbs::{Buffer, Mtu, Nic, Provider, Time, Wc, WcOpcode, WcStatus};

use super::bench_qp::{BenchQp, Op, RcBenchQp, RcQpInfo, request};
use super::endpoint::{Layout, NicPlacement, RailPair, post_recv, random};
use super::failover_trial::{
    Fault, MAX_OPS, Observed, POLLS_PER_CHECK, POSTED_RECVS, Place, ResponderReport, TrialPlan, TrialResult,
    arm, evaluate, executed_packets, is_link_down,
};
use super::stopwatch::Deadline;

/// The word by which the responder tells the requester that the responder's link is down.
const LINK_DOWN: u64 = 1;

/// An end of a trial: a queue pair on each rail, all with the same memory.
struct CachedEndpoint {
    nics: RailPair,
    qps: [RcBenchQp; 2],
    layout: Layout,
    fault_at: Option<Time>,
}

impl CachedEndpoint {
    fn open(
        plan: &TrialPlan,
        placement: &NicPlacement,
        connection: &mut PeerConnection,
    ) -> anyhow::Result<CachedEndpoint> {
        let nics = placement.open()?;
        let layout = plan.layout();
        // The copies of the requests' payloads lie behind the memory that the workload uses.
        let memory = Arc::new(Buffer::new(layout.len() + plan.in_flight as usize * plan.size));
        let open = |rail: usize| {
            let nic = Arc::clone(&nics[rail]) as Arc<dyn Provider>;
            RcBenchQp::with_memory(&nic, Arc::clone(&memory), random()? as u32 & 0xff_ffff)
        };
        let mut qps = [open(0)?, open(1)?];
        for qp in &qps {
            connection.send(&qp.info()?)?;
        }
        for qp in &mut qps {
            qp.connect(&connection.receive::<RcQpInfo>()?)?;
            for _ in 0..POSTED_RECVS {
                post_recv(qp, layout)?;
            }
        }
        Ok(CachedEndpoint { nics, qps, layout, fault_at: None })
    }

    /// Records the time when the link of rail 0 goes down, and returns whether it is down.
    fn detect_link_down(&mut self) -> bool {
        if self.fault_at.is_none() && is_link_down(&*self.nics[0]) {
            self.fault_at = Some(self.nics[0].now());
        }
        self.fault_at.is_some()
    }
}

/// Returns `None` if the fault did not trigger.
pub(crate) fn run_requester(
    plan: &TrialPlan,
    fault: Fault,
    placement: &NicPlacement,
    connection: &mut PeerConnection,
) -> anyhow::Result<Option<TrialResult>> {
    let end = CachedEndpoint::open(plan, placement, connection)?;
    connection.receive::<()>()?;
    if fault.at_requester() {
        arm(&*end.nics[0], fault)?;
    }
    let mtu = end.nics[0].query_port().map_or(Mtu::M4096, |port| port.max_mtu);
    let started = end.nics[0].now();
    let mut run = CachedRun {
        end,
        plan,
        posted: 0,
        cache: VecDeque::new(),
        completions: Vec::new(),
        report: None,
        resent_below: 0,
    };
    run.run_until_recovered()?;
    connection.send(&())?;
    let responder: ResponderReport = connection.receive()?;
    let CachedRun { end, posted, completions, report, .. } = run;
    let observed = Observed { report, started, fault_at: end.fault_at, mtu, posted, completions };
    evaluate(plan, &observed, &responder)
}

struct CachedRun<'a> {
    end: CachedEndpoint,
    plan: &'a TrialPlan,
    posted: u64,
    /// The operations that have not completed, in posting order.
    cache: VecDeque<u64>,
    completions: Vec<Completion>,
    report: Option<FailoverReport>,
    /// The operations below this number were in flight at the failure, or completed before it.
    resent_below: u64,
}

impl CachedRun<'_> {
    fn run_until_recovered(&mut self) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        loop {
            let recovered = self.report.is_some_and(|report| report.completed_at.is_some());
            let over = recovered || self.posted >= MAX_OPS;
            if over && self.cache.is_empty() {
                return Ok(());
            }
            while !over && self.cache.len() < self.plan.in_flight as usize {
                self.post_next()?;
            }
            self.poll()?;
            if self.report.is_none()
                && let Some(cause) = self.failure()
            {
                self.resend(cause)?;
            }
            deadline.check()?;
        }
    }

    /// Returns the offset of the copy of an operation's payload. The earlier operation with the
    /// same slot has completed, because operations complete in order.
    fn cached_payload(&self, seq: u64) -> usize {
        let slot = (seq % u64::from(self.plan.in_flight)) as usize;
        self.end.layout.len() + slot * self.plan.size
    }

    /// Copies the payload of the next operation, and posts the operation.
    fn post_next(&mut self) -> anyhow::Result<()> {
        let seq = self.posted;
        let op = self.plan.mix.op(seq);
        let place = Place::of(op, self.end.layout, self.plan.size);
        if matches!(op, Op::Write | Op::Send) {
            let mut payload = vec![0; place.len];
            let memory = self.end.qps[0].memory();
            memory.read_at(place.from, &mut payload);
            memory.write_at(self.cached_payload(seq), &payload);
        }
        self.cache.push_back(seq);
        self.posted += 1;
        self.post(usize::from(self.report.is_some()), seq, place.from)
    }

    /// Posts an operation whose local memory is at `from`.
    fn post(&mut self, rail: usize, seq: u64, from: usize) -> anyhow::Result<()> {
        let op = self.plan.mix.op(seq);
        let Place { at, len, .. } = Place::of(op, self.end.layout, self.plan.size);
        let qp = &mut self.end.qps[rail];
        let mut wr = request(qp, op, from, at, len);
        wr.wr_id = seq;
        qp.post_raw(wr)
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        if let Ok(Fault::Reset(after)) = self.plan.fault
            && self.end.fault_at.is_none()
            && self.completions.len() as u64 >= after
        {
            self.end.fault_at = Some(self.end.nics[0].now());
            self.end.nics[0].reset().context("cannot reset the NIC of rail 0")?;
            return Ok(());
        }
        let rail = usize::from(self.report.is_some());
        let wcs: Vec<Wc> = self.end.qps[rail].poll_raw()?.to_vec();
        for wc in wcs.iter().filter(|wc| wc.status == WcStatus::Success) {
            ensure!(
                self.cache.pop_front() == Some(wc.wr_id),
                "operation {} completed out of order on an RC queue pair",
                wc.wr_id
            );
            let was_resent = rail == 1 && wc.wr_id < self.resent_below;
            self.completions.push(Completion {
                wr_id: wc.wr_id,
                seq: wc.wr_id,
                opcode: wc.opcode,
                outcome: Outcome::Success,
                resolution: if was_resent { Resolution::Replayed } else { Resolution::Direct },
                byte_len: wc.byte_len,
                imm: None,
                invalidated: None,
                solicited: false,
                srq: None,
            });
        }
        if let Some(report) = &mut self.report
            && report.completed_at.is_none()
            && self.cache.front().is_none_or(|&seq| seq >= self.resent_below)
        {
            report.completed_at = Some(self.end.nics[1].now());
        }
        Ok(())
    }

    /// Returns the source of the report that rail 0 has failed: the port, or the responder's word.
    fn failure(&mut self) -> Option<Cause> {
        if self.end.detect_link_down() {
            return Some(Cause::Device);
        }
        (self.end.qps[0].memory().load(self.end.layout.stop()) == LINK_DOWN).then_some(Cause::Peer)
    }

    /// Sends the copies of all operations in flight over rail 1.
    fn resend(&mut self, cause: Cause) -> anyhow::Result<()> {
        let detected_at = self.end.nics[1].now();
        // Completed requests are not sent again.
        self.poll()?;
        self.resent_below = self.posted;
        let in_flight: Vec<u64> = self.cache.iter().copied().collect();
        let mut bytes = 0;
        for &seq in &in_flight {
            let op = self.plan.mix.op(seq);
            let place = Place::of(op, self.end.layout, self.plan.size);
            let is_copied = matches!(op, Op::Write | Op::Send);
            let from = if is_copied { self.cached_payload(seq) } else { place.from };
            self.post(1, seq, from)?;
            bytes += place.len as u64;
        }
        let count = in_flight.len() as u32;
        self.report = Some(FailoverReport {
            epoch: 1,
            from: 0,
            to: 1,
            cause,
            stats: RecoveryStats {
                in_flight: count,
                replayed: count,
                bytes_in_flight: bytes,
                bytes_replayed: bytes,
                ..RecoveryStats::default()
            },
            detected_at,
            fence_began_at: detected_at,
            fenced_at: detected_at,
            evidence_at: detected_at,
            decided_at: detected_at,
            completed_at: None,
        });
        Ok(())
    }
}

pub(crate) fn run_responder(plan: &TrialPlan, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let mut end = CachedEndpoint::open(plan, &plan.placement, connection)?;
    let (old, _, _) = end.qps[0].ids();
    let expected_psn = |nic: &dyn Nic| {
        nic.query_qp(old).map(|status| status.rq_psn).context("cannot query the old rail's queue pair")
    };
    let first = expected_psn(&*end.nics[0])?;
    let fault = plan.fault.ok().filter(|fault| !fault.at_requester());
    if let Some(fault) = fault {
        arm(&*end.nics[0], fault)?;
    }
    connection.send(&())?;
    let (mut polls, mut received, mut told, mut over) = (0_u32, 0, false, false);
    loop {
        let mut received_now = 0;
        for qp in &mut end.qps {
            let is_received = |wc: &&Wc| wc.opcode == WcOpcode::Recv && wc.status == WcStatus::Success;
            let count = qp.poll_raw()?.iter().filter(is_received).count();
            for _ in 0..count {
                post_recv(qp, end.layout)?;
            }
            received_now += count as u64;
        }
        received += received_now;
        if fault.is_some() && end.detect_link_down() && !told {
            // Only the responder sees its port fail, so the responder tells the requester over rail
            // 1.
            told = true;
            end.qps[1].memory().store(end.layout.word(), LINK_DOWN);
            let notice = request(&end.qps[1], Op::Write, end.layout.word(), end.layout.stop(), 8);
            end.qps[1].post_raw(notice)?;
        }
        polls = polls.wrapping_add(1);
        if over && received_now == 0 {
            break;
        }
        over = over || polls.is_multiple_of(POLLS_PER_CHECK) && connection.is_readable()?;
    }
    connection.receive::<()>()?;
    let now = expected_psn(&*end.nics[0])?;
    connection.send(&ResponderReport {
        executed: executed_packets(&*end.nics[0], first, now),
        fault_at: end.fault_at.map(Time::as_nanos),
        detected: None,
        counter: end.qps[0].memory().load(end.layout.counter()),
        received,
    })?;
    Ok(())
}
