//! Clients that lock and unlock a mutex. At most one client holds the mutex, and the mutex's word
//! never names an idle client.

use std::num::NonZeroU16;

use mitra_objects::mutex::{Held, Lock, LockResult, MAX_NUMBER, MutexClient, MutexError, MutexState, Unlock};
use mitra_objects::{Operation, Outcome, Progress, Request, Requests, WordOp};

use crate::object_world::{ObjectWorld, PathRules, Scenario, word};
use crate::{Exploration, RunLimits, SeedResult};

/// A rule that a mutant breaks. Each variant describes its mutant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BrokenMutexRule {
    /// The word contains the owner only, not the number of the lock.
    NumberLocks,
    /// A lock whose outcome is unknown counts as taken, and is unlocked.
    UnlockKnownLocks,
    /// A lock whose outcome is unknown counts as refused.
    RepeatUnknownLocks,
    /// The next life of a client assumes that the mutex was never locked.
    ReadWordFirst,
}

/// The configuration of a world with one mutex.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MutexWorldConfig {
    /// The number of times that each client locks the mutex.
    pub locks: u8,
    /// The number of times that the path of each client may fail.
    pub failures: Vec<u8>,
    /// The number of times that each client may crash. The next life of a client locks the mutex as
    /// any other client does.
    pub crashes: u8,
    /// The rules of NICs and paths.
    pub rules: PathRules,
    /// The rule that is broken, for a mutant.
    pub broken: Option<BrokenMutexRule>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle(MutexClient),
    /// The mutex was held by another client.
    Refused(MutexClient),
    /// The next life of a client that has crashed.
    Restarted(MutexClient),
    /// A restarted client found the mutex held, in this state. Without a fence, delayed requests of
    /// its earlier life can still change the word, so the client waits until the word differs from
    /// this state and names no other client.
    Waiting(MutexClient, MutexState),
    Locking,
    Holding(Held),
    Unlocking,
    Failed,
}

/// The clients of a mutex.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MutexScenario {
    config: MutexWorldConfig,
    stages: Vec<Stage>,
    locks_left: Vec<u8>,
    crashes_left: Vec<u8>,
    content: u64,
    /// The request of each client before the mutant altered it.
    original: Vec<Option<Request>>,
}

/// An operation of a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MutexOperation {
    /// A lock.
    Lock(Lock),
    /// An unlock.
    Unlock(Unlock),
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MutexOutput {
    /// The result of a lock.
    Lock(Result<LockResult, MutexError>),
    /// The result of an unlock.
    Unlock(Result<MutexClient, MutexError>),
}

impl Operation for MutexOperation {
    type Output = MutexOutput;

    fn start(&mut self) -> Progress<MutexOutput> {
        match self {
            MutexOperation::Lock(operation) => operation.start().map(MutexOutput::Lock),
            MutexOperation::Unlock(operation) => operation.start().map(MutexOutput::Unlock),
        }
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<MutexOutput> {
        match self {
            MutexOperation::Lock(operation) => operation.on_outcomes(outcomes).map(MutexOutput::Lock),
            MutexOperation::Unlock(operation) => operation.on_outcomes(outcomes).map(MutexOutput::Unlock),
        }
    }
}

impl MutexWorldConfig {
    /// Returns the world. The memory is the mutex's word.
    pub fn world(self) -> ObjectWorld<MutexScenario> {
        let (failures, rules, clients) = (self.failures.clone(), self.rules, self.failures.len());
        let scenario = MutexScenario {
            stages: (0..clients)
                .map(|client| Stage::Idle(MutexClient::new(word(0), owner(client))))
                .collect(),
            locks_left: vec![self.locks; clients],
            crashes_left: vec![self.crashes; clients],
            content: 0,
            original: vec![None; clients],
            config: self,
        };
        ObjectWorld::new(vec![0], &failures, scenario, rules)
    }
}

fn owner(client: usize) -> NonZeroU16 {
    NonZeroU16::MIN.saturating_add(client as u16)
}

impl Scenario for MutexScenario {
    type Operation = MutexOperation;
    const PROPERTY: &'static str =
        "at most one client holds the mutex, and its word names no client that does not know";

    fn has_next(&self, client: usize) -> bool {
        match self.stages[client] {
            Stage::Idle(_) => self.locks_left[client] > 0,
            Stage::Refused(_) => MutexState::from_word(self.content).owner.is_none(),
            Stage::Waiting(_, seen) => {
                let now = MutexState::from_word(self.content);
                now != seen && now.owner.is_none_or(|holder| holder == owner(client))
            }
            Stage::Holding(_) | Stage::Restarted(_) => true,
            Stage::Locking | Stage::Unlocking | Stage::Failed => false,
        }
    }

    fn begin(&mut self, client: usize, _memory: &[u64]) -> MutexOperation {
        match std::mem::replace(&mut self.stages[client], Stage::Locking) {
            Stage::Idle(free) | Stage::Refused(free) | Stage::Restarted(free) | Stage::Waiting(free, _) => {
                MutexOperation::Lock(free.lock())
            }
            Stage::Holding(held) => {
                self.stages[client] = Stage::Unlocking;
                MutexOperation::Unlock(held.unlock())
            }
            Stage::Locking | Stage::Unlocking | Stage::Failed => unreachable!("it has no next operation"),
        }
    }

    fn on_change(&mut self, _client: usize, _is_current: bool, _request: Request, memory: &[u64]) {
        self.content = memory[0];
    }

    fn on_end(&mut self, client: usize, output: MutexOutput, _memory: &[u64]) {
        self.stages[client] = match output {
            MutexOutput::Lock(Ok(LockResult::Locked(held))) => {
                self.locks_left[client] = self.locks_left[client].saturating_sub(1);
                Stage::Holding(held)
            }
            MutexOutput::Lock(Ok(LockResult::Busy { client: free, holder })) => {
                let has_crashed = self.crashes_left[client] < self.config.crashes;
                if has_crashed && !self.config.rules.fence {
                    Stage::Waiting(free, holder)
                } else if has_crashed && holder.owner == Some(owner(client)) {
                    free.resume(holder).map_or(Stage::Failed, Stage::Holding)
                } else {
                    Stage::Refused(free)
                }
            }
            MutexOutput::Unlock(Ok(client)) => Stage::Idle(client),
            MutexOutput::Lock(Err(_)) | MutexOutput::Unlock(Err(_)) => Stage::Failed,
        };
    }

    fn holds(&self) -> bool {
        let named = MutexState::from_word(self.content).owner;
        let is_right = |(client, stage): (usize, &Stage)| match stage {
            Stage::Idle(_) | Stage::Refused(_) => named != Some(owner(client)),
            Stage::Holding(_) => named == Some(owner(client)),
            Stage::Restarted(_) | Stage::Waiting(..) | Stage::Locking | Stage::Unlocking => true,
            Stage::Failed => false,
        };
        self.stages.iter().enumerate().all(is_right)
    }

    fn may_crash(&self, client: usize) -> bool {
        let is_under_way =
            matches!(self.stages[client], Stage::Locking | Stage::Holding(_) | Stage::Unlocking);
        is_under_way && self.crashes_left[client] > 0
    }

    fn on_crash(&mut self, client: usize) {
        self.crashes_left[client] -= 1;
        self.stages[client] = Stage::Restarted(MutexClient::new(word(0), owner(client)));
    }

    fn alter_requests(&mut self, client: usize, requests: &mut Requests) {
        let Some(request) = requests.first_mut() else { return };
        self.original[client] = Some(*request);
        if let (Some(BrokenMutexRule::NumberLocks), WordOp::CompareSwap { compare, swap }) =
            (self.config.broken, &mut request.op)
        {
            (*compare, *swap) = (*compare & !MAX_NUMBER, *swap & !MAX_NUMBER);
        }
    }

    fn alter_outcomes(&mut self, client: usize, _posted: &[Request], outcomes: &mut Vec<Outcome>) {
        let Some(original) = self.original[client].take() else { return };
        if let (Some(BrokenMutexRule::ReadWordFirst), WordOp::Read, Some(Outcome::Executed { value })) =
            (self.config.broken, original.op, outcomes.first_mut())
        {
            *value = 0;
        }
        let WordOp::CompareSwap { compare, swap } = original.op else { return };
        let is_unknown_lock =
            self.stages[client] == Stage::Locking && outcomes.first() == Some(&Outcome::Unknown);
        match (self.config.broken, outcomes.first_mut()) {
            (Some(BrokenMutexRule::UnlockKnownLocks), Some(outcome)) if is_unknown_lock => {
                *outcome = Outcome::Executed { value: compare };
            }
            (Some(BrokenMutexRule::RepeatUnknownLocks), Some(outcome)) if is_unknown_lock => {
                *outcome = Outcome::Executed { value: swap | !MAX_NUMBER };
            }
            (Some(BrokenMutexRule::NumberLocks), Some(Outcome::Executed { value })) => {
                // The mutant's word has no number, so the client gets the number that it expects.
                let found = [compare, swap].into_iter().find(|word| word & !MAX_NUMBER == *value);
                *value = found.unwrap_or(*value | (swap.max(compare) & MAX_NUMBER));
            }
            _ => {}
        }
    }
}

/// Returns a configuration in which each client locks the mutex `locks` times, and the path of each
/// client may fail once. No path is fenced, because the mutex's word needs no fence.
pub fn unfenced(clients: usize, locks: u8) -> MutexWorldConfig {
    let rules = PathRules { fence: false, ..PathRules::IBTA };
    MutexWorldConfig { locks, failures: vec![1; clients], crashes: 0, rules, broken: None }
}

/// Returns the configuration of [`unfenced`], but with fenced paths.
pub fn fenced(clients: usize, locks: u8) -> MutexWorldConfig {
    MutexWorldConfig { rules: PathRules::IBTA, ..unfenced(clients, locks) }
}

/// Returns a configuration in which each client may crash once, and no path fails. The next life of
/// a client locks the mutex without knowledge of the earlier life.
pub fn crashing(config: MutexWorldConfig) -> MutexWorldConfig {
    MutexWorldConfig { failures: vec![0; config.failures.len()], crashes: 1, ..config }
}

pub(crate) fn explore() -> Exploration {
    (unfenced(2, 2).world().explore())
        .and_then(|| fenced(3, 1).world().explore())
        .and_then(|| fenced(2, 3).world().explore())
        .and_then(|| crashing(unfenced(2, 1)).world().explore())
        .and_then(|| crashing(fenced(2, 2)).world().explore())
}

pub(crate) fn run(seed: u64) -> SeedResult {
    let clients = 2 + (seed / 2 % 4) as usize;
    let config = if seed.is_multiple_of(2) { fenced(clients, 5) } else { unfenced(clients, 5) };
    let config = MutexWorldConfig { failures: vec![4; clients], crashes: (seed / 8 % 3) as u8, ..config };
    config.world().run(seed, RunLimits { adversary_steps: 300, stable_steps: 4_000 })
}
