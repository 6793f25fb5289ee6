//! The decision on each operation that was in flight when a rail failed: an outcome or a replay.

use mitra_mutants::Mutant;
use mitra_verbs::{Data, Psn, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};

use super::{Ledger, Op, State};
use crate::completion::{Outcome, Resolution, UnresolvedError};
use crate::config::{Policy, Service};
use crate::evidence::{Completed, Contradiction, Evidence, InFlight, Kind, Verdict, judge};
use crate::recovery_plan::{Case, Plan, plan_exact, plan_unreliable};

/// The old value of a recovered atomic, to be stored in local memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecoveredValue {
    /// The sequence number of the atomic.
    pub seq: u64,
    /// The memory that the work request names.
    pub at: Sge,
    /// In the byte order of the host.
    pub value: u64,
}

/// Statistics of the operations of this end that were in flight at a failover.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RecoveryStats {
    /// The operations that were in flight on the old rail.
    pub in_flight: u32,
    /// Of these, the operations that the peer had executed, by its evidence. This field and the
    /// next two are 0 under a policy that does not decide by evidence.
    pub executed: u32,
    /// The operations that the peer had executed in part.
    pub torn: u32,
    /// The operations that the evidence does not decide.
    pub ambiguous: u32,
    /// The operations that are replayed, completely or in part.
    pub replayed: u32,
    /// The operations that ended in an error, flushed ones included.
    pub failed: u32,
    /// The packets of the replayed operations.
    pub packets_replayed: u32,
    /// The payload bytes of the operations in flight.
    pub bytes_in_flight: u64,
    /// The payload bytes that are sent again, or requested again by a READ.
    pub bytes_replayed: u64,
    /// Whether the old rail certainly carried data of the operations in flight: either the peer
    /// executed at least a part of an operation other than a READ, or the first operation that was
    /// not executed arrived and found no receive. False under a policy that does not decide by
    /// evidence.
    pub carried_data: bool,
    /// How many payload bytes of the next two-sided operation the earlier rails have placed.
    /// 0 unless this operation is a torn WRITE with immediate.
    pub imm_bytes_kept: u32,
}

/// What the ledger bases its decision on.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryInput<'a> {
    /// The vQP's policy.
    pub policy: Policy,
    /// From the peer.
    pub evidence: &'a Evidence,
    /// Whether the local NIC was alive when it was fenced, so that all data that it received is in
    /// memory.
    pub local_placed: bool,
    /// Whether the peer's NIC of the old rail acknowledges data only after the data is in memory.
    pub acks_after_placement: bool,
    /// The first PSN of the new rail.
    pub first_psn: Psn,
    /// Whether completions on the new rail wait for the peer's confirmation.
    pub durable: bool,
}

impl Ledger {
    /// In posting order.
    fn in_flight(&self) -> Vec<InFlight> {
        let posted = self.ops.iter().filter(|op| op.state == State::InFlight && !op.executed_locally);
        posted
            .map(|op| InFlight {
                seq: op.wr.wr_id,
                kind: op.kind,
                first: op.first_psn,
                packets: op.packets,
                logged: op.logged,
            })
            .collect()
    }

    /// The operation `seq`, which is in the ledger.
    fn op(&mut self, seq: u64) -> &mut Op {
        &mut self.ops[(seq - self.first_seq) as usize]
    }

    /// Decides every operation in flight and prepares the replay on the new rail. Appends the old
    /// values of recovered atomics to `values`. The caller has popped all completions.
    ///
    /// # Errors
    /// A contradiction in the evidence; the ledger is then unchanged.
    pub fn decide(
        &mut self,
        input: &RecoveryInput<'_>,
        values: &mut Vec<RecoveredValue>,
    ) -> Result<RecoveryStats, Contradiction> {
        let ops = self.in_flight();
        if ops.is_empty() && self.is_ended_by_error && !Mutant::EndedOperationsJudged.is_on() {
            return Ok(RecoveryStats::default()); // the vQP closes
        }
        let kinds = || ops.iter().map(|op| op.kind).collect::<Vec<_>>();
        let (verdicts, mut plans) = match input.policy {
            _ if self.service == Service::Unreliable => (Vec::new(), plan_unreliable(&kinds())),
            #[cfg(feature = "baselines")]
            policy if !policy.decides_by_evidence() => {
                (Vec::new(), crate::recovery_plan::plan_baseline(policy, &kinds()))
            }
            _ => {
                let verdicts =
                    judge(&ops, self.completed, input.evidence, self.log, input.acks_after_placement)?;
                let cases: Vec<Case> = ops
                    .iter()
                    .zip(&verdicts)
                    .map(|(&op, &verdict)| {
                        let Op { wr, write_policy, .. } = self.op(op.seq);
                        let fence = wr.flags.contains(SendFlags::FENCE);
                        Case { op, verdict, fence, write_policy: *write_policy }
                    })
                    .collect();
                // The rail acknowledged the first `acknowledged` operations and delivered their
                // values. By the evidence, the first `done` of these are in the peer's memory, and
                // they succeed. If `done` is smaller, a NIC lost data that it had acknowledged, and
                // the others are planned like unacknowledged operations.
                let is_executed = |verdict: &&Verdict| **verdict == Verdict::Executed;
                let acknowledged = self.acknowledged_in_flight();
                let done = verdicts.iter().take(acknowledged).take_while(is_executed).count();
                let mut plans = vec![Plan::End(Outcome::Success); done];
                plans.extend(plan_exact(&cases[done..], &input.evidence.saved, input.local_placed));
                (verdicts, plans)
            }
        };
        let halted =
            plans.iter().any(|p| matches!(p, Plan::End(Outcome::Failed(_) | Outcome::Unresolved(_))));
        if let Some((seq, status)) = self.refused.take()
            && let Some(at) = ops.iter().position(|op| op.seq == seq)
        {
            plans[at] = Plan::End(Outcome::Failed(status));
            self.flush_behind(seq, &ops[at + 1..], &mut plans[at + 1..]);
        }
        for (op, plan) in ops.iter().zip(&mut plans) {
            if self.op(op.seq).is_cancelled && matches!(plan, Plan::Replay { .. }) {
                *plan = Plan::End(Outcome::Failed(WcStatus::Flushed));
            }
        }
        let mut stats = self.stats(&ops, &verdicts, &plans, input.evidence.lacks_receive);
        for (n, (&InFlight { seq, kind, .. }, plan)) in ops.iter().zip(&plans).enumerate() {
            let maybe_began = match verdicts.get(n) {
                Some(Verdict::Torn(_)) => !Mutant::TornBehindErrorFlushed.is_on(),
                verdict => verdict == Some(&Verdict::Ambiguous),
            };
            self.op(seq).maybe_executed |= maybe_began && matches!(kind, Kind::Write | Kind::WriteImm);
            self.apply(seq, *plan, values);
        }
        if halted && !Mutant::QueueGoesOnAfterError.is_on() {
            let behind = self.ops.iter_mut().skip_while(|op| !op.has_failed());
            for op in behind.filter(|op| op.state == State::Pending) {
                op.state = State::Done(op.outcome_if_not_sent(UnresolvedError::Indeterminate));
                op.resolution = Resolution::Recovered;
            }
            self.halt();
        }
        stats.imm_bytes_kept = self.imm_bytes_kept();
        self.restart(input.first_psn);
        self.set_durable(input.durable);
        Ok(stats)
    }

    /// How many payload bytes of the next two-sided operation the earlier rails have placed.
    /// 0 unless this operation is a torn WRITE with immediate. The peer adds this number to the
    /// byte count of its first receive completion on the new rail.
    pub fn imm_bytes_kept(&self) -> u32 {
        let first = self.ops.iter().find(|op| op.state == State::Pending && op.kind.is_two_sided());
        first.map_or(0, |op| op.skipped as u32)
    }

    /// Flushes the operations behind `seq` that have the same application `wr_id`, which names a
    /// user of a shared backup. Executed operations keep their outcome. `later` and `plans` are the
    /// operations in flight behind `seq` and their plans.
    fn flush_behind(&mut self, seq: u64, later: &[InFlight], plans: &mut [Plan]) {
        let user = self.op(seq).app_wr_id;
        for (op, plan) in later.iter().zip(plans) {
            if self.op(op.seq).app_wr_id == user && matches!(plan, Plan::Replay { .. }) {
                *plan = Plan::End(Outcome::Failed(WcStatus::Flushed));
            }
        }
        let later = self.ops.iter_mut().filter(|op| op.wr.wr_id > seq);
        for op in later.filter(|op| op.state == State::Pending && op.app_wr_id == user) {
            op.state = State::Done(op.outcome_if_not_sent(UnresolvedError::Indeterminate));
            op.resolution = Resolution::Recovered;
        }
    }

    fn stats(
        &mut self,
        ops: &[InFlight],
        verdicts: &[Verdict],
        plans: &[Plan],
        lacks_receive: bool,
    ) -> RecoveryStats {
        let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|v| wanted(v)).count() as u32;
        let mut stats = RecoveryStats {
            in_flight: ops.len() as u32,
            executed: count(|v| *v == Verdict::Executed),
            torn: count(|v| matches!(v, Verdict::Torn(_))),
            ambiguous: count(|v| *v == Verdict::Ambiguous),
            carried_data: carried_data(ops, verdicts, lacks_receive),
            ..RecoveryStats::default()
        };
        for (op, plan) in ops.iter().zip(plans) {
            let bytes = self.op(op.seq).wr.data.len();
            stats.bytes_in_flight += bytes;
            match *plan {
                Plan::Replay { skip_packets } => {
                    let kept = (u64::from(skip_packets) * self.mtu.bytes() as u64).min(bytes);
                    stats.replayed += 1;
                    stats.packets_replayed += op.packets.saturating_sub(skip_packets);
                    stats.bytes_replayed += bytes - kept;
                }
                Plan::End(Outcome::Success) | Plan::Value(_) => {}
                Plan::End(_) => stats.failed += 1,
            }
        }
        stats
    }

    fn apply(&mut self, seq: u64, plan: Plan, values: &mut Vec<RecoveredValue>) {
        let mtu = self.mtu.bytes() as u64;
        let op = self.op(seq);
        match plan {
            Plan::Replay { skip_packets } => {
                if skip_packets > 0 {
                    let bytes = u64::from(skip_packets) * mtu;
                    cut_front(&mut op.wr, bytes);
                    op.skipped = bytes + if Mutant::FirstTearForgotten.is_on() { 0 } else { op.skipped };
                }
                op.state = State::Pending;
                op.resolution = Resolution::Replayed;
            }
            Plan::Value(value) => {
                if let Data::Sges(list) = &op.wr.data
                    && let Some(&at) = list.first()
                {
                    values.push(RecoveredValue { seq, at, value });
                }
                op.byte_len = 8;
                (op.state, op.resolution) = (State::Done(Outcome::Success), Resolution::Recovered);
            }
            Plan::End(outcome) => {
                match op.kind {
                    Kind::Read => op.byte_len = op.wr.data.len() as u32,
                    Kind::Atomic if outcome == Outcome::Success => op.byte_len = 8,
                    _ => {}
                }
                let flushed = outcome == Outcome::Failed(WcStatus::Flushed);
                let outcome =
                    if flushed { op.outcome_if_not_sent(UnresolvedError::Indeterminate) } else { outcome };
                (op.state, op.resolution) = (State::Done(outcome), Resolution::Recovered);
            }
        }
    }

    /// Begins an epoch on a rail whose first packet has the PSN `psn`.
    pub(super) fn restart(&mut self, psn: Psn) {
        (self.next_psn, self.packets_posted) = (psn, 0);
        if !Mutant::CompletionsOfEarlierEpochKept.is_on() {
            self.completed = Completed::default();
        }
        (self.fetches_in_flight, self.packets_in_flight, self.unsignaled, self.unlogged) = (0, 0, 0, 0);
        for i in 0..self.ops.len() {
            if self.ops[i].state == State::Pending && !Mutant::RestKeepsItsPackets.is_on() {
                self.ops[i].packets = self.packets(self.ops[i].kind, self.ops[i].wr.data.len());
            }
        }
        self.cursor = 0;
    }
}

/// See [`RecoveryStats::carried_data`].
fn carried_data(ops: &[InFlight], verdicts: &[Verdict], lacks_receive: bool) -> bool {
    let mut ops = ops.iter().zip(verdicts).map(|(op, verdict)| (op.kind, *verdict));
    let executed = |(kind, verdict): (Kind, Verdict)| {
        // The PSN shows only the arrival of a READ request. The data of a READ is its response.
        matches!(verdict, Verdict::Executed | Verdict::Torn(1..)) && !matches!(kind, Kind::Read | Kind::Local)
    };
    let first_open = ops.clone().find(|(_, verdict)| *verdict != Verdict::Executed);
    lacks_receive && first_open.is_some_and(|(kind, _)| kind.is_two_sided()) || ops.any(executed)
}

/// Removes the first `bytes` bytes of a WRITE.
fn cut_front(wr: &mut SendWr, bytes: u64) {
    match &mut wr.op {
        SendOp::Write(_) | SendOp::WriteWithImm(..) if Mutant::RestWrittenAtStart.is_on() => {}
        SendOp::Write(r) | SendOp::WriteWithImm(r, _) => r.addr = r.addr.wrapping_add(bytes),
        _ => return,
    }
    match &mut wr.data {
        Data::Inline(data) => {
            data.drain(..(bytes as usize).min(data.len()));
        }
        Data::Sges(list) => {
            let mut uncut = bytes;
            let mut rest = SgeList::new();
            for sge in list.iter() {
                let cut = uncut.min(u64::from(sge.len));
                if !Mutant::EveryEntryCut.is_on() {
                    uncut -= cut;
                }
                if cut < u64::from(sge.len) {
                    rest.push(Sge { addr: sge.addr + cut, len: sge.len - cut as u32, key: sge.key });
                }
            }
            *list = rest;
        }
    }
}
