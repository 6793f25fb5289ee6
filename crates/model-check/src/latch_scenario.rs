//! Participants of a latch that is used again and again: every arrival counts once, at its own
//! identity.

use mitra_objects::latch::{Arrive, Arrived, Latch, LatchError, LatchState, Reset};
use mitra_objects::{Operation, Outcome, Progress, Request, Requests, WordOp};

use crate::object_world::{ObjectWorld, PathRules, Scenario, word};
use crate::{Exploration, RunLimits, SeedResult};

/// A rule that a mutant breaks. Each variant describes its mutant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BrokenLatchRule {
    /// An arrival increments the word instead of setting the participant's bit.
    SetBit,
    /// The word has no identity.
    CoupleIdentity,
    /// A reset replaces any content of the word.
    ResetWhenOpen,
}

/// The configuration of a world with one latch. Participant 0 resets the latch when the latch is
/// open. If paths are fenced, participant 0 also tries to reset a latch that is not open yet.
/// Without a fence, a copy of the refused reset could be executed after the latch has opened.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LatchWorldConfig {
    /// The number of times that the latch is used.
    pub rounds: u64,
    /// The number of times that the path of each participant may fail.
    pub failures: Vec<u8>,
    /// The rules of NICs and paths.
    pub rules: PathRules,
    /// The rule that is broken, for a mutant.
    pub broken: Option<BrokenLatchRule>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Before,
    Arriving,
    /// Participant 0 tries to reset the latch next, whether or not it is open.
    Arrived,
    Resetting,
    Waiting,
}

/// The participants of a latch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LatchScenario {
    config: LatchWorldConfig,
    latch: Latch,
    /// The identity that each participant uses, and the participant's stage.
    participants: Vec<(u64, Stage)>,
    content: u64,
    /// Whether an arrival of each participant was executed since the last reset.
    counted: Vec<bool>,
    resets: u64,
    /// The request of each participant before the mutant altered it.
    original: Vec<Option<Request>>,
    holds: bool,
}

/// An operation of a participant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LatchOperation {
    /// An arrival.
    Arrive(Arrive),
    /// A reset.
    Reset(Reset),
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LatchOutput {
    /// The result of an arrival.
    Arrived(Result<Arrived, LatchError>),
    /// The result of a reset.
    Reset(Result<LatchState, LatchError>),
}

impl Operation for LatchOperation {
    type Output = LatchOutput;

    fn start(&mut self) -> Progress<LatchOutput> {
        match self {
            LatchOperation::Arrive(operation) => operation.start().map(LatchOutput::Arrived),
            LatchOperation::Reset(operation) => operation.start().map(LatchOutput::Reset),
        }
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<LatchOutput> {
        match self {
            LatchOperation::Arrive(operation) => operation.on_outcomes(outcomes).map(LatchOutput::Arrived),
            LatchOperation::Reset(operation) => operation.on_outcomes(outcomes).map(LatchOutput::Reset),
        }
    }
}

impl LatchWorldConfig {
    /// Returns the world. The memory is the latch's word.
    ///
    /// # Panics
    /// If the number of participants, which is the length of `failures`, is invalid.
    pub fn world(self) -> ObjectWorld<LatchScenario> {
        let participants = self.failures.len();
        let (failures, rules) = (self.failures.clone(), self.rules);
        let scenario = LatchScenario {
            latch: Latch::new(word(0), participants as u8).expect("a valid number of participants"),
            participants: vec![(0, Stage::Before); participants],
            content: 0,
            counted: vec![false; participants],
            resets: 0,
            original: vec![None; participants],
            holds: true,
            config: self,
        };
        ObjectWorld::new(vec![0], &failures, scenario, rules)
    }
}

impl LatchScenario {
    /// Returns whether the latch is open according to its word.
    fn is_open(&self, content: u64) -> bool {
        match self.config.broken {
            Some(BrokenLatchRule::SetBit) => content & self.bits() == self.participants.len() as u64,
            _ => self.latch.state(content).is_open,
        }
    }

    fn bits(&self) -> u64 {
        (1 << self.participants.len()) - 1
    }

    fn on_arrival(&mut self, participant: usize) {
        let (identity, stage) = self.participants[participant];
        self.holds &= !self.counted[participant] && identity == self.resets && stage != Stage::Before;
        self.counted[participant] = true;
    }

    fn on_reset(&mut self) {
        self.holds &= self.counted.iter().all(|&counted| counted);
        self.counted.fill(false);
        self.resets += 1;
    }
}

impl Scenario for LatchScenario {
    type Operation = LatchOperation;
    const PROPERTY: &'static str = "every arrival counts once, at its own identity";

    fn has_next(&self, client: usize) -> bool {
        let (identity, stage) = self.participants[client];
        match stage {
            Stage::Before | Stage::Arrived => identity < self.config.rounds,
            Stage::Waiting if client == 0 => self.is_open(self.content),
            Stage::Waiting => identity < self.resets && identity + 1 < self.config.rounds,
            Stage::Arriving | Stage::Resetting => false,
        }
    }

    fn begin(&mut self, client: usize, _memory: &[u64]) -> LatchOperation {
        let (identity, stage) = &mut self.participants[client];
        if client == 0 && *stage != Stage::Before {
            *stage = Stage::Resetting;
            return LatchOperation::Reset(self.latch.reset(*identity).expect("few identities"));
        }
        *identity += u64::from(*stage == Stage::Waiting);
        *stage = Stage::Arriving;
        LatchOperation::Arrive(self.latch.arrive(client as u8, *identity).expect("a participant"))
    }

    fn on_change(&mut self, client: usize, _is_current: bool, _request: Request, memory: &[u64]) {
        let (old, new) = (self.content, memory[0]);
        self.content = new;
        let next_identity = self.latch.state(old).identity + 1;
        if new & self.bits() == 0 && (self.latch.state(new).identity == next_identity || self.is_open(old)) {
            self.on_reset();
        } else if old != new {
            self.on_arrival(client);
        }
        let counted = self.counted.iter().filter(|&&counted| counted).count();
        self.holds &= self.is_open(new) == (counted == self.participants.len());
    }

    fn on_end(&mut self, client: usize, output: LatchOutput, _memory: &[u64]) {
        let (identity, stage) = &mut self.participants[client];
        let is_reset = self.resets > *identity;
        match output {
            LatchOutput::Arrived(result) => {
                self.holds &= match result {
                    Ok(Arrived::Counted(_)) => is_reset || self.counted[client],
                    Ok(Arrived::Past(_)) => is_reset,
                    Err(_) => false,
                };
                let resets_at_once = client == 0 && self.config.rules.fence;
                *stage = if resets_at_once { Stage::Arrived } else { Stage::Waiting };
            }
            LatchOutput::Reset(Ok(_)) => {
                self.holds &= is_reset;
                (*identity, *stage) = (*identity + 1, Stage::Before);
            }
            LatchOutput::Reset(Err(error)) => {
                self.holds &= matches!(error, LatchError::NotOpen { .. });
                *stage = Stage::Waiting;
            }
        }
    }

    fn holds(&self) -> bool {
        self.holds
    }

    fn alter_requests(&mut self, client: usize, requests: &mut Requests) {
        let is_reset = self.participants[client].1 == Stage::Resetting;
        let (bits, participants, content) = (self.bits(), self.participants.len(), self.content);
        let Some(Request { op, .. }) = requests.first_mut() else { return };
        let WordOp::CompareSwap { compare, swap } = op else { return };
        let original = Request::compare_swap(word(0), *compare, *swap);
        match self.config.broken {
            None => return,
            Some(BrokenLatchRule::SetBit) if is_reset => {
                *compare = *compare & !bits | participants as u64;
            }
            Some(BrokenLatchRule::SetBit) => *op = WordOp::FetchAdd(1),
            Some(BrokenLatchRule::CoupleIdentity) => (*compare, *swap) = (*compare & bits, *swap & bits),
            Some(BrokenLatchRule::ResetWhenOpen) if is_reset => *compare = content,
            Some(BrokenLatchRule::ResetWhenOpen) => {}
        }
        self.original[client] = Some(original);
    }

    fn alter_outcomes(&mut self, client: usize, posted: &[Request], outcomes: &mut Vec<Outcome>) {
        let Some(original) = self.original[client].take() else { return };
        let WordOp::CompareSwap { compare: expected, .. } = original.op else { return };
        for (request, outcome) in posted.iter().zip(outcomes) {
            let Outcome::Executed { value } = outcome else { continue };
            *value = match request.op {
                // The altered request did what the original request should do.
                WordOp::FetchAdd(_) => expected,
                WordOp::CompareSwap { compare, .. } if compare == *value => expected,
                _ if self.config.broken == Some(BrokenLatchRule::CoupleIdentity) => {
                    *value | expected & !self.bits()
                }
                _ => *value,
            };
        }
    }
}

/// Returns a configuration in which participants use a latch for `rounds` rounds, and the path of
/// each participant fails once. No path is fenced: the latch needs no fence if one NIC executes all
/// requests, including the delayed requests. One NIC does not interleave its atomics, so an atomic
/// takes one step in this world.
pub fn unfenced(participants: usize, rounds: u64) -> LatchWorldConfig {
    let rules = PathRules { fence: false, write_atomicity: true };
    LatchWorldConfig { rounds, failures: vec![1; participants], rules, broken: None }
}

/// Returns the configuration of [`unfenced`] with `PathRules::IBTA`: paths are fenced, and atomics
/// are atomic only among themselves.
pub fn fenced(participants: usize, rounds: u64) -> LatchWorldConfig {
    LatchWorldConfig { rules: PathRules::IBTA, ..unfenced(participants, rounds) }
}

pub(crate) fn explore() -> Exploration {
    (unfenced(3, 2).world().explore()).and_then(|| fenced(3, 2).world().explore())
}

pub(crate) fn run(seed: u64) -> SeedResult {
    let participants = 2 + (seed / 2 % 4) as usize;
    let config = if seed.is_multiple_of(2) { fenced(participants, 6) } else { unfenced(participants, 6) };
    let config = LatchWorldConfig { failures: vec![4; participants], ..config };
    config.world().run(seed, RunLimits { adversary_steps: 300, stable_steps: 4_000 })
}
