//! `mitra check NAME --replay`: the steps of a model on the state machine of the software NIC, with
//! a pair of NICs for each rail.

use std::fmt;

use anyhow::{Context, bail, ensure};
use mitra_model_check::{Atomic, MAX_RAILS, Recovery, ResendSetup, ResendStep, ResendWorld};
use mitra_transport::{Nic, NicConfig, TxBatch, VecMemory};
use mitra_verbs::{
    Access, CqId, Data, Gid, Mr, QpAttr, QpCap, QpInitAttr, QpState, QpType, Qpn, RcConnection, RegionId,
    SendOp, SendWr, Sge, Time, WcStatus,
};
use mitra_wire::{ICRC_LEN, Packet};
use serde::Serialize;

/// The length of the memory at each end: the word at the responder, the returned values at the
/// requester.
const MEMORY_BYTES: usize = 64;
/// No model has more operations in flight.
const MAX_ATOMICS: u8 = 4;
/// More retries than any queue pair makes.
const MAX_TIMEOUTS: usize = 100;

/// Takes these steps with the software NIC. At the end, the NIC must have the state of the model.
///
/// # Errors
/// The NICs do not do what a step says, or end in another state.
pub(super) fn run(setup: ResendSetup, steps: &[ResendStep]) -> anyhow::Result<Replayed> {
    let mut model = ResendWorld::new(setup);
    let mut nics = Replay::new(setup)?;
    for &step in steps {
        model.apply(step);
        nics.apply(step).with_context(|| format!("the software NIC cannot repeat this step: {step:?}"))?;
    }
    let replayed = nics.done()?;
    let in_model = (u64::from(model.executions()), u64::from(model.word()));
    ensure!(
        (replayed.executions, replayed.word) == in_model,
        "the model says {} executions and the word {}, the software NIC did otherwise: {replayed:?}",
        in_model.0,
        in_model.1
    );
    Ok(replayed)
}

/// The effects on the NICs and the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Replayed {
    /// How often the operations were executed, by the PSNs of the responder's queue pairs.
    pub(super) executions: u64,
    /// The number of completions with success at the requester.
    pub(super) completions: u64,
    pub(super) word: u64,
}

/// The queue pairs of a rail, and the packets in transit between them.
struct Rail {
    requester: (Nic, Qpn),
    responder: (Nic, Qpn),
    cq: CqId,
    /// The region of the returned value, and the region of the word.
    regions: [Mr; 2],
    requests: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
}

struct Replay {
    setup: ResendSetup,
    now: Time,
    /// The memory of the requester and of the responder.
    memory: [VecMemory; 2],
    rails: Vec<Rail>,
    /// The requester's rail.
    rail: usize,
    completions: u64,
    /// The number of operations that the requester takes for executed, without the completed
    /// operations.
    taken_for_executed: u64,
}

fn gid(rail: usize, end: u8) -> Gid {
    std::net::IpAddr::from([10, 0, rail as u8, end]).into()
}

impl Rail {
    fn new(number: usize) -> mitra_verbs::Result<Rail> {
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let end = |end: u8| {
            let mut nic = Nic::new(NicConfig::new("replay", gid(number, end), [number as u8 + 1; 32]));
            let pd = nic.alloc_pd()?;
            let mr = nic.reg_mr(Time::ZERO, pd, RegionId(0), 0, MEMORY_BYTES as u64, access)?;
            let cq = nic.create_cq(16)?;
            let cap = QpCap::default();
            let (qp_type, srq) = (QpType::Rc, None);
            let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq, cap, sq_sig_all: true };
            let qp = nic.create_qp(Time::ZERO, &init)?;
            Ok::<_, mitra_verbs::Error>((nic, qp, mr, cq))
        };
        let (mut requester, a, result, cq) = end(1)?;
        let (mut responder, b, word, _) = end(2)?;
        let connect = |nic: &mut Nic, qp: Qpn, to: RcConnection| {
            [to.init(), to.rtr(), to.rts()].iter().try_for_each(|attr| nic.modify_qp(Time::ZERO, qp, attr))
        };
        let to = |gid, qpn| RcConnection { rd_atomic: MAX_ATOMICS, ..RcConnection::to(gid, qpn) };
        connect(&mut requester, a, to(gid(number, 2), b))?;
        connect(&mut responder, b, to(gid(number, 1), a))?;
        let (requests, answers) = (Vec::new(), Vec::new());
        let regions = [result, word];
        Ok(Rail { requester: (requester, a), responder: (responder, b), cq, regions, requests, answers })
    }

    /// The number of requests that the responder's queue pair has executed. The first PSN is 0.
    fn executed(&self) -> mitra_verbs::Result<u64> {
        let (nic, qp) = &self.responder;
        Ok(nic.query_qp(*qp)?.rq_psn.value().into())
    }
}

fn sent(nic: &mut Nic, now: Time, memory: &mut VecMemory) -> Vec<Vec<u8>> {
    let (mut batch, mut packets) = (TxBatch::new(), Vec::new());
    nic.flush_acks();
    while nic.poll_transmit(now, memory, &mut batch) {
        packets.extend(batch.datagrams().map(<[u8]>::to_vec));
    }
    packets
}

fn deliver(
    nic: &mut Nic,
    now: Time,
    source: Gid,
    packet: &[u8],
    memory: &mut VecMemory,
) -> anyhow::Result<()> {
    let packet =
        Packet::parse(&packet[..packet.len() - ICRC_LEN]).context("a NIC sent a malformed packet")?;
    nic.handle_packet(now, source, &packet, memory);
    Ok(())
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replayed { executions, completions, word } = self;
        write!(f, "executions {executions}, completions {completions}, word {word}")
    }
}

impl Replay {
    /// Connects the queue pairs, and posts the operations on rail 0.
    fn new(setup: ResendSetup) -> anyhow::Result<Replay> {
        let rails = (0..MAX_RAILS).map(Rail::new).collect::<Result<_, _>>()?;
        let memory = [(); 2].map(|()| VecMemory(vec![vec![0; MEMORY_BYTES]]));
        let now = Time::from_nanos(1);
        let mut replay = Replay { setup, now, memory, rails, rail: 0, completions: 0, taken_for_executed: 0 };
        replay.post_remaining()?;
        Ok(replay)
    }

    fn post_remaining(&mut self) -> anyhow::Result<()> {
        let done = self.completions + self.taken_for_executed;
        let Rail { requester: (nic, qp), regions: [result, word], requests, .. } = &mut self.rails[self.rail];
        for operation in done..u64::from(self.setup.operations) {
            let remote = word.remote(0);
            let op = match self.setup.operation {
                Atomic::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
                Atomic::CompareSwap => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
            };
            let to = Sge { addr: result.addr + 8 * operation, len: 8, key: result.lkey };
            nic.post_send(self.now, *qp, &[SendWr::new(operation, op, Data::sge(to))])?;
        }
        requests.extend(sent(nic, self.now, &mut self.memory[0]));
        Ok(())
    }

    fn word(&self) -> u64 {
        self.memory[1].0[0].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
    }

    /// Takes a step.
    ///
    /// # Errors
    /// The NICs do not do what the step says.
    fn apply(&mut self, step: ResendStep) -> anyhow::Result<()> {
        match step {
            ResendStep::Execute { rail } => self.execute(usize::from(rail))?,
            ResendStep::LoseRequests { rail } => self.rails[usize::from(rail)].requests.clear(),
            ResendStep::LoseAnswers { rail } => self.rails[usize::from(rail)].answers.clear(),
            ResendStep::Complete { rail } => {
                let number = usize::from(rail);
                let rail = &mut self.rails[number];
                for answer in std::mem::take(&mut rail.answers) {
                    deliver(&mut rail.requester.0, self.now, gid(number, 2), &answer, &mut self.memory[0])?;
                }
                self.completions += self.completions_of(number)?.0;
            }
            ResendStep::Fail { rail } => self.fail(usize::from(rail))?,
            ResendStep::Fence { rail } => {
                let (nic, qp) = &mut self.rails[usize::from(rail)].responder;
                nic.modify_qp(self.now, *qp, &QpAttr::to(QpState::Err))?;
            }
            ResendStep::ReadEvidence { rail } => {
                let used = &self.rails[..=usize::from(rail)];
                let executed = used.iter().map(Rail::executed).sum::<Result<u64, _>>()?;
                self.taken_for_executed = executed - self.completions;
            }
            ResendStep::ReadWord => {
                if self.setup.recovery == Recovery::ResendIfUnchanged {
                    self.taken_for_executed = u64::from(self.word() != 0);
                }
            }
            ResendStep::Repost { rail } => {
                self.rail = usize::from(rail);
                self.post_remaining()?;
            }
            ResendStep::Reset => self.memory[1].0[0][..8].fill(0),
        }
        Ok(())
    }

    fn execute(&mut self, number: usize) -> anyhow::Result<()> {
        let rail = &mut self.rails[number];
        if rail.requests.is_empty() {
            bail!("no request is in transit on rail {number}");
        }
        let request = rail.requests.remove(0);
        let before = rail.executed()?;
        let (nic, memory) = (&mut rail.responder.0, &mut self.memory[1]);
        deliver(nic, self.now, gid(number, 1), &request, memory)?;
        rail.answers.extend(sent(nic, self.now, memory));
        if rail.executed()? != before + 1 {
            bail!("the responder's NIC did not execute the request on rail {number}");
        }
        Ok(())
    }

    /// Lets the retries of the requester's queue pair run out. Its retransmissions are lost.
    fn fail(&mut self, number: usize) -> anyhow::Result<()> {
        for _ in 0..MAX_TIMEOUTS {
            if self.completions_of(number)?.1 > 0 {
                return Ok(());
            }
            let nic = &mut self.rails[number].requester.0;
            self.now = nic.poll_timeout().context("the requester's NIC waits for nothing")?;
            nic.handle_timeout(self.now);
            sent(nic, self.now, &mut self.memory[0]);
        }
        bail!("the requester's NIC does not stop to retry on rail {number}");
    }

    /// Polls the completions of a rail. Returns the numbers of successes and of errors.
    fn completions_of(&mut self, number: usize) -> mitra_verbs::Result<(u64, u64)> {
        let rail = &mut self.rails[number];
        let mut completions = Vec::new();
        rail.requester.0.poll_cq(rail.cq, usize::MAX, &mut completions)?;
        let successes =
            completions.iter().filter(|completion| completion.status == WcStatus::Success).count();
        Ok((successes as u64, (completions.len() - successes) as u64))
    }

    fn done(&self) -> mitra_verbs::Result<Replayed> {
        let executions = self.rails.iter().map(Rail::executed).sum::<Result<_, _>>()?;
        Ok(Replayed { executions, completions: self.completions, word: self.word() })
    }
}
