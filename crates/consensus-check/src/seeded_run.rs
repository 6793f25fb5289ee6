//! Runs from a seed: an adversary that rolls dice, then calm, in which everybody must decide.

use mitra_consensus::{MemoryId, Process, ProcessId};
use mitra_prng::Prng;

use crate::{Step, World};

/// How a run is disturbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLimits {
    /// Steps before the calm, at most.
    pub adversary_steps: u32,
    /// Steps, or rounds in an election, in which everybody must have decided after it.
    pub stable_steps: u32,
}

/// What is wrong with a run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// Two processes decided differently.
    Disagreement,
    /// Somebody decided what nobody had proposed.
    Invalid,
    /// No order of what clients asked for explains what they were told.
    NotLinearizable,
    /// Some correct process has not decided, though all was calm.
    Stuck,
    /// The living do not keep naming one of them as their leader, though all was calm.
    NoStableLeader,
    /// They do, but speak, or others than the leader write.
    NotQuiescent,
}

/// What came of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunReport {
    /// All steps, in order; of an election those before the calm.
    pub steps: Vec<Step>,
    /// How many faults there were: crashes, what breaks or is lost, and Byzantine processes.
    pub faults: u32,
    /// What was wrong, if anything.
    pub violation: Option<Violation>,
}

/// What an adversary plays with, and what it must not bring about.
pub trait TestedSystem {
    /// All steps that can be taken now.
    fn steps(&self) -> Vec<Step>;
    /// Takes one of them; says what is wrong since.
    fn apply(&mut self, step: Step) -> Option<Violation>;
    /// Who has not crashed, and is honest.
    fn live_processes(&self) -> Vec<ProcessId>;
    /// The faults are over, and Ω names one living process to all.
    fn begin_stable_period(&mut self, leader: ProcessId);
    /// Whether all that must happen in the calm has happened.
    fn is_done(&self) -> bool;
    /// What is wrong if that never comes.
    fn unfinished_violation(&self) -> Option<Violation> {
        Some(Violation::Stuck)
    }
    /// Faults that were there from the start.
    fn faults(&self) -> u32 {
        0
    }
}

/// A world in which processes decide, on values that are valid.
pub(crate) struct Deciding<'a, P: Process, J> {
    pub(crate) world: World<P>,
    pub(crate) valid: &'a [P::Value],
    /// Says what is wrong if not all decide.
    pub(crate) judge: J,
}

impl<P: Process, J: Fn(&World<P>) -> Option<Violation>> TestedSystem for Deciding<'_, P, J> {
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
        (self.judge)(&self.world)
    }

    fn faults(&self) -> u32 {
        self.world.byzantine_processes().len() as u32
    }

    fn begin_stable_period(&mut self, leader: ProcessId) {
        self.world.begin_stable_period(leader);
    }

    fn is_done(&self) -> bool {
        self.world.is_done()
    }
}

/// Runs a world in which processes decide, on one of `valid`.
pub fn run_agreement<P: Process>(
    seed: u64,
    world: World<P>,
    chaos: RunLimits,
    valid: &[P::Value],
) -> RunReport {
    run_agreement_with(seed, world, chaos, valid, |_| Some(Violation::Stuck))
}

/// The same, where it is for `judge` to say what is wrong if not all decide.
pub fn run_agreement_with<P: Process>(
    seed: u64,
    world: World<P>,
    chaos: RunLimits,
    valid: &[P::Value],
    judge: impl Fn(&World<P>) -> Option<Violation>,
) -> RunReport {
    run_adversary(seed, Deciding { world, valid, judge }, chaos)
}

/// Runs a world. Some processes, memories and kinds of steps are quicker than others, for a while: only so does the old meet the
/// new.
pub fn run_adversary(seed: u64, mut subject: impl TestedSystem, chaos: RunLimits) -> RunReport {
    let mut dice = StepRng::new(seed);
    let mut report = disturb(&mut dice, &mut subject, chaos.adversary_steps);
    if report.violation.is_some() {
        return report;
    }
    let correct = subject.live_processes();
    if let Some(&leader) = correct.get(dice.below(correct.len() as u64) as usize) {
        subject.begin_stable_period(leader);
    }
    for _ in 0..chaos.stable_steps {
        if subject.is_done() {
            return report;
        }
        let Some(step) = dice.weighted(&subject.steps(), |_| 1) else { break };
        report.apply(&mut subject, step);
        if report.violation.is_some() {
            return report;
        }
    }
    report.violation = subject.unfinished_violation();
    report
}

/// Totality: it is well if nobody decides, as long as nobody does.
pub fn totality_violation<P: Process>(world: &World<P>) -> Option<Violation> {
    world.decisions().iter().any(Option::is_some).then_some(Violation::Stuck)
}

/// The part of a run before the calm.
pub(crate) fn disturb(dice: &mut StepRng, subject: &mut impl TestedSystem, steps: u32) -> RunReport {
    let mut report = RunReport { steps: Vec::new(), faults: subject.faults(), violation: None };
    let crashes = dice.below(2) == 0;
    let mut pace = Pace::new(dice, crashes);
    for _ in 0..dice.below(steps.into()) {
        if dice.below(30) == 0 {
            pace = Pace::new(dice, crashes);
        }
        let steps = subject.steps();
        let Some(step) = dice.weighted(&steps, |step| pace.of(step)) else {
            pace = Pace::new(dice, crashes);
            continue;
        };
        report.apply(subject, step);
        if report.violation.is_some() {
            return report;
        }
    }
    report
}

impl RunReport {
    fn apply(&mut self, subject: &mut impl TestedSystem, step: Step) {
        self.faults += u32::from(is_fault(step));
        self.steps.push(step);
        self.violation = subject.apply(step);
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

/// How quick everybody is for now.
struct Pace {
    processes: [u64; 64],
    memories: [u64; 16],
    /// What is under way here stays so.
    straggler: (u64, u64),
    leading: u64,
    crashing: u64,
    executing: u64,
    responding: u64,
    delivering: u64,
    waking: u64,
}

impl Pace {
    fn new(dice: &mut StepRng, crashes: bool) -> Pace {
        let straggler = (dice.below(4), dice.below(4));
        let mut any = || 1 << (2 * dice.below(5));
        Pace {
            processes: core::array::from_fn(|_| any()),
            memories: core::array::from_fn(|_| any()),
            straggler,
            leading: any(),
            crashing: any() * u64::from(crashes),
            executing: any() * 16,
            responding: any() * 16,
            delivering: any() * any(),
            waking: any() * 16,
        }
    }

    fn of(&self, step: Step) -> u64 {
        let process = |p: ProcessId| self.processes[usize::from(p.0) % 64];
        let memory = |m: MemoryId| self.memories[usize::from(m.0) % 16];
        match step {
            Step::Lead(p) | Step::Follow(p) => self.leading * process(p),
            Step::DeliverMessage(_) | Step::DropMessage(_) => self.delivering,
            Step::Execute(p, m, 0) if (p.0.into(), m.0.into()) == self.straggler => 0,
            Step::Execute(p, m, _) => self.executing * process(p) * memory(m),
            Step::Respond(p, m, _) => self.responding * process(p) * memory(m),
            Step::Wake(p) | Step::Coin(p, _) => self.waking * process(p),
            Step::CrashProcess(p) | Step::RestartProcess(p) => self.crashing * process(p),
            Step::CrashMemory(m) | Step::RestartMemory(m) => self.crashing * memory(m),
            Step::Disconnect(p, m) => self.crashing * process(p) * memory(m),
        }
    }
}

pub(crate) struct StepRng(Prng);

impl StepRng {
    pub(crate) fn new(seed: u64) -> StepRng {
        StepRng(Prng::new(seed))
    }

    /// Less than `n`; 0 if that is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.bits() % n.max(1)
    }

    pub(crate) fn weighted(&mut self, steps: &[Step], weight: impl Fn(Step) -> u64) -> Option<Step> {
        // None where nothing has any weight.
        let mut at = self.below(steps.iter().map(|&step| weight(step)).sum());
        steps.iter().copied().find(|&step| {
            let weight = weight(step);
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        })
    }
}
