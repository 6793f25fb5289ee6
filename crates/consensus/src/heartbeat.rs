//! A failure detector with heartbeat counters in the memories (as in Mu, OSDI 2020). Each process increments its
//! counter in all memories and reads the counters of the others. It sends no messages, and does not wait for a memory
//! that has crashed.
//!
//! - Each read round in which a counter has advanced raises its process's score by one, up to [`MAX_SCORE`]. Any other
//!   round lowers it by one. A process is suspected when its score falls to [`SUSPECT_SCORE`], and trusted again when
//!   it rises to [`TRUST_SCORE`]. Between two changes at least `TRUST_SCORE - SUSPECT_SCORE` rounds pass, so a flapping
//!   link does not cause repeated leader changes.
//! - The leader is the least process that is trusted. Each process trusts itself.
//! - A round in which no memory responded changes no score, because the fault is on the side of the reader.
//!
//! The detector assumes a timely network. Processes that observe different counters name different leaders for a while;
//! the log stays safe then. [`crate::omega`] needs less timeliness, but a memory that never crashes.

use crate::{
    Action, Actions, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId, ProcessSet,
    Region, RegisterKind, Response,
};

/// The score at or below which a process is suspected.
pub const SUSPECT_SCORE: u8 = 2;
/// The score at or above which a suspected process is trusted again.
pub const TRUST_SCORE: u8 = 6;
/// The highest score. A process with this score is suspected after `MAX_SCORE - SUSPECT_SCORE` rounds without progress.
pub const MAX_SCORE: u8 = 15;

/// The ids of the two operations that may be outstanding at a memory: the read of all counters, and the write of the
/// own counter.
const LOOK: OpId = OpId(0);
const BEAT: OpId = OpId(1);

/// A process of the failure detector.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Heartbeat {
    me: ProcessId,
    counter: u64,
    others: Vec<Other>,
    /// The number of outstanding operations at each memory. The process invokes the next ones when none is outstanding.
    owing: Vec<u8>,
    /// A memory has responded in this round.
    looked: bool,
    /// The process has completed a round, and knows its own counter. A restarted process must not count from 0 again.
    beats: bool,
}

/// The state of one observed process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Other {
    counter: u64,
    moved: bool,
    score: u8,
    alive: bool,
}

impl Heartbeat {
    /// Creates a process among `processes` processes. It trusts all processes initially.
    pub fn new(me: ProcessId, processes: u8, memories: u8) -> Heartbeat {
        let other = Other { counter: 0, moved: false, score: MAX_SCORE, alive: true };
        Heartbeat {
            me,
            counter: 0,
            others: vec![other; processes.into()],
            owing: vec![0; memories.into()],
            looked: false,
            beats: false,
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

    /// Returns the leader: the least process of `among` that is trusted, or `None` if there is none.
    pub fn leader(&self, among: ProcessSet) -> Option<ProcessId> {
        let alive = |p: &ProcessId| *p == self.me || self.others[usize::from(p.0)].alive;
        (0..self.others.len() as u8).map(ProcessId).filter(|&p| among.contains(p)).find(alive)
    }

    /// Returns the score of a process: 0 to [`MAX_SCORE`].
    pub fn score(&self, p: ProcessId) -> u8 {
        self.others.get(usize::from(p.0)).map_or(0, |other| other.score)
    }

    /// Ends a round: updates all scores, and begins the next round.
    fn wake(&mut self, out: &mut Actions<Self>) {
        if core::mem::take(&mut self.looked) {
            self.others.iter_mut().for_each(Other::judge);
            self.beats = true;
        }
        self.counter += u64::from(self.beats);
        for (m, owing) in self.owing.iter_mut().enumerate().filter(|(_, owing)| **owing == 0) {
            let memory = MemoryId(m as u8);
            let beat = Op::Write { region: 0, register: self.me.0.into(), cell: self.counter };
            let look = Op::Read { region: 0, first: 0, count: self.others.len() as u16 };
            let ops = self.beats.then_some((BEAT, beat)).into_iter().chain([(LOOK, look)]);
            out.extend(ops.map(|(id, op)| Action::Invoke { memory, id, op }));
            *owing = 1 + u8::from(self.beats);
        }
        out.push(Action::Wake);
    }
}

impl Other {
    fn judge(&mut self) {
        self.score = if core::mem::take(&mut self.moved) {
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
                let Some(owing) = self.owing.get_mut(usize::from(memory.0)) else { return };
                *owing = owing.saturating_sub(1);
                if let Response::Cells(counters) = response {
                    self.looked = true;
                    let mine = counters.get(usize::from(self.me.0)).copied().unwrap_or(0);
                    self.counter = self.counter.max(mine);
                    for (other, counter) in self.others.iter_mut().zip(counters) {
                        other.moved |= counter > other.counter;
                        other.counter = other.counter.max(counter);
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

    /// Counts heartbeats.
    fn attempts(&self) -> u64 {
        self.counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process 1, which observes the counter of process 0. The test invents the memory's responses.
    struct Watch {
        process: Heartbeat,
        counter: u64,
    }

    impl Watch {
        fn new() -> Watch {
            let mut process = Heartbeat::new(ProcessId(1), 2, 1);
            process.handle(Input::Start, &mut Vec::new());
            Watch { process, counter: 0 }
        }

        fn both() -> ProcessSet {
            ProcessSet::first(2)
        }

        /// Runs one round in which the counter advances or not. Returns the leader.
        fn look(&mut self, moved: bool) -> Option<ProcessId> {
            self.counter += u64::from(moved);
            let cells = Response::Cells(vec![self.counter, 0]);
            for (id, response) in [(BEAT, Response::Ack), (LOOK, cells)] {
                self.process.handle(Input::Response { memory: MemoryId(0), id, response }, &mut Vec::new());
            }
            self.process.handle(Input::Wake, &mut Vec::new());
            self.process.leader(Watch::both())
        }

        /// Returns the number of leader changes in `looks` rounds, in which the counter advances by `pattern`.
        fn changes(&mut self, looks: usize, pattern: impl Fn(usize) -> bool) -> usize {
            let leaders: Vec<_> = (0..looks).map(|nth| self.look(pattern(nth))).collect();
            leaders.windows(2).filter(|pair| pair[0] != pair[1]).count()
        }
    }

    #[test]
    fn who_stops_is_found_dead_and_who_goes_on_alive() {
        let mut watch = Watch::new();
        assert!((0..100).all(|_| watch.look(true) == Some(ProcessId(0))));
        let until_dead = (1..).find(|_| watch.look(false) == Some(ProcessId(1)));
        assert_eq!(until_dead, Some(i32::from(MAX_SCORE - SUSPECT_SCORE)));
        assert!((0..100).all(|_| watch.look(false) == Some(ProcessId(1))));
        let until_alive = (1..).find(|_| watch.look(true) == Some(ProcessId(0)));
        assert_eq!(until_alive, Some(i32::from(TRUST_SCORE)));
    }

    #[test]
    fn a_link_that_flaps_changes_the_leader_once_at_most() {
        for (on, off) in [(1, 1), (2, 2), (3, 3), (1, 2), (2, 1), (1, 3), (3, 1)] {
            for score in 0..=MAX_SCORE {
                let mut watch = Watch::new();
                (score..MAX_SCORE).for_each(|_| _ = watch.look(false));
                let changes = watch.changes(10_000, |nth| nth % (on + off) < on);
                assert!(changes <= 1, "{on} on, {off} off, from {score}: {changes} changes");
            }
        }
    }

    #[test]
    fn minds_change_at_most_once_in_so_many_looks_whatever_the_pattern() {
        let apart = usize::from(TRUST_SCORE - SUSPECT_SCORE);
        for pattern in 0_u32..1 << 16 {
            let mut watch = Watch::new();
            (0..MAX_SCORE - SUSPECT_SCORE - 2).for_each(|_| _ = watch.look(false));
            let changes = watch.changes(16, |nth| pattern >> nth & 1 == 1);
            assert!(changes <= 1 + 15 / apart, "{pattern:b}: {changes} changes");
        }
    }

    #[test]
    fn who_comes_back_goes_on_counting() {
        let mut process = Heartbeat::new(ProcessId(1), 2, 1);
        let mut out = Vec::new();
        process.handle(Input::Start, &mut out);
        let beats = |out: &[Action<u64, ()>]| {
            out.iter().any(|action| matches!(action, Action::Invoke { op: Op::Write { .. }, .. }))
        };
        assert!(!beats(&out), "it looks first");
        let response = Response::Cells(vec![0, 70]);
        process.handle(Input::Response { memory: MemoryId(0), id: LOOK, response }, &mut out);
        out.clear();
        process.handle(Input::Wake, &mut out);
        let beat = Op::Write { region: 0, register: 1, cell: 71 };
        assert_eq!(out.first(), Some(&Action::Invoke { memory: MemoryId(0), id: BEAT, op: beat }));
    }

    #[test]
    fn an_outage_of_ones_own_is_nobody_elses() {
        let mut watch = Watch::new();
        for _ in 0..100 {
            watch.process.handle(Input::Wake, &mut Vec::new());
        }
        assert_eq!(watch.process.leader(Watch::both()), Some(ProcessId(0)));
        assert_eq!(watch.process.leader(ProcessSet::only(ProcessId(1))), Some(ProcessId(1)));
        assert_eq!(watch.process.leader(ProcessSet::NONE), None);
    }
}
