//! Tests that the verdict reports every fault of an endpoint, and no fault of a correct endpoint.
//! The endpoint executes operations directly in the peer's memory, and injects one fault.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use mitra_sim::workload::{
    Endpoint, EndpointCompletion, Op, OpKind, Plan, RECV_WR_FLAG, ReportedOutcome, Verdict, WorkloadPeer,
    verify,
};
use mitra_verbs::{Buffer, Data, Key, Mr, MrId, PdId, PostError, RecvWr, SendOp, SendWr, Sge};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Reports success without executing the operation.
    NotExecuted,
    /// Executes the operation again, after the responder could consume it.
    ExecutedTwice,
    /// Executes the operation with changed data.
    Corrupted,
    /// Writes the first half of the data again, after the responder could consume the block.
    HalfRepeated,
    /// Completes the operation before earlier operations.
    CompletedEarly,
    /// Writes to the requester's memory after the operation has completed.
    LateLocalWrite,
    /// Executes the operation and reports the outcome as unknown.
    ReportedUnknown,
    /// Executes the operation and reports that it was not executed.
    ReportedNotExecuted,
    /// Executes the operation and reports that the returned value is lost.
    ReportedValueLost,
}

#[derive(Default)]
struct Channel {
    receives: VecDeque<RecvWr>,
    completions: Vec<EndpointCompletion>,
    /// Requests that are executed later, each with the number of polls until then.
    delayed: VecDeque<(u32, SendWr)>,
}

struct FaultyEndpoint {
    index: usize,
    memory: [Arc<Buffer>; 2],
    channels: [Rc<RefCell<Channel>>; 2],
    fault: Fault,
    /// The `wr_id` of the operation with the fault.
    target: u64,
}

const BASE: u64 = 0x10_0000;

impl FaultyEndpoint {
    fn gather(&self, data: &Data) -> Vec<u8> {
        match data {
            Data::Inline(bytes) => bytes.to_vec(),
            Data::Sges(sges) => sges
                .iter()
                .flat_map(|s| {
                    let mut out = vec![0; s.len as usize];
                    self.memory[self.index].read_at((s.addr - BASE) as usize, &mut out);
                    out
                })
                .collect(),
        }
    }

    fn local(&self, data: &Data) -> Sge {
        match data {
            Data::Sges(sges) => sges[0],
            Data::Inline(_) => panic!("operations with a result have no inline data"),
        }
    }

    fn receive(&self, bytes: &[u8], imm: Option<u32>, byte_len: usize) {
        let mut channel = self.channels[1 - self.index].borrow_mut();
        let wr = channel.receives.pop_front().expect("the responder keeps receives posted");
        if !bytes.is_empty() {
            self.memory[1 - self.index].write_at((wr.sges[0].addr - BASE) as usize, bytes);
        }
        channel.completions.push(EndpointCompletion {
            wr_id: wr.wr_id,
            outcome: ReportedOutcome::Success,
            byte_len: byte_len as u32,
            imm,
            invalidated: None,
        });
    }

    fn execute(&self, wr: &SendWr, mut bytes: Vec<u8>, corrupt: bool) {
        let remote = &self.memory[1 - self.index];
        if corrupt && !bytes.is_empty() {
            bytes[0] ^= 1;
        }
        let offset = |addr: u64| (addr - BASE) as usize;
        match wr.op {
            SendOp::Write(r) => remote.write_at(offset(r.addr), &bytes),
            SendOp::WriteWithImm(r, imm) => {
                remote.write_at(offset(r.addr), &bytes);
                self.receive(&[], Some(imm), bytes.len());
            }
            SendOp::Send => self.receive(&bytes, None, bytes.len()),
            SendOp::SendWithImm(imm) => self.receive(&bytes, Some(imm), bytes.len()),
            SendOp::Read(r) => {
                let sge = self.local(&wr.data);
                let mut read = vec![0; sge.len as usize];
                remote.read_at(offset(r.addr), &mut read);
                read[0] ^= u8::from(corrupt);
                self.memory[self.index].write_at(offset(sge.addr), &read);
            }
            SendOp::FetchAdd { remote: r, add } => {
                let old = remote.load(offset(r.addr));
                remote.store(offset(r.addr), old + add);
                self.memory[self.index].store(offset(self.local(&wr.data).addr), old + u64::from(corrupt));
            }
            SendOp::CompareSwap { remote: r, compare, swap } => {
                let old = remote.load(offset(r.addr));
                if old == compare {
                    remote.store(offset(r.addr), swap);
                }
                self.memory[self.index].store(offset(self.local(&wr.data).addr), old + u64::from(corrupt));
            }
            _ => panic!("a plan has no {wr:?}"),
        }
    }
}

impl Endpoint for FaultyEndpoint {
    fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        let fault = if wr.wr_id == self.target { self.fault } else { Fault::None };
        let bytes = if wr.op.is_read_or_atomic() { Vec::new() } else { self.gather(&wr.data) };
        if fault != Fault::NotExecuted {
            self.execute(&wr, bytes.clone(), fault == Fault::Corrupted);
        }
        let again = |bytes: &[u8]| SendWr { data: Data::inline(bytes), ..wr.clone() };
        let mut channel = self.channels[self.index].borrow_mut();
        match fault {
            Fault::ExecutedTwice if wr.op.is_read_or_atomic() => channel.delayed.push_back((40, wr.clone())),
            Fault::ExecutedTwice => channel.delayed.push_back((40, again(&bytes))),
            Fault::HalfRepeated => channel.delayed.push_back((40, again(&bytes[..bytes.len() / 2]))),
            Fault::LateLocalWrite => {
                channel.delayed.push_back((40, SendWr::new(0, SendOp::Send, wr.data.clone())))
            }
            _ => {}
        }
        let outcome = match fault {
            Fault::ReportedUnknown => ReportedOutcome::Unknown,
            Fault::ReportedNotExecuted => ReportedOutcome::NotExecuted,
            Fault::ReportedValueLost => ReportedOutcome::Executed,
            _ => ReportedOutcome::Success,
        };
        let completion =
            EndpointCompletion { wr_id: wr.wr_id, outcome, byte_len: 0, imm: None, invalidated: None };
        if fault == Fault::CompletedEarly && !channel.completions.is_empty() {
            channel.completions.insert(0, completion);
        } else {
            channel.completions.push(completion);
        }
        Ok(())
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.channels[self.index].borrow_mut().receives.push_back(wr);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<EndpointCompletion>) {
        let mut channel = self.channels[self.index].borrow_mut();
        out.append(&mut channel.completions);
        let delayed: Vec<SendWr> = channel
            .delayed
            .iter_mut()
            .filter_map(|(polls_left, wr)| {
                *polls_left = polls_left.saturating_sub(1);
                (*polls_left == 0).then(|| wr.clone())
            })
            .collect();
        channel.delayed.retain(|(polls_left, _)| *polls_left > 0);
        drop(channel);
        for wr in delayed {
            if wr.wr_id == 0 {
                let offset = (self.local(&wr.data).addr - BASE) as usize;
                self.memory[self.index].write_at(offset, &[1]);
            } else {
                let bytes = if wr.op.is_read_or_atomic() { Vec::new() } else { self.gather(&wr.data) };
                self.execute(&wr, bytes, false);
            }
        }
    }
}

fn run(plan: &Plan, fault: Fault, target: u64) -> Verdict {
    let mut empty = Plan::new(0, 0);
    empty.max_len = plan.max_len;
    let mut peers = [WorkloadPeer::new(plan, &empty), WorkloadPeer::new(&empty, plan)];
    let memory = [0, 1].map(|i: usize| Arc::clone(peers[i].memory()));
    for (peer, buffer) in peers.iter_mut().zip(&memory) {
        let (len, key) = (buffer.len() as u64, Key(1));
        let mr = Mr { id: MrId(0), pd: PdId(0), addr: BASE, len, lkey: key, rkey: key };
        peer.connect(mr, mr.remote(0));
    }
    let channels = [0, 1].map(|_| Rc::new(RefCell::new(Channel::default())));
    let mut endpoints = [0, 1].map(|index| FaultyEndpoint {
        index,
        memory: memory.clone(),
        channels: channels.clone(),
        fault,
        target,
    });
    // The responder runs first, so that its receives are posted.
    for round in 0..20_000 {
        for i in [1, 0] {
            peers[i].step(&mut endpoints[i]);
        }
        if peers[0].is_done() && endpoints[0].channels[0].borrow().delayed.is_empty() && round > 400 {
            break;
        }
    }
    assert!(peers[0].is_done(), "the plan did not finish");
    for (peer, endpoint) in peers.iter_mut().zip(&mut endpoints) {
        peer.step(endpoint); // the peer handles its last completions
        peer.sweep();
    }
    verify(plan, peers[0].requester_log(), peers[1].responder_log())
}

fn plan(seed: u64) -> Plan {
    Plan { unsignalled_ppm: 0, ..Plan::new(seed, 120) }
}

fn target_op(plan: &Plan, kind: OpKind) -> Option<Op> {
    // Takes the third operation of the kind. Other operations normally follow it, and some faults
    // are detected only by later operations.
    plan.ops().into_iter().filter(|op| op.kind == kind && !op.inline).nth(2)
}

#[test]
fn correct_runs_have_an_exact_verdict() {
    for seed in 0..20 {
        let plan = Plan::new(seed, 150);
        let verdict = run(&plan, Fault::None, 0);
        assert!(verdict.is_complete(), "seed {seed}\n{verdict}");
        assert_eq!(verdict.total().posted, 150);
        assert!(verdict.problems.is_empty());
    }
}

#[test]
fn each_fault_is_counted_in_its_category() {
    use Fault::*;
    for seed in 0..8 {
        let plan = plan(seed);
        for kind in OpKind::ALL {
            let Some(op) = target_op(&plan, kind) else { continue };
            for fault in [
                NotExecuted,
                ExecutedTwice,
                Corrupted,
                HalfRepeated,
                CompletedEarly,
                LateLocalWrite,
                ReportedUnknown,
                ReportedNotExecuted,
                ReportedValueLost,
            ] {
                if fault == HalfRepeated && kind != OpKind::Block {
                    continue;
                }
                let verdict = run(&plan, fault, op.id);
                let t = *verdict.of(kind);
                let label = format!("seed {seed} {fault:?} {op:?}\n{verdict}");
                match (fault, kind) {
                    // A READ has no effect at the responder, so only its content can be wrong.
                    (NotExecuted, OpKind::Read) => assert!(t.wrong_value == 1, "{label}"),
                    (NotExecuted, OpKind::CompareSwap) => {
                        assert!(t.lost == 1 && t.wrong_value == 1, "{label}")
                    }
                    (NotExecuted, _) => assert!(t.lost == 1, "{label}"),
                    (ExecutedTwice, OpKind::Read) => assert!(verdict.strays > 0, "{label}"),
                    (ExecutedTwice, _) => assert!(t.doubled >= 1, "{label}"),
                    (Corrupted, OpKind::WriteImm | OpKind::Block | OpKind::Read | OpKind::FetchAdd) => {
                        assert!(t.wrong_value >= 1, "{label}");
                    }
                    (Corrupted, _) => assert!(t.wrong_value >= 1 || t.lost == 1, "{label}"),
                    (HalfRepeated, _) => assert!(t.doubled == 1, "{label}"),
                    (CompletedEarly, _) => assert!(t.out_of_order <= 1, "{label}"),
                    (LateLocalWrite, _) => assert!(verdict.strays > 0, "{label}"),
                    (ReportedUnknown, _) => assert!(t.unknown == 1 && verdict.is_exact(), "{label}"),
                    (ReportedNotExecuted, OpKind::Read) => assert!(verdict.is_exact(), "{label}"),
                    (ReportedNotExecuted, _) => assert!(t.doubled == 1 && t.not_executed == 1, "{label}"),
                    (ReportedValueLost, _) => assert!(t.executed == 1 && verdict.is_exact(), "{label}"),
                    (None, _) => continue,
                }
                let allowed = matches!(fault, ReportedUnknown | ReportedValueLost | CompletedEarly)
                    || (fault, kind) == (ReportedNotExecuted, OpKind::Read);
                assert_eq!(verdict.is_exact(), allowed && t.out_of_order == 0, "{label}");
                assert!(verdict.is_exact() || !verdict.problems.is_empty(), "{label}");
            }
        }
    }
}

#[test]
fn early_completion_is_detected() {
    let observed = (0..20).filter(|&seed| {
        let plan = plan(seed);
        let op = target_op(&plan, OpKind::Write).unwrap();
        run(&plan, Fault::CompletedEarly, op.id).of(OpKind::Write).out_of_order > 0
    });
    assert!(observed.count() > 3);
}

#[test]
fn receive_ids_differ_from_operation_ids() {
    assert!(plan(1).ops().iter().all(|op| op.id & RECV_WR_FLAG == 0));
}
