//! The takeover of an ended life, by another coordinator or by the next life of the same
//! coordinator.
//!
//! Every node has the life word of every coordinator. The word on the first node that is not
//! declared dead counts. The start of a life and a claim are written to the nodes in the order of
//! the nodes. Such a change takes effect when all nodes have it. So the first node decides between
//! two concurrent changes. If the first node is dead, the next node has at least the changes that
//! have taken effect. The state *recovered* is written in the opposite order, so nobody reads it on
//! the first node before all nodes have it.
//!
//! All changes of a word are compare-and-swaps. If the outcome of a change is unknown, a READ of
//! the word shows it, because the word names the life that has written it. No two processes may
//! have the same life: a memory node admits each life once.
//!
//! A claim of another recoverer is replaced only after that recoverer has been fenced. So two
//! recoveries never write at the same time, even if the first recoverer pauses and continues later.

use crate::life_word::{LifeState, LifeWord};
use crate::lock_word::Life;
use crate::place::{Copies, Location, Place};
use crate::recovery::{Recovery, RecoveryStep};
use crate::request::{Op, Outcome, Request};

/// The next action of the caller, or the end of the takeover.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TakeoverStep {
    /// Execute these requests: at least one.
    Post(Vec<Request>),
    /// Fence this life and all earlier lives of its coordinator on all nodes that are not declared
    /// dead, then call [`Takeover::on_fenced`]. A node has fenced a life when the node executes no
    /// posted request of the life any more.
    Fence(Life),
    /// Another life recovers. Wait and call [`Takeover::retry`] or, if that life is suspected to
    /// have ended, [`Takeover::replace`].
    ClaimedBy(Life),
    /// The life is recovered, by this takeover or another.
    Recovered,
    /// The coordinator that starts is live.
    Live,
    /// The takeover can have no more effect. If it is a start, the process ends with an error:
    /// another process has started as the same coordinator, or another life has taken over the new
    /// life. If it is a takeover of another coordinator's life, the caller reads the life word
    /// again.
    Lost,
    /// Fewer nodes live than must have a log entry, so nothing may be decided.
    TooFewNodes,
    /// A log entry names a place that does not exist: the memory is damaged, or the layouts differ.
    UnknownPlace(Place),
}

/// The log of a coordinator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Log {
    /// The locations of each slot, one on every node.
    pub slots: Vec<Vec<Location>>,
    /// The length of a slot, in bytes.
    pub slot_bytes: u32,
    /// The number of nodes that must have an entry.
    pub copies: usize,
}

/// A change of the life word on one node after the other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Change {
    kind: Kind,
    /// The locations that do not have the change yet. The last location is next.
    left: Vec<Location>,
    /// The last word that was read on the next node.
    seen: Option<LifeWord>,
    /// The number of nodes that have the change.
    done: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    /// The recoverer claims the life.
    Claim,
    /// The life is recovered.
    Recovered,
    /// The coordinator's next life begins.
    Begin,
}

/// The decision about the word of a node.
enum Verdict {
    /// The word must be changed.
    Change,
    /// The node has the change.
    Done,
    Wait(Life),
    /// Nothing is to be recovered, so the coordinator's next life begins.
    Begin,
    End(TakeoverStep),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Changing(Change),
    /// Another life has claimed the life that is taken over.
    Waiting(Change, Life),
    /// The life that has claimed is being fenced.
    FencingRecoverer(Change, Life),
    Fencing,
    Recovering(Recovery),
    Ended(TakeoverStep),
}

/// A takeover of a life. The caller may abandon a takeover only when the life that performs the
/// takeover ends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Takeover {
    /// The life that is taken over. In a start, its incarnation is 0 until the word on the first
    /// node was read.
    of: Life,
    by: Life,
    line: Vec<Location>,
    log: Log,
    /// In a start, the only word that it may take over, if the caller has named one.
    over: Option<LifeWord>,
    /// The latest recoverer that was fenced.
    fenced: Option<Life>,
    stage: Stage,
}

impl Takeover {
    /// Creates the takeover of the life `of` by the live life `by`. `line` has the location of the
    /// line of `of`'s coordinator on every node, in the order of the nodes. `log` is the log of the
    /// same coordinator.
    pub fn new(of: Life, by: Life, line: Vec<Location>, log: Log) -> Takeover {
        let stage = Stage::Changing(Change::new(Kind::Claim, &line));
        Takeover { of, by, line, log, over: None, fenced: None, stage }
    }

    /// Creates the start of a coordinator as `life`, with its line and log. The start fences and
    /// recovers the coordinator's earlier life, unless that life is already recovered.
    pub fn start(life: Life, line: Vec<Location>, log: Log) -> Takeover {
        Takeover::new(Life { incarnation: 0, ..life }, life, line, log)
    }

    /// Restricts a start to the word that a [`Watch`](crate::Watch) has found silent. If the first
    /// node has another word, another process has started as the coordinator since, and the start
    /// ends as [`TakeoverStep::Lost`].
    pub fn over(self, word: LifeWord) -> Takeover {
        Takeover { over: Some(word), ..self }
    }

    /// Returns the life that is taken over. In a start, the incarnation is known when the start
    /// asks for a fence.
    pub fn of(&self) -> Life {
        self.of
    }

    /// Begins, or tries again after [`TakeoverStep::ClaimedBy`]. `resolve` returns the copies of a
    /// place, here and below.
    pub fn retry(&mut self, resolve: impl Fn(Place) -> Option<Copies>) -> TakeoverStep {
        if let Stage::Waiting(change, _) = &self.stage {
            self.stage = Stage::Changing(change.clone());
        }
        self.go_on(resolve)
    }

    /// Fences the life that [`TakeoverStep::ClaimedBy`] has named, and replaces its claim.
    pub fn replace(&mut self, resolve: impl Fn(Place) -> Option<Copies>) -> TakeoverStep {
        if let Stage::Waiting(change, recoverer) = &self.stage {
            self.stage = Stage::FencingRecoverer(change.clone(), *recoverer);
        }
        self.go_on(resolve)
    }

    /// Continues after [`TakeoverStep::Fence`].
    pub fn on_fenced(&mut self, resolve: impl Fn(Place) -> Option<Copies>) -> TakeoverStep {
        match &self.stage {
            Stage::FencingRecoverer(change, recoverer) => {
                self.fenced = Some(*recoverer);
                self.stage = Stage::Changing(change.clone());
            }
            Stage::Fencing => {
                let Log { slots, slot_bytes, copies } = self.log.clone();
                self.stage = Stage::Recovering(Recovery::new(self.of, slots, slot_bytes, copies));
            }
            _ => {}
        }
        self.go_on(resolve)
    }

    /// Continues with the outcomes of the last requests, in their order.
    pub fn on_outcomes(
        &mut self,
        outcomes: &[Outcome],
        resolve: impl Fn(Place) -> Option<Copies>,
    ) -> TakeoverStep {
        match &mut self.stage {
            Stage::Recovering(recovery) => {
                let step = recovery.on_outcomes(outcomes, &resolve);
                if let Some(step) = self.on_recovery(step) {
                    return step;
                }
            }
            Stage::Changing(change) => {
                if let Some(word) = change.on_outcome(outcomes.first().unwrap_or(&Outcome::Unknown)) {
                    self.on_word(word);
                }
            }
            _ => {}
        }
        self.go_on(resolve)
    }

    fn is_start(&self) -> bool {
        self.of.coordinator == self.by.coordinator
    }

    fn go_on(&mut self, resolve: impl Fn(Place) -> Option<Copies>) -> TakeoverStep {
        loop {
            match &mut self.stage {
                Stage::Changing(change) => {
                    let (kind, done) = (change.kind, change.done);
                    if let Some(&at) = change.left.last() {
                        let op = match change.seen {
                            None => Op::Read(8),
                            Some(seen) => {
                                Op::CompareSwap { compare: seen.bits(), swap: self.target(kind).bits() }
                            }
                        };
                        return TakeoverStep::Post(vec![Request { node: at.node, at: at.at, op }]);
                    }
                    self.stage = match kind {
                        _ if done < self.log.copies => Stage::Ended(TakeoverStep::TooFewNodes),
                        Kind::Claim => Stage::Fencing,
                        Kind::Recovered => Stage::Ended(TakeoverStep::Recovered),
                        Kind::Begin => Stage::Ended(TakeoverStep::Live),
                    };
                }
                Stage::Waiting(_, recoverer) => return TakeoverStep::ClaimedBy(*recoverer),
                Stage::FencingRecoverer(_, recoverer) => return TakeoverStep::Fence(*recoverer),
                Stage::Fencing => return TakeoverStep::Fence(self.of),
                Stage::Recovering(recovery) => {
                    let step = recovery.start(&resolve);
                    if let Some(step) = self.on_recovery(step) {
                        return step;
                    }
                }
                Stage::Ended(step) => return step.clone(),
            }
        }
    }

    /// Takes a step of the recovery. Returns the requests that it needs.
    fn on_recovery(&mut self, step: RecoveryStep) -> Option<TakeoverStep> {
        let kind = if self.is_start() { Kind::Begin } else { Kind::Recovered };
        self.stage = match step {
            RecoveryStep::Post(requests) => return Some(TakeoverStep::Post(requests)),
            RecoveryStep::Recovered => Stage::Changing(Change::new(kind, &self.line)),
            RecoveryStep::TooFewNodes => Stage::Ended(TakeoverStep::TooFewNodes),
            RecoveryStep::UnknownPlace(place) => Stage::Ended(TakeoverStep::UnknownPlace(place)),
        };
        None
    }

    /// Takes the word of the next node.
    fn on_word(&mut self, word: LifeWord) {
        let Stage::Changing(change) = &self.stage else { return };
        let mut change = change.clone();
        let verdict = match change.kind {
            Kind::Claim => self.claim(word, change.done == 0),
            Kind::Recovered => self.mark(word),
            Kind::Begin => self.begin(word),
        };
        self.stage = match verdict {
            Verdict::Change => {
                change.seen = Some(word);
                Stage::Changing(change)
            }
            Verdict::Done => {
                change.advance();
                Stage::Changing(change)
            }
            Verdict::Wait(recoverer) => Stage::Waiting(Change { seen: None, ..change }, recoverer),
            Verdict::Begin => Stage::Changing(Change { kind: Kind::Begin, seen: Some(word), ..change }),
            Verdict::End(step) => Stage::Ended(step),
        };
    }

    /// `is_first` is false if an earlier node already has the claim. The word on this node may then
    /// be outdated, because the life or an earlier recoverer ended before its change reached all
    /// nodes.
    fn claim(&mut self, word: LifeWord, is_first: bool) -> Verdict {
        if is_first && self.over.is_some_and(|over| word != over && word != self.target(Kind::Claim)) {
            return Verdict::End(TakeoverStep::Lost);
        }
        let state = word.state();
        if let LifeState::Claimed(recoverer) = state
            && self.fenced != Some(recoverer)
            && recoverer != self.by
            && (is_first || recoverer != self.of)
        {
            let fences_itself =
                recoverer.coordinator == self.by.coordinator && recoverer.incarnation > self.by.incarnation;
            return if fences_itself { Verdict::End(TakeoverStep::Lost) } else { Verdict::Wait(recoverer) };
        }
        if is_first && self.is_start() {
            if word.incarnation() >= self.by.incarnation {
                return Verdict::End(TakeoverStep::Lost);
            }
            if state == LifeState::Recovered {
                return Verdict::Begin;
            }
            self.of.incarnation = word.incarnation();
        }
        let is_over = word.incarnation() > self.of.incarnation || is_first && word.is_recovered(self.of);
        match is_over {
            true if self.is_start() => Verdict::End(TakeoverStep::Lost),
            true => Verdict::End(TakeoverStep::Recovered),
            false if word == self.target(Kind::Claim) => Verdict::Done,
            false if is_first && word.incarnation() < self.of.incarnation => Verdict::End(TakeoverStep::Lost),
            false => Verdict::Change,
        }
    }

    fn mark(&self, word: LifeWord) -> Verdict {
        if word.is_recovered(self.of) {
            Verdict::Done
        } else if word == self.target(Kind::Claim) {
            Verdict::Change
        } else {
            Verdict::End(TakeoverStep::Lost)
        }
    }

    fn begin(&self, word: LifeWord) -> Verdict {
        if word == self.target(Kind::Begin) {
            return Verdict::Done;
        }
        let may_begin = match word.state() {
            LifeState::Recovered => word.incarnation() < self.by.incarnation,
            LifeState::Claimed(recoverer) => recoverer == self.by,
            LifeState::Live => false,
        };
        if may_begin { Verdict::Change } else { Verdict::End(TakeoverStep::Lost) }
    }

    /// Returns the word that a change writes.
    fn target(&self, kind: Kind) -> LifeWord {
        match kind {
            Kind::Claim => LifeWord::new(self.of, LifeState::Claimed(self.by)),
            Kind::Recovered => LifeWord::new(self.of, LifeState::Recovered),
            Kind::Begin => LifeWord::new(self.by, LifeState::Live),
        }
    }
}

impl Change {
    fn new(kind: Kind, line: &[Location]) -> Change {
        let mut left = line.to_vec();
        if kind != Kind::Recovered {
            left.reverse();
        }
        Change { kind, left, seen: None, done: 0 }
    }

    fn advance(&mut self) {
        self.left.pop();
        self.seen = None;
        self.done += 1;
    }

    /// Takes the outcome of the READ or compare-and-swap at the next node. Returns the word if the
    /// change depends on it.
    fn on_outcome(&mut self, outcome: &Outcome) -> Option<LifeWord> {
        if *outcome == Outcome::NodeDead {
            self.left.pop();
            self.seen = None;
            return None;
        }
        let word = outcome.word().map(LifeWord::from_bits);
        match (word, self.seen) {
            (Some(word), Some(seen)) if word == seen => self.advance(),
            (Some(word), _) => return Some(word),
            (None, _) => self.seen = None,
        }
        None
    }
}
