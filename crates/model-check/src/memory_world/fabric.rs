//! The simulated NICs and network between processes and a memory node. Bytes of WRITEs and READs
//! move one piece at a time, in any order. A request of a broken connection may still be executed,
//! until the memory node closes its end, and one piece even afterwards, because the NIC may finish
//! a packet that it has begun.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mitra_consensus::ProcessId;
use mitra_consensus_memory::{ClientLink, NodeNic};
use mitra_prng::Prng;
use mitra_verbs::{Access, Buffer, Ended};

/// The number of bytes of a WRITE or a READ that move in one step.
const PIECE_BYTES: usize = 8;
/// The number of work requests that a queue pair takes.
const SEND_SLOTS: usize = 6;

/// The number of a queue pair, unique in a run.
pub(super) type QpId = u64;

fn decode_id(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// A memory region of the memory node.
#[derive(Debug)]
struct Key {
    process: ProcessId,
    buffer: Arc<Buffer>,
    access: Access,
}

/// The NIC of the memory node.
#[derive(Debug, Default)]
pub(super) struct NodeSide {
    last_id: u64,
    keys: BTreeMap<u64, Key>,
    /// By open queue pair: the process, and the queue pair at the process's end.
    qps: BTreeMap<QpId, (ProcessId, QpId)>,
    /// The closed queue pairs that may still move one piece.
    closing: BTreeMap<QpId, (ProcessId, QpId)>,
    connections: BTreeMap<ProcessId, QpId>,
    /// Whether the NIC confirms nothing.
    pub(super) hung: bool,
}

impl NodeSide {
    /// Returns a NIC without keys and queue pairs. The ids of the new NIC continue the ids of this
    /// NIC.
    pub(super) fn restarted(&self) -> NodeSide {
        NodeSide { last_id: self.last_id, ..NodeSide::default() }
    }

    pub(super) fn connection(&self, p: ProcessId) -> Option<QpId> {
        self.connections.get(&p).copied()
    }

    /// Returns the process whose end is `peer`, if the queue pair is open.
    pub(super) fn process(&self, qp: QpId, peer: QpId) -> Option<ProcessId> {
        self.qps.get(&qp).filter(|(_, other)| *other == peer).map(|&(p, _)| p)
    }

    /// Records that a piece has moved on a queue pair.
    pub(super) fn on_moved(&mut self, qp: QpId) {
        self.closing.remove(&qp);
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl NodeNic for NodeSide {
    type Key = u64;

    fn connect(&mut self, p: ProcessId, info: &[u8]) -> Option<Vec<u8>> {
        let (peer, qp) = (decode_id(info)?, self.new_id());
        self.qps.insert(qp, (p, peer));
        self.connections.insert(p, qp);
        Some(qp.to_le_bytes().to_vec())
    }

    fn close(&mut self, p: ProcessId) {
        if let Some(qp) = self.connections.remove(&p)
            && !self.hung
        {
            self.closing.extend(self.qps.remove(&qp).map(|ends| (qp, ends)));
        }
    }

    fn register(&mut self, process: ProcessId, buffer: &Arc<Buffer>, access: Access) -> Option<u64> {
        let key = self.new_id();
        self.keys.insert(key, Key { process, buffer: Arc::clone(buffer), access });
        Some(key)
    }

    fn encode(&self, key: &u64) -> Vec<u8> {
        key.to_le_bytes().to_vec()
    }

    fn deregister(&mut self, _: ProcessId, key: &u64) -> bool {
        if !self.hung {
            self.keys.remove(key);
        }
        !self.hung
    }
}

#[derive(Debug)]
pub(super) enum WorkOp {
    Write,
    Read,
    CompareSwap(u64, u64),
}

#[derive(Debug)]
pub(super) struct Work {
    pub(super) wr_id: u64,
    pub(super) op: WorkOp,
    key: u64,
    offset: usize,
    /// The bytes to write, or the bytes read so far.
    pub(super) data: Vec<u8>,
    moved: Vec<bool>,
    pub(super) refused: bool,
}

/// The result of moving a piece, at the memory node's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// The piece moved. The flag tells whether the request is now executed.
    Executed(bool),
    /// The key does not permit the access.
    Refused,
    /// The memory failed. A WRITE has possibly changed the memory.
    Failed,
}

impl Work {
    pub(super) fn pieces(&self) -> usize {
        self.moved.len()
    }

    pub(super) fn is_executed(&self) -> bool {
        !self.refused && self.moved.iter().all(|moved| *moved)
    }

    fn is_begun(&self) -> bool {
        self.moved.iter().any(|moved| *moved)
    }

    /// Moves a piece of the request, which process `p` posted. A piece may move again.
    pub(super) fn move_piece(&mut self, nic: &NodeSide, p: ProcessId, piece: usize) -> Moved {
        let needed = match self.op {
            WorkOp::Write => Access::REMOTE_WRITE,
            WorkOp::Read => Access::REMOTE_READ,
            WorkOp::CompareSwap(..) => Access::REMOTE_ATOMIC,
        };
        let key = nic.keys.get(&self.key).filter(|key| key.process == p && key.access.contains(needed));
        let Some(key) = key.filter(|key| self.offset + self.data.len() <= key.buffer.len()) else {
            self.refused = true;
            return Moved::Refused;
        };
        let range = piece * PIECE_BYTES..self.data.len().min((piece + 1) * PIECE_BYTES);
        let at = self.offset + range.start;
        let moved = match self.op {
            WorkOp::Write => key.buffer.try_write_at(at, &self.data[range]),
            WorkOp::Read => key.buffer.try_read_at(at, &mut self.data[range]),
            WorkOp::CompareSwap(..) if self.moved[piece] => Ok(()),
            WorkOp::CompareSwap(compare, swap) => {
                key.buffer.try_compare_exchange(at, compare, swap).map(|found| {
                    let (Ok(before) | Err(before)) = found;
                    self.data = before.to_ne_bytes().to_vec();
                })
            }
        };
        if moved.is_err() {
            self.refused = true;
            return Moved::Failed;
        }
        let was_executed = self.is_executed();
        self.moved[piece] = true;
        Moved::Executed(!was_executed && self.is_executed())
    }

    /// Returns the buffer that the request accesses, if its key is valid.
    pub(super) fn buffer<'a>(&self, nic: &'a NodeSide) -> Option<&'a Arc<Buffer>> {
        nic.keys.get(&self.key).map(|key| &key.buffer)
    }

    /// Returns a random outcome among the outcomes that are possible after the connection has
    /// failed. `None` stands for no outcome. `refusal` tells whether the connection failed because
    /// the NIC refused a request. After a refusal, the NIC executes no more requests of the
    /// connection.
    pub(super) fn outcome_after_failure(&self, refusal: bool, rng: &mut Prng) -> Option<Ended> {
        match rng.below(3) {
            0 => None,
            // The connection closed before it could decide the request.
            1 => Some(Ended::Unknown),
            _ if self.refused => Some(Ended::NotExecuted),
            _ if !refusal => Some(Ended::Unknown),
            _ if self.is_executed() => Some(Ended::ValueLost),
            _ if self.is_begun() => Some(Ended::Unknown),
            _ => Some(Ended::NotExecuted),
        }
    }
}

#[derive(Debug)]
pub(super) struct ProcessEnd {
    pub(super) id: QpId,
    /// The memory node's end, once connected.
    pub(super) peer: Option<QpId>,
    pub(super) works: Vec<Work>,
    pub(super) requests: VecDeque<Vec<u8>>,
    pub(super) replies: VecDeque<Vec<u8>>,
    /// Whether this end has stopped posting and completing requests.
    pub(super) is_closed: bool,
    /// Whether the memory node's NIC has refused a request. After a refusal, the NIC executes no
    /// more requests of this end.
    pub(super) is_refused: bool,
}

impl ProcessEnd {
    pub(super) fn new(id: QpId) -> ProcessEnd {
        let (works, requests, replies) = Default::default();
        ProcessEnd { id, peer: None, works, requests, replies, is_closed: false, is_refused: false }
    }

    /// Returns the process that the memory node's end belongs to, if the memory node's end is open
    /// and connected to this end.
    pub(super) fn process_at(&self, nic: &NodeSide) -> Option<ProcessId> {
        nic.process(self.peer?, self.id)
    }

    /// Like [`ProcessEnd::process_at`], even if the memory node's NIC may still finish a packet of
    /// a closed queue pair.
    pub(super) fn process_moving_at(&self, nic: &NodeSide) -> Option<ProcessId> {
        let closing = || nic.closing.get(&self.peer?).filter(|(_, other)| *other == self.id);
        self.process_at(nic).or_else(|| Some(closing()?.0))
    }

    fn post(&mut self, wr_id: u64, key: u64, offset: u64, data: Vec<u8>, op: WorkOp) -> bool {
        let moved = vec![false; data.len().div_ceil(PIECE_BYTES)];
        let offset = offset as usize;
        self.works.push(Work { wr_id, op, key, offset, data, moved, refused: false });
        true
    }
}

impl ClientLink for ProcessEnd {
    type Key = u64;

    fn connect(&mut self, info: &[u8]) -> bool {
        self.peer = decode_id(info);
        self.peer.is_some()
    }

    fn import(&mut self, encoded: &[u8], _: u64) -> Option<u64> {
        decode_id(encoded)
    }

    fn free_send_slots(&self) -> usize {
        SEND_SLOTS.saturating_sub(self.works.len())
    }

    fn write(&mut self, wr_id: u64, key: &u64, offset: u64, data: &[u8]) -> bool {
        self.post(wr_id, *key, offset, data.to_vec(), WorkOp::Write)
    }

    fn read(&mut self, wr_id: u64, key: &u64, offset: u64, len: usize) -> bool {
        self.post(wr_id, *key, offset, vec![0; len], WorkOp::Read)
    }

    fn compare_swap(&mut self, wr_id: u64, key: &u64, offset: u64, compare: u64, swap: u64) -> bool {
        self.post(wr_id, *key, offset, vec![0; 8], WorkOp::CompareSwap(compare, swap))
    }

    fn send(&mut self, message: Vec<u8>) -> bool {
        self.requests.push_back(message);
        true
    }
}
