//! Runs from a seed: an adversary with pseudo-random choices, then a stable period in which every
//! correct process must decide.

use std::fmt;

use mitra_consensus::{MemoryId, Process, ProcessId};
use mitra_prng::Prng;

use crate::{Step, World};

/// The maximum length of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLimits {
    /// The maximum number of steps before the stable period. The seed selects the actual number.
    pub adversary_steps: u32,
    /// The number of steps of the stable period within which every correct process must decide; in
    /// an election, the number of rounds.
    pub stable_steps: u32,
}

/// A violated property.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// Two processes decided different values.
    Disagreement,
    /// A process decided a value that no process proposed.
    Invalid,
    /// No sequential order of the clients' operations explains the responses.
    NotLinearizable,
    /// A correct process has not decided in the stable period.
    Stuck,
    /// In the stable period, the live processes do not keep naming the same live process as the
    /// leader.
    NoStableLeader,
    /// The leader is stable, but a process still sends messages, or a process other than the leader
    /// writes.
    NotQuiescent,
    /// This property of a model does not hold.
    Property(&'static str),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::Property(name) => return write!(f, "the property does not hold: {name}"),
            Violation::Disagreement => "two processes decided different values",
            Violation::Invalid => "a process decided a value that no process proposed",
            Violation::NotLinearizable => "no sequential order of the operations explains the responses",
            Violation::Stuck => "a correct process has not decided in the stable period",
            Violation::NoStableLeader => "the live processes do not keep naming the same live leader",
            Violation::NotQuiescent => "a process still sends messages, or one that does not lead writes",
        })
    }
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunReport {
    /// All steps in order. In an election, the steps before the stable period.
    pub steps: Vec<Step>,
    /// The number of faults: crashes, restarts, disconnections, lost messages, and Byzantine
    /// processes.
    pub faults: u32,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// The result of a run of a [`CatalogueEntry`](crate::CatalogueEntry).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeedResult {
    /// The number of steps.
    pub steps: u64,
    /// The number of faults.
    pub faults: u32,
    /// The first violation.
    pub violation: Option<Violation>,
}

impl From<RunReport> for SeedResult {
    fn from(report: RunReport) -> SeedResult {
        SeedResult { steps: report.steps.len() as u64, faults: report.faults, violation: report.violation }
    }
}

/// A system under an adversary, with the properties that it must keep.
pub trait TestedSystem {
    /// Returns all steps that are possible now.
    fn steps(&self) -> Vec<Step>;
    /// Applies a step from [`TestedSystem::steps`], and returns the violation that the system has
    /// reached.
    fn apply(&mut self, step: Step) -> Option<Violation>;
    /// Returns the processes that may lead in the stable period: neither crashed nor Byzantine.
    fn live_processes(&self) -> Vec<ProcessId>;
    /// Begins the stable period: no more faults occur, and Ω names `leader` to every live process.
    fn begin_stable_period(&mut self, leader: ProcessId);
    /// Returns whether everything has happened that the protocol guarantees for the stable period.
    fn is_done(&self) -> bool;
    /// Returns the violation if the stable period ends before [`TestedSystem::is_done`].
    fn unfinished_violation(&self) -> Option<Violation> {
        Some(Violation::Stuck)
    }
    /// Returns the number of faults in the initial state.
    fn initial_faults(&self) -> u32 {
        0
    }
}

/// A world in which processes must agree on a valid value.
pub(crate) struct AgreementSystem<'a, P: Process, J> {
    pub(crate) world: World<P>,
    pub(crate) valid: &'a [P::Value],
    /// Returns the violation if a correct process has not decided.
    pub(crate) undecided_violation: J,
}

impl<P: Process, J: Fn(&World<P>) -> Option<Violation>> TestedSystem for AgreementSystem<'_, P, J> {
    fn steps(&self) -> Vec<Step> {
        self.world.steps()
    }

    fn apply(&mut self, step: Step) -> Option<Violation> {
        self.world.apply(step);
        if !self.world.agrees() {
            Some(Violation::Disagreement)
        } else if !self.world.decisions().iter().flatten().all(|value| self.valid.contains(value)) {
            Some(Violation::Invalid)
        } else {
            None
        }
    }

    fn live_processes(&self) -> Vec<ProcessId> {
        self.world.correct()
    }

    fn unfinished_violation(&self) -> Option<Violation> {
        (self.undecided_violation)(&self.world)
    }

    fn initial_faults(&self) -> u32 {
        self.world.byzantine_processes().len() as u32
    }

    fn begin_stable_period(&mut self, leader: ProcessId) {
        self.world.begin_stable_period(leader);
    }

    fn is_done(&self) -> bool {
        self.world.is_done()
    }
}

/// Runs a world in which processes must agree on one of the values `valid`.
pub fn run_agreement<P: Process>(
    seed: u64,
    world: World<P>,
    limits: RunLimits,
    valid: &[P::Value],
) -> RunReport {
    run_agreement_with(seed, world, limits, valid, |_| Some(Violation::Stuck))
}

/// Runs a world in which processes must agree on one of the values `valid`. If a correct process
/// has not decided at the end, `undecided_violation` returns the violation, or `None` if the
/// protocol permits this end.
pub fn run_agreement_with<P: Process>(
    seed: u64,
    world: World<P>,
    limits: RunLimits,
    valid: &[P::Value],
    undecided_violation: impl Fn(&World<P>) -> Option<Violation>,
) -> RunReport {
    run_adversary(seed, AgreementSystem { world, valid, undecided_violation }, limits)
}

/// Runs a system under an adversary, then in a stable period. The adversary prefers some processes,
/// memories and kinds of steps for some time, so that delayed messages and operations meet later
/// messages and operations.
pub fn run_adversary(seed: u64, mut system: impl TestedSystem, limits: RunLimits) -> RunReport {
    let mut rng = StepRng::new(seed);
    let mut report = run_adversary_period(&mut rng, &mut system, limits.adversary_steps);
    if report.violation.is_some() {
        return report;
    }
    let correct = system.live_processes();
    if let Some(&leader) = correct.get(rng.below(correct.len() as u64) as usize) {
        system.begin_stable_period(leader);
    }
    for _ in 0..limits.stable_steps {
        if system.is_done() {
            return report;
        }
        let Some(step) = rng.weighted(&system.steps(), |_| 1) else { break };
        report.apply(&mut system, step);
        if report.violation.is_some() {
            return report;
        }
    }
    report.violation = system.unfinished_violation();
    report
}

/// A check for [`run_agreement_with`] of totality: if one process has decided, every correct
/// process must decide.
pub fn totality_violation<P: Process>(world: &World<P>) -> Option<Violation> {
    world.decisions().iter().any(Option::is_some).then_some(Violation::Stuck)
}

pub(crate) fn run_adversary_period(
    rng: &mut StepRng,
    system: &mut impl TestedSystem,
    steps: u32,
) -> RunReport {
    let mut report = RunReport { steps: Vec::new(), faults: system.initial_faults(), violation: None };
    let crashes = rng.below(2) == 0;
    let mut weights = StepWeights::new(rng, crashes);
    for _ in 0..rng.below(steps.into()) {
        if rng.below(30) == 0 {
            weights = StepWeights::new(rng, crashes);
        }
        let steps = system.steps();
        let Some(step) = rng.weighted(&steps, |step| weights.weight(step)) else {
            weights = StepWeights::new(rng, crashes);
            continue;
        };
        report.apply(system, step);
        if report.violation.is_some() {
            return report;
        }
    }
    report
}

impl RunReport {
    fn apply(&mut self, system: &mut impl TestedSystem, step: Step) {
        self.faults += u32::from(is_fault(step));
        self.steps.push(step);
        self.violation = system.apply(step);
    }
}

fn is_fault(step: Step) -> bool {
    matches!(
        step,
        Step::CrashProcess(_)
            | Step::CrashMemory(_)
            | Step::Disconnect(..)
            | Step::RestartMemory(_)
            | Step::RestartProcess(_)
            | Step::DropMessage(_)
    )
}

/// The weights of steps, by process, memory and kind. The probability of a step is proportional to
/// its weight.
struct StepWeights {
    processes: [u64; 64],
    memories: [u64; 16],
    /// The process and the memory between which the oldest operation is not executed.
    stalled: (u64, u64),
    leader_change: u64,
    fault: u64,
    execution: u64,
    response: u64,
    message: u64,
    wake: u64,
}

impl StepWeights {
    fn new(rng: &mut StepRng, crashes: bool) -> StepWeights {
        let stalled = (rng.below(4), rng.below(4));
        let mut random_weight = || 1 << (2 * rng.below(5));
        StepWeights {
            processes: core::array::from_fn(|_| random_weight()),
            memories: core::array::from_fn(|_| random_weight()),
            stalled,
            leader_change: random_weight(),
            fault: random_weight() * u64::from(crashes),
            execution: random_weight() * 16,
            response: random_weight() * 16,
            message: random_weight() * random_weight(),
            wake: random_weight() * 16,
        }
    }

    fn weight(&self, step: Step) -> u64 {
        let process = |p: ProcessId| self.processes[usize::from(p.0) % 64];
        let memory = |m: MemoryId| self.memories[usize::from(m.0) % 16];
        match step {
            Step::Lead(p) | Step::Follow(p) => self.leader_change * process(p),
            Step::DeliverMessage(_) | Step::DropMessage(_) => self.message,
            Step::Execute(p, m, 0) if (p.0.into(), m.0.into()) == self.stalled => 0,
            Step::Execute(p, m, _) => self.execution * process(p) * memory(m),
            Step::Respond(p, m, _) => self.response * process(p) * memory(m),
            Step::Wake(p) | Step::Coin(p, _) => self.wake * process(p),
            Step::CrashProcess(p) | Step::RestartProcess(p) => self.fault * process(p),
            Step::CrashMemory(m) | Step::RestartMemory(m) => self.fault * memory(m),
            Step::Disconnect(p, m) => self.fault * process(p) * memory(m),
        }
    }
}

/// The pseudo-random numbers from which the adversary draws its steps.
pub(crate) struct StepRng(Prng);

impl StepRng {
    pub(crate) fn new(seed: u64) -> StepRng {
        StepRng(Prng::new(seed))
    }

    /// Returns a number below `n`; 0 if `n` is 0. The modulo bias is kept, because a method without
    /// bias would change the steps of a seed.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.bits() % n.max(1)
    }

    /// Returns one of `steps` with a probability proportional to its weight, or `None` if all
    /// weights are 0.
    pub(crate) fn weighted(&mut self, steps: &[Step], weight: impl Fn(Step) -> u64) -> Option<Step> {
        let mut remaining = self.below(steps.iter().map(|&step| weight(step)).sum());
        steps.iter().copied().find(|&step| {
            let weight = weight(step);
            let selected = remaining < weight;
            remaining = remaining.saturating_sub(weight);
            selected
        })
    }
}
