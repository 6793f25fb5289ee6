//! The memory nodes of a world of transactions, and the requests on their way to them.

use std::collections::VecDeque;

use mitra_txn::{LockWord, NodeId, Op, Outcome, Request};

/// The length of a line of the memory, in bytes. An access within a line is one step.
const LINE: usize = 64;

const LOCK_BYTES: usize = 8;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Node {
    pub(crate) memory: Vec<u8>,
    pub(crate) is_dead: bool,
}

/// A request that is not executed, or not completely.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Posted {
    /// The position of the request among the requests that were posted together.
    pub(crate) index: usize,
    pub(crate) request: Request,
    /// The bytes that the first part of the access has read, if this part is done. Empty for a
    /// WRITE.
    first: Option<Vec<u8>>,
}

/// The requests that an agent has posted to a node, in order.
pub(crate) type Queue = VecDeque<Posted>;

/// The requests of an agent that were posted together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Batch {
    pub(crate) queues: Vec<Queue>,
    pub(crate) outcomes: Vec<Option<Outcome>>,
    /// The posted requests, in the order of the outcomes.
    pub(crate) requests: Vec<Request>,
}

impl Posted {
    fn new(index: usize, request: Request) -> Posted {
        Posted { index, request, first: None }
    }
}

impl Batch {
    pub(crate) fn new(requests: Vec<Request>, nodes: usize) -> Batch {
        let mut queues = vec![Queue::new(); nodes];
        for (index, request) in requests.iter().enumerate() {
            let posted = Posted::new(index, request.clone());
            queues[usize::from(request.node.0)].push_back(posted);
        }
        Batch { queues, outcomes: vec![None; requests.len()], requests }
    }

    /// Returns whether no request of the batch has been executed, not even in part.
    pub(crate) fn is_untouched(&self) -> bool {
        self.outcomes.iter().all(Option::is_none)
            && self.queues.iter().flatten().all(|posted| posted.first.is_none())
    }
}

impl Node {
    pub(crate) fn new(bytes: usize) -> Node {
        Node { memory: vec![0; bytes], is_dead: false }
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        let at = at as usize;
        self.memory[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    pub(crate) fn lock(&self, at: u64) -> LockWord {
        LockWord::from_bits(self.word(at))
    }

    /// Executes a request without an interruption.
    pub(crate) fn execute_all(&mut self, request: Request) -> Outcome {
        let mut posted = Posted::new(0, request);
        loop {
            if let Some(outcome) = self.execute(&mut posted, false) {
                return outcome;
            }
        }
    }

    /// Executes the next part of a request. Returns the outcome when it is complete.
    pub(crate) fn execute(&mut self, posted: &mut Posted, tears_headers: bool) -> Option<Outcome> {
        if self.is_dead {
            return Some(Outcome::NodeDead);
        }
        let at = posted.request.at as usize;
        let executed = match &posted.request.op {
            Op::CompareSwap { compare, swap } => {
                let before = self.word(posted.request.at);
                if before == *compare {
                    self.memory[at..at + 8].copy_from_slice(&swap.to_le_bytes());
                }
                before.to_le_bytes().to_vec()
            }
            Op::Read(len) => {
                let end = at + *len as usize;
                // A device that does not read a line atomically may read the lock word last.
                let split = if tears_headers { at + LOCK_BYTES } else { end.min((at / LINE + 1) * LINE) };
                let (head, tail) = (&self.memory[at..split], &self.memory[split..end]);
                match &posted.first {
                    None if tail.is_empty() => head.to_vec(),
                    None => {
                        posted.first = Some(if tears_headers { tail.to_vec() } else { head.to_vec() });
                        return None;
                    }
                    Some(first) if tears_headers => [head, first].concat(),
                    Some(first) => [first, tail].concat(),
                }
            }
            Op::Write(bytes) => {
                let split = bytes.len().min(LINE - at % LINE);
                if posted.first.is_none() {
                    self.memory[at..at + split].copy_from_slice(&bytes[..split]);
                    if split < bytes.len() {
                        posted.first = Some(Vec::new());
                        return None;
                    }
                } else {
                    self.memory[at + split..at + bytes.len()].copy_from_slice(&bytes[split..]);
                }
                Vec::new()
            }
        };
        Some(Outcome::Executed(executed))
    }
}

pub(crate) fn reads(request: &Request, bytes: u32) -> bool {
    matches!(request.op, Op::Read(len) if len == bytes)
}

pub(crate) fn node_id(node: usize) -> NodeId {
    NodeId(node as u16)
}
