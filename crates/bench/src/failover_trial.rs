//! One failover between two processes: operations in flight, a rail that fails, and what became of every one of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use mitra_failover::{
    Completion, Config, DetectorConfig, Domain, FailoverReport, Outcome, Policy, Resolution,
};
use mitra_softnic::SoftNic;
use mitra_softnic::fault::{Failure, Noise, Stage, Trigger};
use mitra_verbs::{Mtu, PortState, Provider, QpState, Time, WcOpcode};
use serde::{Deserialize, Serialize};

use super::bench_qp::{BenchQp, DEPTH, Op, RD_ATOMIC, VqpInfo, VqpUnderTest, request};
use super::clock::{Deadline, Stopwatch};
use super::endpoint::{Layout, NicPlacement, post_recv, random};
use mitra_peer_process::PeerConnection;

/// What is posted, again and again: a quarter of it returns data, so that `RD_ATOMIC` of them allow 64 in flight.
const MIX: [Op; 8] = [Op::Write, Op::Send, Op::Write, Op::Read, Op::Send, Op::Write, Op::Send, Op::Faa];
/// Receives that the peer keeps posted.
const RECVS: u32 = DEPTH;
/// Polls between two looks for a message of the other process.
const POLLS: u32 = 256;
/// Operations that end a round in which the failure did not strike.
const ENOUGH: u64 = 100_000;

/// How the rail fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// The link goes down when the `nth` packet reaches a stage (of `docs/faults.md`) at the end where that stage is.
    Link {
        /// 1 to 7.
        stage: u8,
        /// From 1.
        nth: u32,
    },
    /// Every packet of the requester's NIC is lost, both ways, and nobody is told; after so many completions.
    Silent(u64),
}

impl Fault {
    /// Whether it strikes at the end that posts.
    fn at_requester(self) -> bool {
        match self {
            Fault::Link { stage, .. } => matches!(stage, 1 | 2 | 7),
            Fault::Silent(_) => true,
        }
    }
}

/// One round, for both ends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) placement: NicPlacement,
    /// `blanket` instead of `exact`.
    pub(crate) blanket: bool,
    pub(crate) log: bool,
    pub(crate) in_flight: u32,
    pub(crate) size: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) misses: u32,
    /// None: measure the rail's round trip, so many times.
    pub(crate) fault: Result<Fault, u64>,
}

impl Plan {
    fn config(&self) -> Config {
        Config {
            policy: if self.blanket { Policy::Blanket } else { Policy::Exact },
            completion_log: self.log,
            detector: DetectorConfig {
                heartbeat_interval: self.heartbeat,
                max_missed_heartbeats: self.misses,
                ..DetectorConfig::default()
            },
            send_wrs: self.in_flight,
            recv_wrs: DEPTH,
            rd_atomic: RD_ATOMIC,
            ..Config::default()
        }
    }

    fn layout(&self) -> Layout {
        Layout::new(self.size)
    }
}

/// What the requester's end saw.
pub(crate) struct Seen {
    pub(crate) report: FailoverReport,
    /// When the fault struck, to within a poll.
    pub(crate) struck: Time,
    /// Operations that were executed before the failure, had not completed, and were sent again all the same. READs do
    /// not count: to read again is how their data is recovered.
    pub(crate) resent: u64,
    /// FAAs and SENDs that the responder executed more often than they were posted.
    pub(crate) doubled: u64,
    /// Operations that did not end in success.
    pub(crate) failed: u64,
}

/// What the responder's end tells at last.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// Request packets that the old rail executed.
    executed: u32,
    /// When the fault struck here, in nanoseconds.
    struck: Option<u64>,
    detected: Option<u64>,
    counter: u64,
    received: u64,
}

/// One end, connected.
struct End {
    nics: [Arc<SoftNic>; 2],
    qp: VqpUnderTest,
    layout: Layout,
    struck: Option<Time>,
}

impl End {
    fn open(plan: &Plan, placement: &NicPlacement, connection: &mut PeerConnection) -> anyhow::Result<End> {
        let nics = placement.open()?;
        let providers = nics.each_ref().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
        let domain = Domain::new(providers.to_vec())?;
        let layout = plan.layout();
        let mut qp = VqpUnderTest::new(&domain, plan.config(), layout.len(), [random()?, random()?])?;
        connection.send(&qp.info()?)?;
        let peer: VqpInfo = connection.receive()?;
        qp.connect(&peer)?;
        for _ in 0..RECVS {
            post_recv(&mut qp, layout)?;
        }
        Ok(End { nics, qp, layout, struck: None })
    }

    fn arm(&self, fault: Fault) -> anyhow::Result<()> {
        let Fault::Link { stage, nth } = fault else { return Ok(()) };
        let stage = match stage {
            1 => Stage::Posted,
            2 => Stage::RequestOnWire,
            3 => Stage::Arrived,
            4 => Stage::PartlyExecuted,
            5 => Stage::Executed,
            6 => Stage::AckOnWire,
            7 => Stage::Acknowledged,
            _ => bail!("no such stage"),
        };
        self.nics[0].faults().arm(Trigger { stage, nth, failure: Failure::LinkDown });
        Ok(())
    }

    /// Notes when the link of rail 0 went down.
    fn watch(&mut self) {
        if self.struck.is_none() && self.nics[0].query_port().is_ok_and(|port| port.state == PortState::Down)
        {
            let now = self.nics[0].now();
            // The vQP may have seen it within the same poll.
            let detected = self.qp.vqp.last_failover().map_or(now, |report| report.detected_at);
            self.struck = Some(now.min(detected));
        }
    }
}

/// The requester's end of a round; none if the fault did not strike.
pub(crate) fn requester(
    plan: &Plan,
    placement: &NicPlacement,
    connection: &mut PeerConnection,
) -> anyhow::Result<Option<Seen>> {
    let Ok(fault) = plan.fault else { bail!("this round has no fault") };
    let end = End::open(plan, placement, connection)?;
    connection.receive::<()>()?;
    if fault.at_requester() {
        end.arm(fault)?;
    }
    let mut run = Run { end, plan, fault, posted: 0, open: VecDeque::new(), completions: Vec::new() };
    run.until_recovered()?;
    connection.send(&())?;
    let told: Told = connection.receive()?;
    let seen = run.judge(&told)?;
    // The responder lets go first: it is not to see this end go.
    run.end.qp.vqp.close()?;
    Ok(seen)
}

/// The requester's work.
struct Run<'a> {
    end: End,
    plan: &'a Plan,
    fault: Fault,
    posted: u64,
    /// Sequence numbers that have not completed.
    open: VecDeque<u64>,
    completions: Vec<Completion>,
}

impl Run<'_> {
    fn until_recovered(&mut self) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        loop {
            let recovered =
                self.end.qp.vqp.last_failover().is_some_and(|report| report.completed_at.is_some());
            let over = recovered || self.posted >= ENOUGH;
            // The peer delivers what it received when it knows that the move is complete.
            if over && self.open.is_empty() && self.end.qp.vqp.is_move_confirmed() {
                return Ok(());
            }
            while !over && self.open.len() < self.plan.in_flight as usize && self.post()? {}
            self.poll()?;
            deadline.check()?;
        }
    }

    /// Posts the next operation; false if the vQP has stopped at an error.
    fn post(&mut self) -> anyhow::Result<bool> {
        let (layout, qp) = (self.end.layout, &mut self.end.qp);
        let op = MIX[(self.posted % MIX.len() as u64) as usize];
        let (len, at) = match op {
            Op::Write | Op::Send => (self.plan.size, layout.inbox()),
            Op::Read => (self.plan.size, layout.outbox()),
            Op::Faa => (8, layout.counter()),
        };
        if qp.vqp.is_halted() || qp.vqp.close_reason().is_some() {
            return Ok(false);
        }
        let from = match op {
            Op::Write | Op::Send => layout.outbox(),
            Op::Read => layout.inbox(),
            Op::Faa => layout.word(),
        };
        let wr = request(qp, op, from, at, len);
        let seq = qp.vqp.post_send(wr)?;
        ensure!(seq == self.posted, "operation {} has the number {seq}", self.posted);
        self.open.push_back(seq);
        self.posted += 1;
        Ok(true)
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        for completion in self.end.qp.poll_raw() {
            if completion.opcode == WcOpcode::Recv {
                continue;
            }
            let due = self.open.pop_front();
            ensure!(due == Some(completion.seq), "{} completed where {due:?} was due", completion.seq);
            self.completions.push(*completion);
        }
        if let Some(ended) = self.end.qp.vqp.close_reason() {
            bail!("the virtual queue pair ended: {ended:?}");
        }
        match self.fault {
            Fault::Silent(after) if self.end.struck.is_none() && self.completions.len() as u64 >= after => {
                let all = Noise { drop_ppm: 1_000_000, ..Noise::default() };
                self.end.nics[0].faults().set_noise(all, all);
                self.end.struck = Some(self.end.nics[0].now());
            }
            Fault::Link { .. } if self.fault.at_requester() => self.end.watch(),
            _ => {}
        }
        Ok(())
    }

    fn judge(&self, told: &Told) -> anyhow::Result<Option<Seen>> {
        let Some(report) = self.end.qp.vqp.last_failover() else { return Ok(None) };
        let struck = match (self.end.struck, told.struck) {
            (Some(here), _) => here,
            (None, Some(there)) => Time::from_nanos(there.min(told.detected.unwrap_or(there))),
            (None, None) => bail!("a rail was given up that nobody had failed ({:?})", report.cause),
        };
        // What the old rail's responder had executed, whatever the evidence and the decisions made of it.
        let mtu = self.end.nics[0].query_port().map_or(Mtu::M4096, |port| port.max_mtu);
        let mut left = u64::from(told.executed);
        let executed_before = |completion: &&Completion| {
            let packets = match MIX[(completion.seq % MIX.len() as u64) as usize] {
                Op::Faa => 1,
                _ => mtu.packets(self.plan.size as u64),
            };
            let logged = self.plan.log && matches!(completion.opcode, WcOpcode::Write | WcOpcode::FetchAdd);
            let whole = left >= packets;
            left = left.saturating_sub(packets + u64::from(logged));
            whole
        };
        let before: Vec<&Completion> = self.completions.iter().take_while(executed_before).collect();
        let resent =
            before.iter().filter(|c| c.resolution == Resolution::Replayed && c.opcode != WcOpcode::Read);
        let posted =
            |op: Op| (0..self.posted).filter(|i| MIX[(i % MIX.len() as u64) as usize] == op).count() as u64;
        let doubled =
            told.counter.saturating_sub(posted(Op::Faa)) + told.received.saturating_sub(posted(Op::Send));
        let failed = self.completions.iter().filter(|c| c.outcome != Outcome::Success).count() as u64;
        if !self.plan.blanket && failed == 0 {
            ensure!(
                told.counter == posted(Op::Faa) && told.received == posted(Op::Send),
                "the responder counted to {} and received {}, of {} and {}",
                told.counter,
                told.received,
                posted(Op::Faa),
                posted(Op::Send)
            );
        }
        Ok(Some(Seen { report, struck, resent: resent.count() as u64, doubled, failed }))
    }
}

/// The responder's end of a round.
pub(crate) fn responder(plan: &Plan, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let mut end = End::open(plan, &plan.placement, connection)?;
    let old = end.qp.vqp.qpn();
    let first = end.nics[0].query_qp(old).context("cannot ask for the first PSN")?.rq_psn;
    let fault = plan.fault.ok().filter(|fault| !fault.at_requester());
    if let Some(fault) = fault {
        end.arm(fault)?;
    }
    connection.send(&())?;
    let (mut polls, mut received) = (0_u32, 0);
    let (mut at_move, mut over) = (None, false);
    loop {
        let came = end.qp.poll_raw().iter().filter(|c| c.opcode == WcOpcode::Recv && c.is_success()).count();
        received += came as u64;
        for _ in 0..came {
            post_recv(&mut end.qp, end.layout)?;
        }
        if fault.is_some() {
            end.watch();
        }
        if at_move.is_none() && !end.qp.vqp.is_active() {
            // Nothing passes on the old rail any more, so this is what it came to.
            at_move = end.nics[0].query_qp(old).ok().map(|status| status.rq_psn);
        }
        polls = polls.wrapping_add(1);
        // What the requester saw complete has been received; it may still wait to be polled.
        if over && came == 0 {
            break;
        }
        over = over || polls.is_multiple_of(POLLS) && connection.is_readable()?;
    }
    connection.receive::<()>()?;
    // Where nothing moved it is still there; where something did, it has been reset since, to make room for the rail's return.
    let still = || end.nics[0].query_qp(old).ok().filter(|status| status.state != QpState::Reset);
    let now = at_move
        .or_else(|| still().map(|status| status.rq_psn))
        .context("the old rail's NIC does not tell what it executed")?;
    connection.send(&Told {
        executed: now.value().wrapping_sub(first.value()) & 0xff_ffff,
        struck: end.struck.map(Time::as_nanos),
        detected: end.qp.vqp.last_failover().map(|report| report.detected_at.as_nanos()),
        counter: end.qp.memory().load(end.layout.counter()),
        received,
    })?;
    end.qp.vqp.close()?;
    Ok(())
}

/// The round trip of rail 0, in nanoseconds: the median of READs of 8 bytes through a vQP.
pub(crate) fn round_trip(
    plan: &Plan,
    placement: &NicPlacement,
    connection: &mut PeerConnection,
) -> anyhow::Result<f64> {
    let Err(times) = plan.fault else { bail!("this round has a fault") };
    let mut end = End::open(plan, placement, connection)?;
    connection.receive::<()>()?;
    let mut watch = Stopwatch::start(times);
    for _ in 0..watch.rounds() {
        let wr = request(&end.qp, Op::Read, end.layout.inbox(), end.layout.outbox(), 8);
        end.qp.post(wr)?;
        end.qp.drain()?;
        watch.lap();
    }
    connection.send(&())?;
    connection.receive::<Told>()?;
    end.qp.vqp.close()?;
    Ok(watch.done().value_at_quantile(0.5) as f64)
}
