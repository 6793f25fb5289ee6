//! Posts operations, keeps their local bytes, and checks what comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{Buffer, Data, Error, Mr, RemoteAddr, SendFlags, SendOp, SendWr};

use super::plan::{STABLE_ID, content, pattern};
use super::{Done, Ending, Endpoint, Kind, Layout, Op, Plan};

/// What one end asked for, and what it was told.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Asked {
    /// Of each operation of the plan that was posted, in order.
    pub records: Vec<Record>,
    /// Completions that came before one that was posted earlier, came twice, or were of nothing posted.
    pub out_of_order: Vec<u64>,
    /// Local memory that changed after its operation had ended: ids of operations.
    pub late_touches: Vec<u64>,
    /// The error that ended posting.
    pub refused: Option<String>,
}

/// One operation, as its requester knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Record {
    /// How it ended, as far as it did.
    pub ending: Option<Ending>,
    /// The value that an atomic returned.
    pub value: Option<u64>,
    /// Whether a READ brought other bytes than it should.
    pub wrong_content: bool,
}

/// What freed local memory is filled with.
const POISON: u8 = 0xdb;

pub(super) struct Requester {
    ops: Vec<Op>,
    next: usize,
    memory: Arc<Buffer>,
    local: Option<Mr>,
    remote: Option<RemoteAddr>,
    stages_at: usize,
    stage_len: usize,
    /// Places for local bytes: free, with the operation that had it last.
    free: VecDeque<(usize, Option<usize>)>,
    /// In flight, oldest first: operation, place.
    flying: VecDeque<(usize, usize)>,
    depth: usize,
    pub(super) asked: Asked,
}

impl Requester {
    /// Bytes of local memory that a plan needs.
    pub(super) fn memory_len(plan: &Plan) -> usize {
        2 * plan.depth * plan.stage_len()
    }

    pub(super) fn new(plan: &Plan, memory: Arc<Buffer>, stages_at: usize) -> Requester {
        let places = 2 * plan.depth;
        memory.write_at(stages_at, &vec![POISON; Requester::memory_len(plan)]);
        Requester {
            ops: plan.ops(),
            next: 0,
            memory,
            local: None,
            remote: None,
            stages_at,
            stage_len: plan.stage_len(),
            free: (0..places).map(|p| (p, None)).collect(),
            flying: VecDeque::new(),
            depth: plan.depth,
            asked: Asked::default(),
        }
    }

    pub(super) fn connect(&mut self, local: Mr, remote: RemoteAddr) {
        (self.local, self.remote) = (Some(local), Some(remote));
    }

    /// Whether nothing more will be posted and nothing posted is open.
    pub(super) fn is_done(&self) -> bool {
        self.flying.is_empty() && (self.next == self.ops.len() || self.asked.refused.is_some())
    }

    pub(super) fn posted(&self) -> usize {
        self.next
    }

    pub(super) fn ended(&self) -> usize {
        self.next - self.flying.len()
    }

    /// Posts up to `most` operations; how many it were.
    pub(super) fn post(&mut self, endpoint: &mut impl Endpoint, most: usize) -> usize {
        let (Some(local), Some(remote)) = (self.local, self.remote) else { return 0 };
        let mut n = 0;
        while n < most
            && self.next < self.ops.len()
            && self.flying.len() < self.depth
            && self.asked.refused.is_none()
        {
            let op = self.ops[self.next];
            let Some((place, before)) = self.free.pop_front() else { break };
            self.check_poison(place, before);
            let at = self.stages_at + place * self.stage_len;
            let bytes = content(&op);
            if matches!(op.kind, Kind::Write | Kind::Block | Kind::WriteImm | Kind::Send) {
                self.memory.write_at(at, &bytes);
            }
            let data = match op.inline {
                true => Data::inline(&bytes),
                false => Data::sge(local.sge(at as u64, op.len as u32)),
            };
            let target = RemoteAddr { addr: remote.addr + op.offset as u64, rkey: remote.rkey };
            let send = match op.kind {
                Kind::Write | Kind::Block => SendOp::Write(target),
                Kind::WriteImm => SendOp::WriteWithImm(target, op.seq as u32),
                Kind::Send if op.with_imm => SendOp::SendWithImm(op.seq as u32),
                Kind::Send => SendOp::Send,
                Kind::Read => SendOp::Read(target),
                Kind::FetchAdd => SendOp::FetchAdd { remote: target, add: 1 },
                Kind::CompareSwap => SendOp::CompareSwap { remote: target, compare: 0, swap: op.id },
            };
            match endpoint.post(SendWr::new(op.id, send, data).with_flags(op.flags)) {
                Ok(()) => {
                    self.asked.records.push(Record { ending: None, value: None, wrong_content: false });
                    self.flying.push_back((self.next, place));
                    self.next += 1;
                    n += 1;
                }
                Err(e) => {
                    self.poison(place, op.len);
                    self.free.push_front((place, Some(op.seq)));
                    if !matches!(e.error, Error::QueueFull { .. }) {
                        self.asked.refused = Some(format!("operation {}: {e}", op.seq));
                    }
                    break;
                }
            }
        }
        n
    }

    /// An operation has ended, and with it the unsignalled ones before it.
    pub(super) fn done(&mut self, done: Done) {
        let Some(at) = self.flying.iter().position(|&(op, _)| self.ops[op].id == done.wr_id) else {
            self.asked.out_of_order.push(done.wr_id);
            return;
        };
        let signalled = |&(op, _): &(usize, usize)| self.ops[op].flags.contains(SendFlags::SIGNALED);
        if self.flying.iter().take(at).any(signalled) {
            self.asked.out_of_order.push(done.wr_id);
            if let Some((op, place)) = self.flying.remove(at) {
                self.end(op, place, done.ending);
            }
            return;
        }
        // Errors complete whether signalled or not, so what is silently behind us was executed.
        for _ in 0..=at {
            let Some((op, place)) = self.flying.pop_front() else { return };
            let this = self.ops[op].id == done.wr_id;
            self.end(op, place, if this { done.ending } else { Ending::Success });
        }
    }

    /// All has ended, and nothing more will be posted whose completion would tell of the unsignalled ones before it.
    pub(super) fn settle(&mut self) {
        let silent = |&(op, _): &(usize, usize)| !self.ops[op].flags.contains(SendFlags::SIGNALED);
        if self.asked.refused.is_some() && self.flying.iter().all(silent) {
            while let Some((op, place)) = self.flying.pop_front() {
                self.end(op, place, Ending::Success);
            }
        }
    }

    fn end(&mut self, number: usize, place: usize, ending: Ending) {
        let op = self.ops[number];
        let at = self.stages_at + place * self.stage_len;
        let record = &mut self.asked.records[number];
        record.ending = Some(ending);
        if ending == Ending::Success {
            match op.kind {
                Kind::FetchAdd | Kind::CompareSwap => record.value = Some(self.memory.load(at)),
                Kind::Read => {
                    let (mut got, mut want) = (vec![0; op.len], vec![0; op.len]);
                    self.memory.read_at(at, &mut got);
                    pattern(STABLE_ID, op.offset - Layout::stable_at(self.ops.len()), &mut want);
                    record.wrong_content = got != want;
                }
                _ => {}
            }
        }
        // What has ended touches its memory no more, however it ended: so it is used again at once.
        self.poison(place, op.len);
        self.free.push_back((place, Some(number)));
    }

    fn poison(&self, place: usize, len: usize) {
        self.memory.write_at(self.stages_at + place * self.stage_len, &vec![POISON; len]);
    }

    fn check_poison(&mut self, place: usize, before: Option<usize>) {
        let Some(before) = before else { return };
        let op = self.ops[before];
        let mut bytes = vec![0; op.len];
        self.memory.read_at(self.stages_at + place * self.stage_len, &mut bytes);
        if bytes.iter().any(|&b| b != POISON) {
            self.asked.late_touches.push(op.id);
            self.poison(place, op.len);
        }
    }

    /// The last look at the local memory of operations that have ended.
    pub(super) fn sweep(&mut self) {
        for (place, before) in self.free.clone() {
            self.check_poison(place, before);
        }
    }
}
