//! The judge finds what is wrong and nothing else: over an endpoint that is memory and nothing more, which can be told
//! to misbehave.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use mitra_sim::workload::{Done, Ending, Endpoint, Kind, Op, Party, Plan, RECEIVE, Verdict, judge};
use mitra_verbs::{Buffer, Data, Key, Mr, MrId, PdId, PostError, RecvWr, SendOp, SendWr, Sge};

/// What the wire does to one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mischief {
    None,
    /// Says that it was executed, and does not execute it.
    Lose,
    /// Executes it once more, after the reader has had time to consume it.
    Twice,
    /// Executes it, changed.
    Change,
    /// Executes only half of it, once more, late.
    HalfAgain,
    /// Completes it before the one before it.
    Overtake,
    /// Writes into the requester's memory after it has completed.
    TouchLate,
    /// Executes it, and says that it does not know.
    Doubt,
    /// Executes it, and says that it did not.
    Deny,
    /// Executes it, and says that the value is lost.
    Forget,
}

#[derive(Default)]
struct Wire {
    receives: VecDeque<RecvWr>,
    done: Vec<Done>,
    late: VecDeque<(u32, SendWr)>,
}

struct End {
    me: usize,
    memory: [Arc<Buffer>; 2],
    wires: [Rc<RefCell<Wire>>; 2],
    mischief: Mischief,
    target: u64,
}

const BASE: u64 = 0x10_0000;

impl End {
    fn gather(&self, data: &Data) -> Vec<u8> {
        match data {
            Data::Inline(bytes) => bytes.to_vec(),
            Data::Sges(sges) => sges
                .iter()
                .flat_map(|s| {
                    let mut out = vec![0; s.len as usize];
                    self.memory[self.me].read_at((s.addr - BASE) as usize, &mut out);
                    out
                })
                .collect(),
        }
    }

    fn local(&self, data: &Data) -> Sge {
        match data {
            Data::Sges(sges) => sges[0],
            Data::Inline(_) => panic!("no inline data here"),
        }
    }

    fn receive(&self, bytes: &[u8], imm: Option<u32>, byte_len: usize) {
        let mut wire = self.wires[1 - self.me].borrow_mut();
        let wr = wire.receives.pop_front().expect("a receive is posted");
        if !bytes.is_empty() {
            self.memory[1 - self.me].write_at((wr.sges[0].addr - BASE) as usize, bytes);
        }
        wire.done.push(Done { wr_id: wr.wr_id, ending: Ending::Success, byte_len: byte_len as u32, imm });
    }

    fn execute(&self, wr: &SendWr, mut bytes: Vec<u8>, change: bool) {
        let remote = &self.memory[1 - self.me];
        if change && !bytes.is_empty() {
            bytes[0] ^= 1;
        }
        let at = |addr: u64| (addr - BASE) as usize;
        match wr.op {
            SendOp::Write(r) => remote.write_at(at(r.addr), &bytes),
            SendOp::WriteWithImm(r, imm) => {
                remote.write_at(at(r.addr), &bytes);
                self.receive(&[], Some(imm), bytes.len());
            }
            SendOp::Send => self.receive(&bytes, None, bytes.len()),
            SendOp::SendWithImm(imm) => self.receive(&bytes, Some(imm), bytes.len()),
            SendOp::Read(r) => {
                let sge = self.local(&wr.data);
                let mut got = vec![0; sge.len as usize];
                remote.read_at(at(r.addr), &mut got);
                got[0] ^= u8::from(change);
                self.memory[self.me].write_at(at(sge.addr), &got);
            }
            SendOp::FetchAdd { remote: r, add } => {
                let old = remote.load(at(r.addr));
                remote.store(at(r.addr), old + add);
                self.memory[self.me].store(at(self.local(&wr.data).addr), old + u64::from(change));
            }
            SendOp::CompareSwap { remote: r, compare, swap } => {
                let old = remote.load(at(r.addr));
                if old == compare {
                    remote.store(at(r.addr), swap);
                }
                self.memory[self.me].store(at(self.local(&wr.data).addr), old + u64::from(change));
            }
            _ => panic!("{wr:?} is in no plan"),
        }
    }
}

impl Endpoint for End {
    fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        let mischief = if wr.wr_id == self.target { self.mischief } else { Mischief::None };
        let bytes = if wr.op.is_read_or_atomic() { Vec::new() } else { self.gather(&wr.data) };
        if mischief != Mischief::Lose {
            self.execute(&wr, bytes.clone(), mischief == Mischief::Change);
        }
        let again = |bytes: &[u8]| SendWr { data: Data::inline(bytes), ..wr.clone() };
        let mut wire = self.wires[self.me].borrow_mut();
        match mischief {
            Mischief::Twice if wr.op.is_read_or_atomic() => wire.late.push_back((40, wr.clone())),
            Mischief::Twice => wire.late.push_back((40, again(&bytes))),
            Mischief::HalfAgain => wire.late.push_back((40, again(&bytes[..bytes.len() / 2]))),
            Mischief::TouchLate => wire.late.push_back((40, SendWr::new(0, SendOp::Send, wr.data.clone()))),
            _ => {}
        }
        let ending = match mischief {
            Mischief::Doubt => Ending::Unknown,
            Mischief::Deny => Ending::NotExecuted,
            Mischief::Forget => Ending::Executed,
            _ => Ending::Success,
        };
        let done = Done { wr_id: wr.wr_id, ending, byte_len: 0, imm: None };
        if mischief == Mischief::Overtake && !wire.done.is_empty() {
            wire.done.insert(0, done);
        } else {
            wire.done.push(done);
        }
        Ok(())
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.wires[self.me].borrow_mut().receives.push_back(wr);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Done>) {
        let mut wire = self.wires[self.me].borrow_mut();
        out.append(&mut wire.done);
        let late: Vec<SendWr> = wire
            .late
            .iter_mut()
            .filter_map(|(wait, wr)| {
                *wait = wait.saturating_sub(1);
                (*wait == 0).then(|| wr.clone())
            })
            .collect();
        wire.late.retain(|(wait, _)| *wait > 0);
        drop(wire);
        for wr in late {
            if wr.wr_id == 0 {
                let at = (self.local(&wr.data).addr - BASE) as usize;
                self.memory[self.me].write_at(at, &[1]);
            } else {
                let bytes = if wr.op.is_read_or_atomic() { Vec::new() } else { self.gather(&wr.data) };
                self.execute(&wr, bytes, false);
            }
        }
    }
}

fn run(plan: &Plan, mischief: Mischief, target: u64) -> Verdict {
    let mut quiet = Plan::new(0, 0);
    quiet.max_len = plan.max_len;
    let mut parties = [Party::new(plan, &quiet), Party::new(&quiet, plan)];
    let memory = [0, 1].map(|i: usize| Arc::clone(parties[i].memory()));
    for (party, buffer) in parties.iter_mut().zip(&memory) {
        let (len, key) = (buffer.len() as u64, Key(1));
        let mr = Mr { id: MrId(0), pd: PdId(0), addr: BASE, len, lkey: key, rkey: key };
        party.connect(mr, mr.remote(0));
    }
    let wires = [0, 1].map(|_| Rc::new(RefCell::new(Wire::default())));
    let mut ends =
        [0, 1].map(|me| End { me, memory: memory.clone(), wires: wires.clone(), mischief, target });
    // The responder first, so that receives are posted.
    for turn in 0..20_000 {
        for i in [1, 0] {
            parties[i].step(&mut ends[i]);
        }
        if parties[0].is_done() && ends[0].wires[0].borrow().late.is_empty() && turn > 400 {
            break;
        }
    }
    assert!(parties[0].is_done(), "the plan never ended");
    for party in &mut parties {
        party.step(&mut ends[0]); // nothing is left to happen but polling
        party.sweep();
    }
    judge(plan, parties[0].asked(), parties[1].seen())
}

fn plan(seed: u64) -> Plan {
    Plan { unsignalled_ppm: 0, ..Plan::new(seed, 120) }
}

fn targets(plan: &Plan, kind: Kind) -> Option<Op> {
    // Not the last one: what comes after it must be there to be judged.
    plan.ops().into_iter().filter(|op| op.kind == kind && !op.inline).nth(2)
}

#[test]
fn what_is_right_is_called_right() {
    for seed in 0..20 {
        let plan = Plan::new(seed, 150);
        let verdict = run(&plan, Mischief::None, 0);
        assert!(verdict.is_complete(), "seed {seed}\n{verdict}");
        assert_eq!(verdict.total().posted, 150);
        assert!(verdict.problems.is_empty());
    }
}

#[test]
fn each_wrong_is_named_and_counted_as_what_it_is() {
    use Mischief::*;
    for seed in 0..8 {
        let plan = plan(seed);
        for kind in Kind::ALL {
            let Some(op) = targets(&plan, kind) else { continue };
            for mischief in [Lose, Twice, Change, HalfAgain, Overtake, TouchLate, Doubt, Deny, Forget] {
                if mischief == HalfAgain && kind != Kind::Block {
                    continue;
                }
                let verdict = run(&plan, mischief, op.id);
                let t = *verdict.of(kind);
                let what = format!("seed {seed} {mischief:?} {op:?}\n{verdict}");
                match (mischief, kind) {
                    // A READ has no effect, so that only its content can be wrong.
                    (Lose, Kind::Read) => assert!(t.wrong_value == 1, "{what}"),
                    (Lose, Kind::CompareSwap) => assert!(t.lost == 1 && t.wrong_value == 1, "{what}"),
                    (Lose, _) => assert!(t.lost == 1, "{what}"),
                    (Twice, Kind::Read) => assert!(verdict.strays > 0, "{what}"),
                    (Twice, _) => assert!(t.doubled >= 1, "{what}"),
                    (Change, Kind::WriteImm | Kind::Block | Kind::Read | Kind::FetchAdd) => {
                        assert!(t.wrong_value >= 1, "{what}");
                    }
                    (Change, _) => assert!(t.wrong_value >= 1 || t.lost == 1, "{what}"),
                    (HalfAgain, _) => assert!(t.doubled == 1, "{what}"),
                    (Overtake, _) => assert!(t.out_of_order <= 1, "{what}"),
                    (TouchLate, _) => assert!(verdict.strays > 0, "{what}"),
                    (Doubt, _) => assert!(t.unknown == 1 && verdict.is_exact(), "{what}"),
                    (Deny, Kind::Read) => assert!(verdict.is_exact(), "{what}"),
                    (Deny, _) => assert!(t.doubled == 1 && t.not_executed == 1, "{what}"),
                    (Forget, _) => assert!(t.executed == 1 && verdict.is_exact(), "{what}"),
                    (None, _) => continue,
                }
                let harmless =
                    matches!(mischief, Doubt | Forget | Overtake) || (mischief, kind) == (Deny, Kind::Read);
                assert_eq!(verdict.is_exact(), harmless && t.out_of_order == 0, "{what}");
                assert!(verdict.is_exact() || !verdict.problems.is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn overtaking_is_seen_somewhere() {
    let seen = (0..20).filter(|&seed| {
        let plan = plan(seed);
        let op = targets(&plan, Kind::Write).unwrap();
        run(&plan, Mischief::Overtake, op.id).of(Kind::Write).out_of_order > 0
    });
    assert!(seen.count() > 3);
}

#[test]
fn receives_are_told_from_operations() {
    assert!(plan(1).ops().iter().all(|op| op.id & RECEIVE == 0));
}
