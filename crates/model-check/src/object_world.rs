//! Clients of shared objects (`mitra-objects`) under an adversary: their operations, the peer's
//! memory, and paths that fail.
//!
//! The world runs the product's state machines. A world has one word for each address that is a
//! multiple of 8, from 0. Each client has one queue pair, on which the peer's NIC executes the
//! client's requests in order. When a path fails, the NIC has executed a prefix of the posted
//! requests. The path is fenced, and the client gets the outcomes that the evidence allows.

use std::fmt::Debug;
use std::hash::Hash;

use mitra_objects::{Operation, Outcome, Progress, Request, Requests, Word, WordOp};
use mitra_prng::Prng;
use mitra_verbs::{Key, RemoteAddr};

use crate::{Exhaustive, Exploration, RunLimits, SeedResult, Violation};

/// The result of an operation of a scenario.
pub type OutputOf<S> = <<S as Scenario>::Operation as Operation>::Output;

/// The operations of a world's clients, and the property that must hold.
pub trait Scenario: Clone + Eq + Hash + Debug + Send + Sync + 'static {
    /// The operations.
    type Operation: Operation<Output: Send + Sync> + Clone + Eq + Hash + Debug + Send + Sync;
    /// The name of the property.
    const PROPERTY: &'static str;

    /// Whether the client has another operation.
    fn has_next(&self, client: usize) -> bool;
    /// Begins the client's next operation. The caller has checked [`Scenario::has_next`].
    fn begin(&mut self, client: usize, memory: &[u64]) -> Self::Operation;
    /// The peer's NIC has executed a request and thereby changed the memory. `is_current` is false
    /// if the operation that posted the request has ended.
    fn on_change(&mut self, client: usize, is_current: bool, request: Request, memory: &[u64]);
    /// The operation of a client has ended.
    fn on_end(&mut self, client: usize, output: OutputOf<Self>, memory: &[u64]);
    /// Whether the property holds.
    fn holds(&self) -> bool;

    /// Whether the client may crash now. Its next life has a new path.
    fn may_crash(&self, _client: usize) -> bool {
        false
    }
    /// The client crashes, with its operation if one is under way.
    fn on_crash(&mut self, _client: usize) {}

    /// Lets a mutant of the scenario change the requests before they are posted.
    fn alter_requests(&mut self, _client: usize, _requests: &mut Requests) {}
    /// Lets a mutant of the scenario change the outcomes of the requests that were posted.
    fn alter_outcomes(&mut self, _client: usize, _posted: &[Request], _outcomes: &mut Vec<Outcome>) {}
}

/// The rules of the NICs and paths of a world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathRules {
    /// Whether a path is fenced before a client gets outcomes other than [`Outcome::Executed`].
    /// Without the fence, requests of the old path may be executed later.
    pub fence: bool,
    /// Whether an atomic is atomic with respect to WRITEs. If not, an atomic loads in one step and
    /// stores in the next step. No other atomic is executed between these steps.
    pub write_atomicity: bool,
}

impl PathRules {
    /// Fenced paths; atomics of a NIC that are atomic only among themselves, as IBTA guarantees.
    pub const IBTA: PathRules = PathRules { fence: true, write_atomicity: false };
}

/// The evidence about requests whose responses were lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LostResponses {
    /// There is no evidence.
    NoEvidence,
    /// A completion log with entries for this number of requests. These requests were executed, the
    /// next request is unknown, and the requests behind it were not executed.
    Log(u8),
}

/// One step of the adversary. The first number is the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectStep {
    /// The client begins its next operation.
    Begin(u8),
    /// The peer's NIC executes the client's next request, or the load or the store of this request.
    Execute(u8),
    /// The responses to all requests reach the client.
    Respond(u8),
    /// The path fails and is fenced. Before the failure, the responses to this number of requests
    /// reached the client.
    Fail(u8, u8, LostResponses),
    /// The client crashes, and its path is fenced.
    Crash(u8),
    /// The peer's NIC executes a request that was delayed on an old path. This is impossible if
    /// paths are fenced.
    ExecuteLate(u8),
}

impl ObjectStep {
    fn is_fault(&self) -> bool {
        matches!(self, ObjectStep::Fail(..) | ObjectStep::Crash(_))
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client<O> {
    operation: Option<O>,
    begun: u8,
    posted: Requests,
    /// The values that the executed requests returned.
    executed: Vec<u64>,
    /// The value that the next request has loaded and not stored yet.
    loaded: Option<u64>,
    /// The requests of old paths that were not fenced, with the number of their operation.
    late: Vec<(u8, Request)>,
    failures_left: u8,
}

/// The state of the memory, the clients and their paths.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ObjectWorld<S: Scenario> {
    memory: Vec<u64>,
    clients: Vec<Client<S::Operation>>,
    scenario: S,
    rules: PathRules,
}

/// Returns the word at this index of a world's memory.
pub fn word(index: u64) -> Word {
    Word::new(RemoteAddr { addr: 8 * index, rkey: Key(0) }).expect("a multiple of 8 is aligned")
}

fn index(word: Word) -> usize {
    (word.remote().addr / 8) as usize
}

impl<S: Scenario> ObjectWorld<S> {
    /// Creates a world. `failures` is the number of times that the path of each client may fail.
    pub fn new(memory: Vec<u64>, failures: &[u8], scenario: S, rules: PathRules) -> ObjectWorld<S> {
        let client = |&failures_left: &u8| Client {
            operation: None,
            begun: 0,
            posted: Requests::new(),
            executed: Vec::new(),
            loaded: None,
            late: Vec::new(),
            failures_left,
        };
        ObjectWorld { memory, clients: failures.iter().map(client).collect(), scenario, rules }
    }

    /// Explores every order of steps.
    pub fn explore(self) -> Exploration {
        self.exhaustive().explore()
    }

    fn exhaustive(self) -> Exhaustive<ObjectWorld<S>, ObjectStep> {
        Exhaustive::new(self, ObjectWorld::steps, ObjectWorld::apply)
            .always(S::PROPERTY, |world| world.scenario.holds())
            .always("every operation ends", |world| !world.steps().is_empty() || world.all_ended())
    }

    /// Serves the states to a web browser at an address, until the program ends.
    pub fn serve(self, address: std::net::SocketAddr) {
        self.exhaustive().serve(address);
    }

    /// Runs the world with steps that the seed chooses, until every operation has ended. Paths fail
    /// only during the first `limits.adversary_steps` steps.
    pub fn run(mut self, seed: u64, limits: RunLimits) -> SeedResult {
        let rng = &mut Prng::stream(seed, "objects");
        let mut result = SeedResult { steps: 0, faults: 0, violation: None };
        loop {
            let mut steps = self.steps();
            if result.steps >= u64::from(limits.adversary_steps) {
                steps.retain(|step| !step.is_fault());
            }
            // Failures are steps of many kinds. Without this choice, most steps would be failures.
            let calm: Vec<ObjectStep> = steps.iter().copied().filter(|step| !step.is_fault()).collect();
            let choice = if rng.below(8) == 0 || calm.is_empty() { &steps } else { &calm };
            if choice.is_empty() {
                result.violation = (!self.all_ended()).then_some(Violation::Stuck);
                return result;
            }
            if result.steps >= u64::from(limits.adversary_steps + limits.stable_steps) {
                result.violation = Some(Violation::Stuck);
                return result;
            }
            let step = *rng.pick(choice);
            self.apply(step);
            result.steps += 1;
            result.faults += u32::from(step.is_fault());
            if !self.scenario.holds() {
                result.violation = Some(Violation::Property(S::PROPERTY));
                return result;
            }
        }
    }

    fn all_ended(&self) -> bool {
        (0..self.clients.len())
            .all(|client| self.clients[client].operation.is_none() && !self.scenario.has_next(client))
    }

    fn steps(&self) -> Vec<ObjectStep> {
        let mut steps = Vec::new();
        let atomic_under_way = self.clients.iter().position(|client| client.loaded.is_some());
        for (n, client) in self.clients.iter().enumerate() {
            let id = n as u8;
            let (executed, posted) = (client.executed.len(), client.posted.len());
            if client.operation.is_none() {
                if self.scenario.has_next(n) {
                    steps.push(ObjectStep::Begin(id));
                }
            } else if executed < posted {
                let is_atomic =
                    matches!(client.posted[executed].op, WordOp::CompareSwap { .. } | WordOp::FetchAdd(_));
                if !is_atomic || atomic_under_way.is_none_or(|other| other == n) {
                    steps.push(ObjectStep::Execute(id));
                }
            } else {
                steps.push(ObjectStep::Respond(id));
            }
            // The fence waits until an atomic that has begun is complete.
            if client.operation.is_some() && client.failures_left > 0 && client.loaded.is_none() {
                for delivered in 0..=executed.min(posted - 1) {
                    steps.push(ObjectStep::Fail(id, delivered as u8, LostResponses::NoEvidence));
                    // The entry of the last executed request may be missing.
                    for entries in executed.saturating_sub(1).max(delivered)..=executed {
                        steps.push(ObjectStep::Fail(id, delivered as u8, LostResponses::Log(entries as u8)));
                    }
                }
            }
            if self.scenario.may_crash(n) && client.loaded.is_none() {
                steps.push(ObjectStep::Crash(id));
            }
            if !client.late.is_empty() {
                steps.push(ObjectStep::ExecuteLate(id));
            }
        }
        steps
    }

    fn apply(&mut self, step: ObjectStep) {
        match step {
            ObjectStep::Begin(id) => {
                let mut operation = self.scenario.begin(id.into(), &self.memory);
                let progress = operation.start();
                let client = &mut self.clients[usize::from(id)];
                client.operation = Some(operation);
                client.begun += 1;
                self.advance(id, progress);
            }
            ObjectStep::Execute(id) => self.execute(id),
            ObjectStep::Respond(id) => {
                let client = &self.clients[usize::from(id)];
                let outcomes = client.executed.iter().map(|&value| Outcome::Executed { value }).collect();
                self.deliver(id, outcomes);
            }
            ObjectStep::Fail(id, delivered, lost) => self.fail(id, delivered.into(), lost),
            ObjectStep::Crash(id) => {
                self.leave_path(id);
                let client = &mut self.clients[usize::from(id)];
                client.executed.clear();
                client.posted.clear();
                client.operation = None;
                self.scenario.on_crash(id.into());
            }
            ObjectStep::ExecuteLate(id) => {
                let client = &mut self.clients[usize::from(id)];
                let (operation, request) = client.late.remove(0);
                let is_current = client.operation.is_some() && client.begun == operation;
                let before = self.memory[index(request.word)];
                self.store(id, is_current, request, before);
            }
        }
    }

    fn execute(&mut self, id: u8) {
        let client = &mut self.clients[usize::from(id)];
        let request = client.posted[client.executed.len()];
        let is_atomic = matches!(request.op, WordOp::CompareSwap { .. } | WordOp::FetchAdd(_));
        let before = match client.loaded.take() {
            Some(loaded) => loaded,
            None => {
                let now = self.memory[index(request.word)];
                if is_atomic && !self.rules.write_atomicity {
                    client.loaded = Some(now);
                    return;
                }
                now
            }
        };
        let value = if matches!(request.op, WordOp::Write(_)) { 0 } else { before };
        client.executed.push(value);
        self.store(id, true, request, before);
    }

    /// Stores the result of a request that has loaded `before`.
    fn store(&mut self, id: u8, is_current: bool, request: Request, before: u64) {
        let after = match request.op {
            WordOp::Write(value) => value,
            WordOp::CompareSwap { compare, swap } if compare == before => swap,
            WordOp::FetchAdd(add) => before.wrapping_add(add),
            WordOp::Read | WordOp::CompareSwap { .. } => return,
        };
        self.memory[index(request.word)] = after;
        self.scenario.on_change(id.into(), is_current, request, &self.memory);
    }

    fn fail(&mut self, id: u8, delivered: usize, lost: LostResponses) {
        let client = &mut self.clients[usize::from(id)];
        client.failures_left -= 1;
        let outcome = |nth: usize| match lost {
            _ if nth < delivered => Outcome::Executed { value: client.executed[nth] },
            LostResponses::NoEvidence => Outcome::Unknown,
            LostResponses::Log(entries) => match nth.cmp(&usize::from(entries)) {
                std::cmp::Ordering::Less => Outcome::ValueLost,
                std::cmp::Ordering::Equal => Outcome::Unknown,
                std::cmp::Ordering::Greater => Outcome::NotExecuted,
            },
        };
        let outcomes = (0..client.posted.len()).map(outcome).collect();
        self.leave_path(id);
        self.deliver(id, outcomes);
    }

    /// Leaves the path of a client. Without a fence, the requests that were not executed may be
    /// executed later.
    fn leave_path(&mut self, id: u8) {
        if !self.rules.fence {
            let client = &mut self.clients[usize::from(id)];
            let operation = client.begun;
            client.late.extend(client.posted[client.executed.len()..].iter().map(|&r| (operation, r)));
        }
    }

    /// Passes the outcomes of all requests to the client's operation.
    fn deliver(&mut self, id: u8, mut outcomes: Vec<Outcome>) {
        let client = &mut self.clients[usize::from(id)];
        client.executed.clear();
        let posted = std::mem::take(&mut client.posted);
        self.scenario.alter_outcomes(id.into(), &posted, &mut outcomes);
        let Some(operation) = &mut client.operation else { return };
        let progress = operation.on_outcomes(&outcomes);
        self.advance(id, progress);
    }

    fn advance(&mut self, id: u8, progress: Progress<OutputOf<S>>) {
        let client = &mut self.clients[usize::from(id)];
        match progress {
            Progress::Post(mut requests) => {
                self.scenario.alter_requests(id.into(), &mut requests);
                client.posted = requests;
            }
            Progress::Done(output) => {
                client.operation = None;
                self.scenario.on_end(id.into(), output, &self.memory);
            }
        }
    }
}
