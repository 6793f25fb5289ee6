//! A queue pair whose backup is shared: its two ends, their own queue pairs and operations, and the
//! messages on the backup.
//!
//! The world runs [`Member`] as each end of such a queue pair does, and simulates the NICs, the
//! driver and the backup. The backup delivers messages in order and exactly once, and executes
//! operations in the same way. An operation may overtake messages, which wait in batches. Each move
//! of the backup begins an epoch. An end learns of an epoch at any later time, and may skip some
//! epochs. No message arrives before its receiver knows the epoch in which the message was sent.
//! Packets of an end's own queue pair may arrive at any later time, until the peer has fenced its
//! own queue pair.

use std::collections::VecDeque;

use mitra_failover::shared_backup_member::{Body, Evidence, Member, OfferedQp, Role, Step};
use mitra_verbs::{Psn, Qpn};

use crate::{SharedBackupLimits, SharedBackupRule, SharedBackupStep};

pub(crate) const PROPERTIES: [&str; 5] = [EXACTLY_ONCE, FENCED, DECIDED, ACCEPTED, ENDS];
const EXACTLY_ONCE: &str = "each operation is executed at most once and in order";
const FENCED: &str = "a queue pair executes nothing after its evidence was given";
const DECIDED: &str = "operations that completed were executed, and the evidence contains them";
const ACCEPTED: &str = "no message of an honest peer is rejected";
const ENDS: &str = "every operation completes, and both ends get queue pairs of their own, or both close";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Qp {
    epoch: u16,
    /// The epoch of the peer's queue pair to which the queue pair is connected.
    peer: Option<u16>,
    is_fenced: bool,
    /// The number of operations that the queue pair executed for the peer.
    executed: u8,
    /// The evidence that was read before the fence, if [`SharedBackupRule::EvidenceAfterFence`] is
    /// left out.
    early_evidence: Option<u8>,
    is_evidence_given: bool,
}

/// The operations that an end sent on its queue pair of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Sent {
    first: u8,
    count: u8,
    /// The epoch of the peer's queue pair.
    to: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    Pending,
    OnOwn { epoch: u16 },
    OnBackup { is_executed: bool },
    Completed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct End {
    member: Member,
    /// The epoch that this end knows.
    epoch: u16,
    is_started: bool,
    is_closed: bool,
    /// Whether the driver posts on the own queue pair.
    uses_own: bool,
    qp: Option<Qp>,
    ops: Vec<Op>,
    /// By epoch.
    sent: Vec<Sent>,
    /// The number of this end's operations that were executed at the peer.
    executed: u8,
    /// The messages for this end, with the epochs in which they were sent.
    inbox: VecDeque<(u16, Body)>,
}

/// The two ends of a queue pair with a shared backup.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SharedBackupWorld {
    ends: [End; 2],
    /// The epoch of the backup.
    epoch: u16,
    limits: SharedBackupLimits,
    without: Option<SharedBackupRule>,
    /// The first violated property.
    pub(crate) violation: Option<&'static str>,
}

impl End {
    fn new(role: Role, operations: u8, moves: u16) -> End {
        End {
            member: Member::new(role, 0, rail(0)),
            epoch: 0,
            is_started: false,
            is_closed: false,
            uses_own: false,
            qp: None,
            ops: vec![Op::Pending; operations.into()],
            sent: vec![Sent::default(); usize::from(moves) + 1],
            executed: 0,
            inbox: VecDeque::new(),
        }
    }

    fn first(&self, is_wanted: impl FnMut(&Op) -> bool) -> Option<usize> {
        self.ops.iter().position(is_wanted)
    }

    fn is_on_backup(&self) -> bool {
        self.first(|op| matches!(op, Op::OnBackup { .. })).is_some()
    }

    /// The operation on the own queue pair that completes next.
    fn completing(&self) -> Option<usize> {
        let qp = self.qp.as_ref().filter(|qp| !qp.is_fenced)?;
        let next = self.first(|op| *op == Op::OnOwn { epoch: qp.epoch })?;
        (next < self.executed.into()).then_some(next)
    }

    fn awaits_evidence(&self) -> bool {
        self.qp.as_ref().is_some_and(|qp| qp.is_fenced)
            && self.member.is_leaving()
            && self.member.next_step().is_none()
    }
}

impl SharedBackupWorld {
    /// Returns a queue pair that is not connected yet.
    pub fn new(limits: SharedBackupLimits, without: Option<SharedBackupRule>) -> SharedBackupWorld {
        let [zero, one] = limits.operations;
        let ends = [End::new(Role::Zero, zero, limits.moves), End::new(Role::One, one, limits.moves)];
        SharedBackupWorld { ends, epoch: 0, limits, without, violation: None }
    }

    fn lacks(&self, rule: SharedBackupRule) -> bool {
        self.without == Some(rule)
    }

    /// The steps that may come next. The first list has the steps that need no cause. The second
    /// list has the steps that the application or the failure of a rail causes.
    pub(crate) fn steps(&self) -> (Vec<SharedBackupStep>, Vec<SharedBackupStep>) {
        let (mut steps, mut causes) = (Vec::new(), Vec::new());
        if self.violation.is_some() {
            return (steps, causes);
        }
        if self.limits.moves > 0 {
            causes.push(SharedBackupStep::Move);
        }
        for (end, e) in (0u8..).zip(&self.ends) {
            if !e.is_started {
                steps.push(SharedBackupStep::Start { end });
            }
            steps.extend((e.epoch + 1..=self.epoch).map(|epoch| SharedBackupStep::Learn { end, epoch }));
            if e.inbox.front().is_some_and(|(epoch, _)| *epoch <= e.epoch) {
                steps.push(SharedBackupStep::Deliver { end });
            }
            if !e.is_closed && self.step_of(end.into()).is_some() {
                steps.push(SharedBackupStep::Drive { end });
            }
            if e.first(|op| *op == Op::Pending).is_some()
                && (self.posts_on_own(end.into()) || !e.is_closed && e.member.may_use_backup())
            {
                steps.push(SharedBackupStep::Post { end });
            }
            let epochs = 0..e.sent.len() as u16;
            let executing = epochs.filter(|&epoch| self.executes(end.into(), epoch));
            steps.extend(executing.map(|epoch| SharedBackupStep::Execute { end, epoch }));
            if e.completing().is_some() {
                steps.push(SharedBackupStep::Complete { end });
            }
            if e.ops.contains(&Op::OnBackup { is_executed: false }) {
                steps.push(SharedBackupStep::ExecuteOnBackup { end });
            }
            if e.ops.contains(&Op::OnBackup { is_executed: true }) {
                steps.push(SharedBackupStep::CompleteOnBackup { end });
            }
            if self.limits.closes > 0 && e.is_started && !e.is_closed {
                causes.push(SharedBackupStep::Close { end });
            }
        }
        (steps, causes)
    }

    /// Returns the next step of an end's driver.
    fn step_of(&self, end: usize) -> Option<Step> {
        let e = &self.ends[end];
        if self.lacks(SharedBackupRule::PeerEvidence) && e.awaits_evidence() {
            let done = e.ops.iter().filter(|op| **op == Op::Completed).count() as u8;
            let first = e.qp.as_ref().map_or(0, |qp| e.sent[usize::from(qp.epoch)].first);
            return Some(Step::Decide(evidence(done.saturating_sub(first))));
        }
        let waits = e.is_on_backup() && !self.lacks(SharedBackupRule::EmptyBackup);
        e.member.next_step().filter(|step| *step != Step::Switch || !waits)
    }

    fn posts_on_own(&self, end: usize) -> bool {
        let e = &self.ends[end];
        let is_connected = e.qp.as_ref().is_some_and(|qp| qp.peer.is_some() && !qp.is_fenced);
        is_connected && (e.uses_own || self.lacks(SharedBackupRule::PeerConnected))
    }

    /// Returns whether the peer's queue pair may execute the next operation that an end sent in an
    /// epoch.
    fn executes(&self, end: usize, epoch: u16) -> bool {
        let sent = self.ends[end].sent[usize::from(epoch)];
        let peer = self.ends[1 - end].qp.as_ref();
        peer.is_some_and(|qp| {
            qp.epoch == sent.to && qp.peer == Some(epoch) && !qp.is_fenced && qp.executed < sent.count
        })
    }

    pub(crate) fn apply(&mut self, step: SharedBackupStep) {
        match step {
            SharedBackupStep::Start { end } => {
                let e = &mut self.ends[usize::from(end)];
                e.is_started = true;
                e.member.start();
                self.flush(end.into());
            }
            SharedBackupStep::Move => {
                self.limits.moves -= 1;
                self.epoch += 1;
            }
            SharedBackupStep::Learn { end, epoch } => {
                let e = &mut self.ends[usize::from(end)];
                e.epoch = epoch;
                e.member.on_epoch(epoch, rail(epoch));
            }
            SharedBackupStep::Deliver { end } => self.deliver(end.into()),
            SharedBackupStep::Drive { end } => {
                if let Some(step) = self.step_of(end.into()) {
                    self.drive(end.into(), step);
                }
                self.flush(end.into());
            }
            SharedBackupStep::Post { end } => self.post(end.into()),
            SharedBackupStep::Execute { end, epoch } => self.execute_on_own(end.into(), epoch),
            SharedBackupStep::Complete { end } => {
                let e = &mut self.ends[usize::from(end)];
                if let Some(op) = e.completing() {
                    e.ops[op] = Op::Completed;
                }
            }
            SharedBackupStep::ExecuteOnBackup { end } => {
                let e = &mut self.ends[usize::from(end)];
                if let Some(op) = e.first(|op| *op == Op::OnBackup { is_executed: false }) {
                    e.ops[op] = Op::OnBackup { is_executed: true };
                    self.execute(end.into(), op);
                }
            }
            SharedBackupStep::CompleteOnBackup { end } => {
                let e = &mut self.ends[usize::from(end)];
                if let Some(op) = e.first(|op| *op == Op::OnBackup { is_executed: true }) {
                    e.ops[op] = Op::Completed;
                }
            }
            SharedBackupStep::Close { end } => {
                self.limits.closes -= 1;
                self.close(end.into());
                self.flush(end.into());
            }
        }
        self.forget_dead_requests();
        self.check_end();
    }

    fn violate(&mut self, property: &'static str) {
        self.violation.get_or_insert(property);
    }

    /// Puts the messages of an end's state machine on the backup, once the end knows its peer.
    fn flush(&mut self, end: usize) {
        let e = &mut self.ends[end];
        if e.is_started {
            let (epoch, bodies) = (e.epoch, e.member.take_outbox());
            self.ends[1 - end].inbox.extend(bodies.into_iter().map(|body| (epoch, body)));
        }
    }

    fn deliver(&mut self, end: usize) {
        let uses_any_offer = self.lacks(SharedBackupRule::OfferOfThisEpoch);
        let e = &mut self.ends[end];
        let Some((_, mut body)) = e.inbox.pop_front() else { return };
        if let Body::Offered { epoch, qp } = &mut body
            && uses_any_offer
        {
            (*epoch, qp.rail) = (e.epoch, rail(e.epoch));
        }
        // The driver handles Resumed, not the state machine.
        let is_valid = matches!(body, Body::Resumed { .. }) || e.member.handle(body);
        if !is_valid {
            self.violate(ACCEPTED);
        }
    }

    /// Executes a step that the state machine requests.
    fn drive(&mut self, end: usize, step: Step) {
        let (fences, reads_early) =
            (!self.lacks(SharedBackupRule::Fence), self.lacks(SharedBackupRule::EvidenceAfterFence));
        let e = &mut self.ends[end];
        match step {
            Step::Fence => {
                e.uses_own = false;
                let Some(qp) = &mut e.qp else { return };
                if reads_early && qp.early_evidence.is_none() {
                    qp.early_evidence = Some(qp.executed);
                    return;
                }
                (qp.is_fenced, qp.is_evidence_given) = (fences, true);
                let executed = qp.early_evidence.unwrap_or(qp.executed);
                e.member.fenced(evidence(executed), 0);
            }
            Step::Decide(evidence) => self.decide(end, evidence.received),
            Step::Create { .. } => {
                let epoch = e.epoch;
                e.qp = Some(Qp {
                    epoch,
                    peer: None,
                    is_fenced: false,
                    executed: 0,
                    early_evidence: None,
                    is_evidence_given: false,
                });
                e.member.created(qpn(epoch), Psn::new(0));
            }
            Step::Connect(OfferedQp { qpn: peer, .. }) => {
                let Some(qp) = &mut e.qp else { return };
                qp.peer = Some(peer.value() as u16);
                e.member.connected(qpn(qp.epoch), Psn::new(0));
            }
            Step::Switch => {
                e.member.switched();
                e.uses_own = e.member.is_calm();
            }
            Step::Close => self.close(end),
        }
    }

    /// Decides the operations in flight on the own queue pair: the peer's queue pair executed the
    /// first `received` of the sent operations.
    fn decide(&mut self, end: usize, received: u64) {
        let e = &mut self.ends[end];
        let Some(qp) = &e.qp else { return };
        let Sent { first, count, .. } = e.sent[usize::from(qp.epoch)];
        let proven = u64::from(first) + received;
        let mut is_consistent = received <= count.into() && proven <= e.executed.into();
        for op in first..first + count {
            let is_executed = u64::from(op) < proven;
            let op = &mut e.ops[usize::from(op)];
            is_consistent &= is_executed || *op != Op::Completed;
            *op = if is_executed { Op::Completed } else { Op::Pending };
        }
        e.member.decided(0);
        if !is_consistent {
            self.violate(DECIDED);
        }
    }

    fn post(&mut self, end: usize) {
        let is_own = self.posts_on_own(end);
        let e = &mut self.ends[end];
        let (Some(op), qp) = (e.first(|op| *op == Op::Pending), &e.qp) else { return };
        e.ops[op] = Op::OnBackup { is_executed: false };
        if let Some(Qp { epoch, peer: Some(to), .. }) = *qp
            && is_own
        {
            e.ops[op] = Op::OnOwn { epoch };
            let sent = &mut e.sent[usize::from(epoch)];
            if sent.count == 0 {
                *sent = Sent { first: op as u8, count: 0, to };
            }
            sent.count += 1;
        }
    }

    /// Lets the peer's queue pair execute the next operation that an end sent in an epoch.
    fn execute_on_own(&mut self, end: usize, epoch: u16) {
        let first = self.ends[end].sent[usize::from(epoch)].first;
        let Some(qp) = &mut self.ends[1 - end].qp else { return };
        let op = first + qp.executed;
        qp.executed += 1;
        if qp.is_evidence_given {
            self.violate(FENCED);
        }
        self.execute(end, op.into());
    }

    fn execute(&mut self, end: usize, op: usize) {
        let e = &mut self.ends[end];
        if op != usize::from(e.executed) {
            return self.violate(EXACTLY_ONCE);
        }
        e.executed += 1;
    }

    /// Closes an end. Its queue pair executes nothing more.
    fn close(&mut self, end: usize) {
        let e = &mut self.ends[end];
        let last = e.qp.take().filter(|qp| !qp.is_evidence_given);
        (e.is_closed, e.uses_own) = (true, false);
        e.member.closed(last.map(|qp| (qp.epoch, evidence(qp.executed))));
    }

    /// Removes the requests that can no longer be executed or decided. Worlds that differ only in
    /// such requests are then equal.
    fn forget_dead_requests(&mut self) {
        for end in 0..2 {
            let [own, peer] = [end, 1 - end].map(|end| self.ends[end].qp.clone());
            for (epoch, sent) in (0u16..).zip(&mut self.ends[end].sent) {
                let is_own = own.as_ref().is_some_and(|qp| qp.epoch == epoch);
                let may_arrive = peer.as_ref().is_some_and(|qp| qp.epoch == sent.to && !qp.is_fenced);
                if !is_own && !may_arrive {
                    *sent = Sent::default();
                }
            }
        }
    }

    /// Checks a world in which nothing happens any more unless a rail fails or the application
    /// closes an end.
    fn check_end(&mut self) {
        if !self.steps().0.is_empty() {
            return;
        }
        let is_closed = |e: &End| e.is_closed;
        let is_done =
            |e: &End| e.ops.iter().all(|op| *op == Op::Completed) && e.uses_own && e.member.is_calm();
        let is_closing = self.ends.iter().any(is_closed);
        if !(if is_closing { self.ends.iter().all(is_closed) } else { self.ends.iter().all(is_done) }) {
            self.violate(ENDS);
        }
    }
}

/// The rail of the backup in an epoch.
fn rail(epoch: u16) -> u8 {
    (epoch % 2) as u8
}

/// The number by which the peer names an end's queue pair of an epoch.
fn qpn(epoch: u16) -> Qpn {
    Qpn::new(epoch.into())
}

fn evidence(executed: u8) -> Evidence {
    Evidence { received: executed.into(), ..Evidence::default() }
}
