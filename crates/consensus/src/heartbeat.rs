//! A failure detector with heartbeat counters in the memories (as in Mu, OSDI 2020). Each process
//! increments its counter in all memories and reads the other processes' counters. A process sends
//! no messages, and does not wait for a memory that has crashed.
//!
//! - A round begins at a wake-up and ends at the next wake-up. A round in which a process's counter
//!   has advanced raises the process's score by one, up to [`MAX_SCORE`]. Any other round lowers
//!   the score by one. A process is suspected when its score falls to [`SUSPECT_SCORE`], and
//!   trusted again when its score rises to [`TRUST_SCORE`]. At least `TRUST_SCORE - SUSPECT_SCORE`
//!   rounds pass between two changes, so a flapping link does not cause repeated leader changes.
//! - The leader is the trusted process with the lowest id. Each process trusts itself.
//! - A round in which no memory responded changes no score, because the fault is probably the
//!   reader's.
//!
//! The detector assumes a timely network. Processes that observe different counters may name
//! different leaders for a while. The log stays safe in that case. [`crate::omega`] requires less
//! timeliness, but a memory that never crashes.

use crate::{
    Action, Actions, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId, ProcessSet,
    Region, RegisterKind, Response,
};

/// The score at or below which a trusted process becomes suspected.
pub const SUSPECT_SCORE: u8 = 2;
/// The score at or above which a suspected process becomes trusted again.
pub const TRUST_SCORE: u8 = 6;
/// The highest score. A process with this score is suspected after `MAX_SCORE - SUSPECT_SCORE`
/// rounds without progress.
pub const MAX_SCORE: u8 = 15;

/// The id of the read of all counters. At a memory, one read and one write may be outstanding.
const READ: OpId = OpId(0);
/// The id of the write of this process's own counter.
const WRITE: OpId = OpId(1);

/// A process of the failure detector.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Heartbeat {
    me: ProcessId,
    counter: u64,
    peers: Vec<Peer>,
    /// The number of outstanding operations at each memory. At a wake-up, the process invokes the
    /// next operations at each memory without outstanding operations.
    outstanding: Vec<u8>,
    /// Whether a memory has returned the counters in this round.
    responded: bool,
    /// Whether the process has completed a round with a response, and therefore knows its own
    /// counter and may increment it. A restarted process must not count from 0 again.
    knows_own_counter: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Peer {
    counter: u64,
    advanced: bool,
    score: u8,
    alive: bool,
}

impl Heartbeat {
    /// Creates a process among `processes` processes, which trusts all processes initially.
    pub fn new(me: ProcessId, processes: u8, memories: u8) -> Heartbeat {
        let peer = Peer { counter: 0, advanced: false, score: MAX_SCORE, alive: true };
        Heartbeat {
            me,
            counter: 0,
            peers: vec![peer; processes.into()],
            outstanding: vec![0; memories.into()],
            responded: false,
            knows_own_counter: false,
        }
    }

    /// Returns the regions of each memory: one region with a counter per process.
    pub fn regions(processes: u8) -> Vec<Region> {
        let all = ProcessSet::first(processes);
        vec![Region {
            registers: processes.into(),
            permissions: Permissions { read: all, write: all },
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        }]
    }

    /// Returns the leader: the trusted process of `among` with the lowest id, or `None` if `among`
    /// has no trusted process.
    pub fn leader(&self, among: ProcessSet) -> Option<ProcessId> {
        let alive = |p: &ProcessId| *p == self.me || self.peers[usize::from(p.0)].alive;
        (0..self.peers.len() as u8).map(ProcessId).filter(|&p| among.contains(p)).find(alive)
    }

    /// Returns the score of a process: 0 to [`MAX_SCORE`].
    pub fn score(&self, p: ProcessId) -> u8 {
        self.peers.get(usize::from(p.0)).map_or(0, |peer| peer.score)
    }

    /// Ends a round: updates all scores, and begins the next round.
    fn wake(&mut self, out: &mut Actions<Self>) {
        if core::mem::take(&mut self.responded) {
            self.peers.iter_mut().for_each(Peer::update_score);
            self.knows_own_counter = true;
        }
        self.counter += u64::from(self.knows_own_counter);
        for (m, outstanding) in
            self.outstanding.iter_mut().enumerate().filter(|(_, outstanding)| **outstanding == 0)
        {
            let memory = MemoryId(m as u8);
            let write = Op::Write { region: 0, register: self.me.0.into(), cell: self.counter };
            let read = Op::Read { region: 0, first: 0, count: self.peers.len() as u16 };
            let ops = self.knows_own_counter.then_some((WRITE, write)).into_iter().chain([(READ, read)]);
            out.extend(ops.map(|(id, op)| Action::Invoke { memory, id, op }));
            *outstanding = 1 + u8::from(self.knows_own_counter);
        }
        out.push(Action::Wake);
    }
}

impl Peer {
    fn update_score(&mut self) {
        self.score = if core::mem::take(&mut self.advanced) {
            (self.score + 1).min(MAX_SCORE)
        } else {
            self.score.saturating_sub(1)
        };
        self.alive = if self.alive { self.score > SUSPECT_SCORE } else { self.score >= TRUST_SCORE };
    }
}

impl Process for Heartbeat {
    type Cell = u64;
    type Message = ();
    type Value = ProcessId;

    fn handle(&mut self, input: Input<u64, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start | Input::Wake => self.wake(out),
            Input::Response { memory, response, .. } => {
                let Some(outstanding) = self.outstanding.get_mut(usize::from(memory.0)) else { return };
                *outstanding = outstanding.saturating_sub(1);
                if let Response::Cells(counters) = response {
                    self.responded = true;
                    let own = counters.get(usize::from(self.me.0)).copied().unwrap_or(0);
                    self.counter = self.counter.max(own);
                    for (peer, counter) in self.peers.iter_mut().zip(counters) {
                        peer.advanced |= counter > peer.counter;
                        peer.counter = peer.counter.max(counter);
                    }
                }
            }
            Input::Leader(_) | Input::Message { .. } | Input::Coin(_) => {}
        }
    }

    /// Returns `None`: the output is [`Heartbeat::leader`], which may change.
    fn decision(&self) -> Option<&ProcessId> {
        None
    }

    /// A round ends at a wake-up.
    fn awaits_responses(&self) -> bool {
        false
    }

    fn attempts(&self) -> u64 {
        self.counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process 1, which observes the counter of process 0. The test makes up the memory's
    /// responses.
    struct Observer {
        process: Heartbeat,
        counter: u64,
    }

    impl Observer {
        fn new() -> Observer {
            let mut process = Heartbeat::new(ProcessId(1), 2, 1);
            process.handle(Input::Start, &mut Vec::new());
            Observer { process, counter: 0 }
        }

        fn both() -> ProcessSet {
            ProcessSet::first(2)
        }

        /// Completes one round, in which the observed counter advances if `advanced` is true.
        /// Returns the leader.
        fn run_round(&mut self, advanced: bool) -> Option<ProcessId> {
            self.counter += u64::from(advanced);
            let cells = Response::Cells(vec![self.counter, 0]);
            for (id, response) in [(WRITE, Response::Ack), (READ, cells)] {
                self.process.handle(Input::Response { memory: MemoryId(0), id, response }, &mut Vec::new());
            }
            self.process.handle(Input::Wake, &mut Vec::new());
            self.process.leader(Observer::both())
        }

        /// Returns the number of leader changes in `rounds` rounds. The counter advances in the
        /// rounds for which `pattern` returns true.
        fn changes(&mut self, rounds: usize, pattern: impl Fn(usize) -> bool) -> usize {
            let leaders: Vec<_> = (0..rounds).map(|nth| self.run_round(pattern(nth))).collect();
            leaders.windows(2).filter(|pair| pair[0] != pair[1]).count()
        }
    }

    #[test]
    fn stopped_process_is_suspected_and_resumed_process_trusted() {
        let mut observer = Observer::new();
        assert!((0..100).all(|_| observer.run_round(true) == Some(ProcessId(0))));
        let until_dead = (1..).find(|_| observer.run_round(false) == Some(ProcessId(1)));
        assert_eq!(until_dead, Some(i32::from(MAX_SCORE - SUSPECT_SCORE)));
        assert!((0..100).all(|_| observer.run_round(false) == Some(ProcessId(1))));
        let until_alive = (1..).find(|_| observer.run_round(true) == Some(ProcessId(0)));
        assert_eq!(until_alive, Some(i32::from(TRUST_SCORE)));
    }

    #[test]
    fn flapping_link_changes_leader_at_most_once() {
        for (on, off) in [(1, 1), (2, 2), (3, 3), (1, 2), (2, 1), (1, 3), (3, 1)] {
            for score in 0..=MAX_SCORE {
                let mut observer = Observer::new();
                (score..MAX_SCORE).for_each(|_| _ = observer.run_round(false));
                let changes = observer.changes(10_000, |nth| nth % (on + off) < on);
                assert!(changes <= 1, "{on} on, {off} off, from {score}: {changes} changes");
            }
        }
    }

    #[test]
    fn leader_changes_are_bounded_for_every_pattern() {
        let apart = usize::from(TRUST_SCORE - SUSPECT_SCORE);
        for pattern in 0_u32..1 << 16 {
            let mut observer = Observer::new();
            (0..MAX_SCORE - SUSPECT_SCORE - 2).for_each(|_| _ = observer.run_round(false));
            let changes = observer.changes(16, |nth| pattern >> nth & 1 == 1);
            assert!(changes <= 1 + 15 / apart, "{pattern:b}: {changes} changes");
        }
    }

    #[test]
    fn restarted_process_continues_its_counter() {
        let mut process = Heartbeat::new(ProcessId(1), 2, 1);
        let mut out = Vec::new();
        process.handle(Input::Start, &mut out);
        let writes = |out: &[Action<u64, ()>]| {
            out.iter().any(|action| matches!(action, Action::Invoke { op: Op::Write { .. }, .. }))
        };
        assert!(!writes(&out), "the process must read its own counter first");
        let response = Response::Cells(vec![0, 70]);
        process.handle(Input::Response { memory: MemoryId(0), id: READ, response }, &mut out);
        out.clear();
        process.handle(Input::Wake, &mut out);
        let write = Op::Write { region: 0, register: 1, cell: 71 };
        assert_eq!(out.first(), Some(&Action::Invoke { memory: MemoryId(0), id: WRITE, op: write }));
    }

    #[test]
    fn rounds_without_response_change_no_score() {
        let mut observer = Observer::new();
        for _ in 0..100 {
            observer.process.handle(Input::Wake, &mut Vec::new());
        }
        assert_eq!(observer.process.leader(Observer::both()), Some(ProcessId(0)));
        assert_eq!(observer.process.leader(ProcessSet::only(ProcessId(1))), Some(ProcessId(1)));
        assert_eq!(observer.process.leader(ProcessSet::NONE), None);
    }
}
