//! Memory nodes in the memory of the test. Each client has a queue to each node. A node executes
//! the requests of a queue in order. Each step continues a random queue.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mitra_prng::Prng;
use mitra_txn::{NodeId, Op, Outcome, Request};

/// The length of a line of memory, in bytes. A NIC reads and writes a line as one.
const LINE: usize = 64;

/// The rate of requests that end in doubt, in parts per million.
pub const DOUBT_PPM: u32 = 20_000;

/// The rate at which a queue stands still, in parts per million, and the longest standstill in
/// steps: long enough for a whole transaction.
const PAUSE_PPM: u32 = 30_000;
const MAX_PAUSE: u64 = 400;

pub struct Cluster {
    memories: Vec<Vec<u8>>,
    dead: Vec<bool>,
    queues: BTreeMap<(usize, NodeId), VecDeque<Posted>>,
    batches: BTreeMap<usize, Batch>,
    fenced: BTreeSet<(usize, NodeId)>,
    /// The step until which a queue stands still.
    paused: BTreeMap<(usize, NodeId), u64>,
    now: u64,
    prng: Prng,
    doubt_ppm: u32,
}

struct Posted {
    index: usize,
    request: Request,
    /// The bytes that a READ or WRITE has already transferred; `None` before it has begun.
    begun: Option<Vec<u8>>,
}

struct Batch {
    outcomes: Vec<Option<Outcome>>,
}

impl Cluster {
    pub fn new(nodes: usize, bytes: usize, prng: Prng, doubt_ppm: u32) -> Cluster {
        let (queues, batches, paused, fenced) = Default::default();
        let (memories, dead) = (vec![vec![0; bytes]; nodes], vec![false; nodes]);
        Cluster { memories, dead, queues, batches, fenced, paused, now: 0, prng, doubt_ppm }
    }

    pub fn memory(&self, node: NodeId) -> &[u8] {
        &self.memories[usize::from(node.0)]
    }

    /// Executes WRITEs at once.
    pub fn load(&mut self, requests: Vec<Request>) {
        for Request { node, at, op } in requests {
            let Op::Write(bytes) = op else { panic!("a load only writes") };
            self.memories[usize::from(node.0)][at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Declares a node dead. Requests to the node end as `NodeDead`.
    pub fn kill(&mut self, node: NodeId) {
        self.dead[usize::from(node.0)] = true;
    }

    pub fn is_dead(&self, node: NodeId) -> bool {
        self.dead[usize::from(node.0)]
    }

    pub fn is_idle(&self) -> bool {
        self.queues.values().all(VecDeque::is_empty)
    }

    pub fn post(&mut self, client: usize, requests: Vec<Request>) {
        self.batches.insert(client, Batch { outcomes: vec![None; requests.len()] });
        for (index, request) in requests.into_iter().enumerate() {
            if self.fenced.contains(&(client, request.node)) {
                continue;
            }
            let queue = self.queues.entry((client, request.node)).or_default();
            queue.push_back(Posted { index, request, begun: None });
        }
    }

    /// Ends all requests of a client. Each node executes a random part of the client's requests,
    /// and then no more.
    pub fn fence(&mut self, client: usize) {
        let keys: Vec<_> = self.queues.keys().filter(|(owner, _)| *owner == client).copied().collect();
        for key in keys {
            self.end_queue(key);
        }
        self.batches.remove(&client);
    }

    /// Ends all present and future requests of a client at a node. The client gets no outcomes of
    /// these requests.
    pub fn fence_at(&mut self, client: usize, node: NodeId) {
        self.end_queue((client, node));
        self.fenced.insert((client, node));
    }

    /// Makes a node execute no requests of a client.
    pub fn refuse(&mut self, client: usize, node: NodeId) {
        self.fenced.insert((client, node));
    }

    pub fn is_fenced(&self, client: usize, node: NodeId) -> bool {
        self.fenced.contains(&(client, node))
    }

    fn end_queue(&mut self, key: (usize, NodeId)) {
        let len = self.queues.get(&key).map_or(0, VecDeque::len);
        for _ in 0..self.prng.index(2 * len + 1) {
            self.advance(key);
        }
        self.queues.remove(&key);
    }

    /// Executes a part of a random request. If this part ends the batch of a client, returns the
    /// client and the outcomes of the batch.
    pub fn step(&mut self) -> Option<(usize, Vec<Outcome>)> {
        self.now += 1;
        let mut keys: Vec<_> =
            self.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(key, _)| *key).collect();
        let is_running = |key: &(usize, NodeId)| self.paused.get(key).is_none_or(|&until| until <= self.now);
        if keys.iter().any(is_running) {
            keys.retain(is_running);
        }
        if keys.is_empty() {
            return None;
        }
        let key = *self.prng.pick(&keys);
        if self.prng.chance(PAUSE_PPM) {
            self.paused.insert(key, self.now + self.prng.below(MAX_PAUSE));
        }
        self.advance(key);
        let batch = self.batches.get(&key.0)?;
        if batch.outcomes.iter().any(Option::is_none) {
            return None;
        }
        let batch = self.batches.remove(&key.0)?;
        Some((key.0, batch.outcomes.into_iter().flatten().collect()))
    }

    fn end(&mut self, client: usize, index: usize, outcome: Outcome) {
        if let Some(batch) = self.batches.get_mut(&client) {
            batch.outcomes[index] = Some(outcome);
        }
    }

    /// Executes a part of the first request in a queue.
    fn advance(&mut self, key: (usize, NodeId)) {
        let Some(mut posted) = self.queues.get_mut(&key).and_then(VecDeque::pop_front) else { return };
        let node = usize::from(key.1.0);
        if self.dead[node] {
            return self.end(key.0, posted.index, Outcome::NodeDead);
        }
        if posted.begun.is_none() && self.prng.chance(self.doubt_ppm) {
            return self.fail(key, posted);
        }
        let at = posted.request.at as usize;
        let memory = &mut self.memories[node];
        let outcome = match &posted.request.op {
            Op::CompareSwap { compare, swap } => {
                let word = &mut memory[at..at + 8];
                let before = u64::from_le_bytes((&*word).try_into().unwrap());
                if before == *compare {
                    word.copy_from_slice(&swap.to_le_bytes());
                }
                Outcome::Executed(before.to_le_bytes().to_vec())
            }
            Op::Read(len) => {
                let end = at + *len as usize;
                let begun = posted.begun.get_or_insert_default();
                let from = at + begun.len();
                let to = end.min((from / LINE + 1) * LINE);
                begun.extend_from_slice(&memory[from..to]);
                if to < end {
                    return self.queues.get_mut(&key).unwrap().push_front(posted);
                }
                Outcome::Executed(posted.begun.unwrap_or_default())
            }
            Op::Write(bytes) => {
                let end = at + bytes.len();
                let begun = posted.begun.get_or_insert_default();
                let from = at + begun.len();
                let to = end.min((from / LINE + 1) * LINE);
                memory[from..to].copy_from_slice(&bytes[from - at..to - at]);
                begun.extend_from_slice(&bytes[from - at..to - at]);
                if to < end {
                    return self.queues.get_mut(&key).unwrap().push_front(posted);
                }
                Outcome::Executed(Vec::new())
            }
        };
        self.end(key.0, posted.index, outcome);
    }

    /// A rail fails. With evidence, at most the first unanswered request is executed: its outcome
    /// is unknown, its value is lost, or it is not executed. The later requests are not executed.
    /// Without evidence, all outcomes are unknown: a random number of the requests, from the first
    /// on, are executed.
    fn fail(&mut self, key: (usize, NodeId), posted: Posted) {
        let (executed, known, evidence) =
            (self.prng.chance(500_000), self.prng.chance(500_000), self.prng.chance(700_000));
        let mut waiting: Vec<usize> = self.queues[&key].iter().map(|posted| posted.index).collect();
        waiting.insert(0, posted.index);
        self.queues.get_mut(&key).unwrap().push_front(posted);
        let executed = match (executed, evidence) {
            (_, false) => self.prng.index(waiting.len() + 1),
            (executed, true) => usize::from(executed),
        };
        let doubt_ppm = core::mem::replace(&mut self.doubt_ppm, 0);
        while self.queues[&key].len() > waiting.len() - executed {
            self.advance(key);
        }
        self.doubt_ppm = doubt_ppm;
        self.queues.get_mut(&key).unwrap().clear();
        for (at, index) in waiting.into_iter().enumerate() {
            let outcome = match (at, executed) {
                _ if !evidence => Outcome::Unknown,
                (0, 1) if known => Outcome::ValueLost,
                (0, _) if !known => Outcome::Unknown,
                _ => Outcome::NotExecuted,
            };
            self.end(key.0, index, outcome);
        }
    }
}
