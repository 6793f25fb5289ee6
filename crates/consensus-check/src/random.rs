//! Runs from a seed: an adversary that rolls dice, then calm, in which everybody must decide.

use mitra_consensus::{MemoryId, Process, ProcessId};
use mitra_prng::Prng;

use crate::{Step, World};

/// How a run is disturbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chaos {
    /// Steps before the calm, at most.
    pub steps: u32,
    /// Steps, or rounds in an election, in which everybody must have decided after it.
    pub calm: u32,
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
    Unsettled,
    /// They do, but speak, or others than the leader write.
    Noisy,
}

/// What came of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// All steps, in order; of an election those before the calm.
    pub steps: Vec<Step>,
    /// How many faults there were: crashes, what breaks or is lost, and Byzantine processes.
    pub faults: u32,
    /// What was wrong, if anything.
    pub violation: Option<Violation>,
}

/// What an adversary plays with, and what it must not bring about.
pub trait Subject {
    /// All steps that can be taken now.
    fn steps(&self) -> Vec<Step>;
    /// Takes one of them; says what is wrong since.
    fn take(&mut self, step: Step) -> Option<Violation>;
    /// Who has not crashed, and is honest.
    fn living(&self) -> Vec<ProcessId>;
    /// The faults are over, and Ω names one living process to all.
    fn calm(&mut self, leader: ProcessId);
    /// Whether all that must happen in the calm has happened.
    fn is_done(&self) -> bool;
    /// What is wrong if that never comes.
    fn undone(&self) -> Option<Violation> {
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

impl<P: Process, J: Fn(&World<P>) -> Option<Violation>> Subject for Deciding<'_, P, J> {
    fn steps(&self) -> Vec<Step> {
        self.world.steps()
    }

    fn take(&mut self, step: Step) -> Option<Violation> {
        self.world.take(step);
        if !self.world.agrees() {
            Some(Violation::Disagreement)
        } else if !self.world.decisions().iter().flatten().all(|value| self.valid.contains(value)) {
            Some(Violation::Invalid)
        } else {
            None
        }
    }

    fn living(&self) -> Vec<ProcessId> {
        self.world.correct()
    }

    fn undone(&self) -> Option<Violation> {
        (self.judge)(&self.world)
    }

    fn faults(&self) -> u32 {
        self.world.traitors().len() as u32
    }

    fn calm(&mut self, leader: ProcessId) {
        self.world.calm(leader);
    }

    fn is_done(&self) -> bool {
        self.world.is_done()
    }
}

/// Runs a world in which processes decide, on one of `valid`.
pub fn run<P: Process>(seed: u64, world: World<P>, chaos: Chaos, valid: &[P::Value]) -> Report {
    run_judged(seed, world, chaos, valid, |_| Some(Violation::Stuck))
}

/// The same, where it is for `judge` to say what is wrong if not all decide.
pub fn run_judged<P: Process>(
    seed: u64,
    world: World<P>,
    chaos: Chaos,
    valid: &[P::Value],
    judge: impl Fn(&World<P>) -> Option<Violation>,
) -> Report {
    play(seed, Deciding { world, valid, judge }, chaos)
}

/// Runs a world. Some processes, memories and kinds of steps are quicker than others, for a while: only so does the old meet the
/// new.
pub fn play(seed: u64, mut subject: impl Subject, chaos: Chaos) -> Report {
    let mut dice = Dice::new(seed);
    let mut report = disturb(&mut dice, &mut subject, chaos.steps);
    if report.violation.is_some() {
        return report;
    }
    let correct = subject.living();
    if let Some(&leader) = correct.get(dice.below(correct.len() as u64) as usize) {
        subject.calm(leader);
    }
    for _ in 0..chaos.calm {
        if subject.is_done() {
            return report;
        }
        let Some(step) = dice.weighted(&subject.steps(), |_| 1) else { break };
        report.take(&mut subject, step);
        if report.violation.is_some() {
            return report;
        }
    }
    report.violation = subject.undone();
    report
}

/// Totality: it is well if nobody decides, as long as nobody does.
pub fn all_or_none<P: Process>(world: &World<P>) -> Option<Violation> {
    world.decisions().iter().any(Option::is_some).then_some(Violation::Stuck)
}

/// The part of a run before the calm.
pub(crate) fn disturb(dice: &mut Dice, subject: &mut impl Subject, steps: u32) -> Report {
    let mut report = Report { steps: Vec::new(), faults: subject.faults(), violation: None };
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
        report.take(subject, step);
        if report.violation.is_some() {
            return report;
        }
    }
    report
}

impl Report {
    fn take(&mut self, subject: &mut impl Subject, step: Step) {
        self.faults += u32::from(is_fault(step));
        self.steps.push(step);
        self.violation = subject.take(step);
    }
}

fn is_fault(step: Step) -> bool {
    matches!(
        step,
        Step::CrashProcess(_)
            | Step::CrashMemory(_)
            | Step::Break(..)
            | Step::Reopen(_)
            | Step::Restart(_)
            | Step::Lose(_)
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
    fn new(dice: &mut Dice, crashes: bool) -> Pace {
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
            Step::Deliver(_) | Step::Lose(_) => self.delivering,
            Step::Execute(p, m, 0) if (p.0.into(), m.0.into()) == self.straggler => 0,
            Step::Execute(p, m, _) => self.executing * process(p) * memory(m),
            Step::Respond(p, m, _) => self.responding * process(p) * memory(m),
            Step::Wake(p) | Step::Coin(p, _) => self.waking * process(p),
            Step::CrashProcess(p) | Step::Restart(p) => self.crashing * process(p),
            Step::CrashMemory(m) | Step::Reopen(m) => self.crashing * memory(m),
            Step::Break(p, m) => self.crashing * process(p) * memory(m),
        }
    }
}

pub(crate) struct Dice(Prng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(Prng::new(seed))
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
