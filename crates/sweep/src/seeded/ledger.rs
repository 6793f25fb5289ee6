//! The ledger of a virtual queue pair without NICs and data. A message of 1 GiB costs nothing here,
//! so the operations in flight can come closer to a quarter of the PSN space than in a world of
//! hosts.
//!
//! A model knows which packets each rail executed. After each failure, the ledger must send exactly
//! the part of each operation that was not executed, and give each atomic its own value.

use std::collections::VecDeque;

use mitra_failover::operation_ledger::{Evidence, Ledger, Placed, RecoveryInput};
use mitra_failover::{Outcome, Policy, UnresolvedError, WritePolicy};
use mitra_verbs::{Data, Key, Mtu, Psn, RemoteAddr, SavedResult, SendOp, SendWr, Sge, WcStatus};

use super::{Finding, SeedRun};
use mitra_sim::Prng;

/// The longest message, in bytes.
const LONGEST: u64 = 1 << 30;
/// The number of rails that fail one after the other.
const FAILURES: u64 = 12;

#[derive(Clone, Debug)]
struct Known {
    kind: Kind,
    len: u64,
    /// The bytes of a WRITE that earlier rails have executed.
    executed: u64,
    /// How often the whole operation was executed. A READ may be repeated.
    times: u32,
}

/// A request on the active rail.
#[derive(Clone, Debug)]
struct Carried {
    seq: u64,
    kind: Kind,
    /// The number of packets that the rail carried before this request.
    first: u64,
    packets: u64,
    has_entry: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    WriteImm,
    Send,
    Read,
    Atomic,
}

struct Model {
    ledger: Ledger,
    mtu: Mtu,
    log: bool,
    saved_results: usize,
    first_psn: Psn,
    /// The packets that were sent on the active rail.
    sent: u64,
    carried: VecDeque<Carried>,
    operations: Vec<Known>,
    findings: Vec<Finding>,
}

pub(super) fn run(seed: u64, _kept_records: usize) -> SeedRun {
    let rng = &mut Prng::stream(seed, "ledger");
    let mut model = Model::new(rng);
    for _ in 0..FAILURES {
        for _ in 0..rng.between(1, 12) {
            model.push(rng);
            if rng.below(3) == 0 {
                model.post();
            }
        }
        model.post();
        model.fail(rng);
        if !model.findings.is_empty() {
            break;
        }
    }
    model.findings.extend(refuse_durably(&mut Prng::stream(seed, "durable ledger")));
    let operations = model.operations.len() as u64;
    SeedRun { operations, faults: FAILURES, findings: model.findings, ..SeedRun::default() }
}

impl Model {
    fn new(rng: &mut Prng) -> Model {
        let mtu = *rng.pick(&[Mtu::M256, Mtu::M256, Mtu::M1024, Mtu::M4096]);
        let (rd_atomic, log) = (rng.between(1, 8) as u8, rng.below(3) == 0);
        let first_psn = Psn::new(rng.bits() as u32);
        Model {
            ledger: Ledger::new(64, rd_atomic, log, mtu, first_psn),
            mtu,
            log,
            saved_results: rd_atomic.into(),
            first_psn,
            sent: 0,
            carried: VecDeque::new(),
            operations: Vec::new(),
            findings: Vec::new(),
        }
    }

    fn found(&mut self, checker: &'static str, text: String) {
        self.findings.push(Finding::violation(checker, text));
    }

    fn push(&mut self, rng: &mut Prng) {
        if !self.ledger.has_room() {
            return;
        }
        let longest = if rng.below(3) == 0 { LONGEST } else { 1 << rng.between(0, 20) };
        let len = rng.below(longest + 1);
        let at = RemoteAddr { addr: 0, rkey: Key(1) };
        let (kind, op, len) = match rng.below(5) {
            0 => (Kind::Write, SendOp::Write(at), len),
            1 => (Kind::WriteImm, SendOp::WriteWithImm(at, 7), len),
            2 => (Kind::Send, SendOp::Send, len),
            3 => (Kind::Read, SendOp::Read(at), len),
            _ => (Kind::Atomic, SendOp::FetchAdd { remote: at, add: 1 }, 8),
        };
        let data = Data::sge(Sge { addr: 0, len: len as u32, key: Key(2) });
        self.ledger.push(SendWr::new(9, op, data), WritePolicy::Strict);
        self.operations.push(Known { kind, len, executed: 0, times: 0 });
    }

    fn post(&mut self) {
        while let Some(posting) = self.ledger.next_posting() {
            let (seq, len, has_entry) = (posting.wr.wr_id, posting.wr.data.len(), posting.log_seq.is_some());
            let begins_at = match posting.wr.op {
                SendOp::Write(at) | SendOp::WriteWithImm(at, _) => at.addr,
                _ => 0,
            };
            let known = &self.operations[seq as usize];
            let kind = known.kind;
            let packets = if kind == Kind::Atomic { 1 } else { self.mtu.packets(len) };
            let is_rest = begins_at == known.executed && len == known.len - known.executed;
            if !is_rest || known.times > 0 && kind != Kind::Read {
                self.found(
                    "rest",
                    format!("operation {seq}: {len} bytes from {begins_at} on were sent; {known:?}"),
                );
            }
            self.carried.push_back(Carried { seq, kind, first: self.sent, packets, has_entry });
            self.sent += packets + u64::from(has_entry);
        }
    }

    /// Lets the responder execute some packets, polls some completions, and fails the rail.
    fn fail(&mut self, rng: &mut Prng) {
        let executed = match rng.below(4) {
            0 => self.sent,
            _ => rng.below(self.sent + 1),
        };
        let whole = self.carried.iter().filter(|op| op.first + op.packets <= executed).count();
        let polled = rng.below(whole as u64 + 1) as usize;
        for op in self.carried.iter().take(whole) {
            self.operations[op.seq as usize].times += 1;
        }
        for op in self.carried.iter().take(polled) {
            self.ledger.complete(op.seq, 0);
        }
        let evidence = self.evidence(executed);
        let mut values = Vec::new();
        self.pop();
        if let Some(torn) = self.carried.get(whole)
            && matches!(torn.kind, Kind::Write | Kind::WriteImm)
        {
            let bytes = executed.saturating_sub(torn.first) * self.mtu.bytes() as u64;
            self.operations[torn.seq as usize].executed += bytes;
        }
        self.first_psn = Psn::new(rng.bits() as u32);
        let input = RecoveryInput {
            policy: Policy::Exact,
            evidence: &evidence,
            local_placed: true,
            acks_after_placement: true,
            first_psn: self.first_psn,
            durable: false,
        };
        if let Err(contradiction) = self.ledger.decide(&input, &mut values) {
            let text = format!("{contradiction}: {executed} of {} packets executed; {evidence:?}", self.sent);
            return self.found("contradiction", text);
        }
        for value in values {
            if value.value != value_of(value.seq) {
                self.found("value", format!("atomic {} got the value {}", value.seq, value.value));
            }
        }
        self.carried.clear();
        self.sent = 0;
        self.pop();
    }

    /// Returns the evidence of a responder that has executed this number of packets.
    fn evidence(&self, executed: u64) -> Evidence {
        let whole = || self.carried.iter().filter(|op| op.first + op.packets <= executed);
        let atomics: Vec<_> = whole().filter(|op| op.kind == Kind::Atomic).collect();
        let saved = atomics.iter().rev().take(self.saved_results).rev();
        let mut entries = whole().filter(|op| op.has_entry && op.first + op.packets < executed);
        let received = whole().filter(|op| matches!(op.kind, Kind::Send | Kind::WriteImm));
        Evidence {
            psn: Some(self.psn(executed)),
            log: if self.log { entries.next_back().map(|op| op.seq) } else { None },
            received: received.count() as u64,
            saved: saved.map(|op| SavedResult { psn: self.psn(op.first), value: value_of(op.seq) }).collect(),
            ..Evidence::default()
        }
    }

    fn psn(&self, packets: u64) -> Psn {
        self.first_psn.add((packets % (1 << 24)) as u32)
    }

    /// Takes the completions. Each operation must have succeeded, and only a READ may have been
    /// executed more than once.
    fn pop(&mut self) {
        while let Some(completion) = self.ledger.pop() {
            let (seq, outcome) = (completion.seq, completion.outcome);
            let Known { kind, times, .. } = self.operations[seq as usize];
            let is_once = times == 1 || kind == Kind::Read && times > 0;
            if outcome == Outcome::Unresolved(UnresolvedError::ValueLost) {
                self.found("value", format!("the value of operation {seq} is lost"));
            } else if outcome != Outcome::Success || !is_once {
                let text =
                    format!("operation {seq}, {kind:?}, ended as {outcome:?} and was executed {times} times");
                self.found("outcome", text);
            }
        }
    }
}

/// Lets the peer refuse a request in mode `durable`. The peer confirms some earlier requests before
/// the refusal, and some after the refusal. Only confirmed requests may succeed.
fn refuse_durably(rng: &mut Prng) -> Option<Finding> {
    let mut ledger = Ledger::new(64, 1, true, Mtu::M1024, Psn::new(0));
    ledger.set_durable(true);
    let at = RemoteAddr { addr: 0, rkey: Key(1) };
    let messages: Vec<bool> = (0..rng.between(2, 12)).map(|_| rng.below(2) == 0).collect();
    for &is_message in &messages {
        let op = if is_message { SendOp::Send } else { SendOp::Write(at) };
        ledger.push(SendWr::new(9, op, Data::empty()), WritePolicy::Strict);
    }
    while ledger.next_posting().is_some() {}
    let refused = rng.index(messages.len());
    let first = rng.index(refused + 1);
    let then = first + rng.index(refused + 1 - first);
    let ends_queue = rng.below(2) == 0;
    for (step, confirmed) in [first, first, then].into_iter().enumerate() {
        let log = (0..confirmed).rev().find(|&seq| !messages[seq]).map(|seq| seq as u64);
        let received = messages[..confirmed].iter().filter(|&&is_message| is_message).count() as u64;
        match step {
            1 if ends_queue => {
                ledger.fail(refused as u64, WcStatus::RemoteAccess, UnresolvedError::Indeterminate)
            }
            1 => ledger.refuse(refused as u64, WcStatus::RemoteAccess),
            _ => ledger.confirm(Placed { log, received }),
        }
        let mut ended = core::iter::from_fn(|| ledger.pop());
        let early = ended.find(|c| c.outcome == Outcome::Success && c.seq >= confirmed as u64);
        if let Some(early) = early {
            let text =
                format!("operation {} succeeded, and the peer has seen {confirmed}; {messages:?}", early.seq);
            return Some(Finding::violation("early", text));
        }
    }
    None
}

fn value_of(seq: u64) -> u64 {
    seq.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
