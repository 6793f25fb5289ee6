//! Worlds of a replicated log. All processes must apply the same commands in the same order, under
//! every order of leaders and crashes.

use std::collections::BTreeMap;

use mitra_consensus::log::Rules;
use mitra_consensus::{AllRules, ProcessId, ProcessSet};

use crate::seeded_run::{TestedSystem, run_adversary};
use crate::{
    Command, Exhaustive, FaultLimits, Replica, RunLimits, SeedResult, Step, Violation, World, protocol_worlds,
};

/// Runs a log of one process over three memories from a seed. The process restarts often.
pub fn run_log_restarts_from_seed(seed: u64) -> SeedResult {
    let limits = FaultLimits { leader_changes: 30, restarts: 20, ..FaultLimits::default() };
    let world: LogWorld<AllRules> = protocol_worlds::log(protocol_worlds::log_config(1, 3, 2), 20, limits);
    run_adversary(seed, world, RunLimits { adversary_steps: 600, stable_steps: 20_000 }).into()
}

/// The number of commands that the leader submits in the stable period, in addition to commands
/// that are not committed yet.
const STABLE_PERIOD_COMMANDS: u8 = 3;

/// A world of the replicated log, and all commands that any process has applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LogWorld<R: Rules> {
    world: World<Replica<R>>,
    /// The longest list of commands that a process has applied.
    history: Vec<Command>,
    /// By the index of an entry: the number of commands up to this entry. Has the entries that were
    /// the last applied entry of some process.
    command_counts: BTreeMap<u64, usize>,
    /// For the same indices: the processes that may lead after the entry.
    eligible_leaders: BTreeMap<u64, ProcessSet>,
    submitted: Vec<u8>,
    /// The leader in the stable period.
    leader: Option<ProcessId>,
    violation: Option<Violation>,
}

impl<R: Rules> LogWorld<R> {
    /// Creates a world in which no command is committed yet.
    pub fn new(world: World<Replica<R>>) -> LogWorld<R> {
        let submitted = vec![0; world.decisions().len()];
        LogWorld {
            world,
            history: Vec::new(),
            command_counts: BTreeMap::new(),
            eligible_leaders: BTreeMap::new(),
            submitted,
            leader: None,
            violation: None,
        }
    }

    /// Returns the commands that are committed and applied by at least one process.
    pub fn history(&self) -> &[Command] {
        &self.history
    }

    /// Returns the processes and memories.
    pub fn world(&self) -> &World<Replica<R>> {
        &self.world
    }

    /// Lets the leader submit a new set of processes that may lead.
    ///
    /// # Panics
    /// If `leader` does not lead, its queue is full, or the set has no process of the log.
    pub fn set_eligible_leaders(&mut self, leader: ProcessId, leaders: ProcessSet) {
        self.world.call(leader, |replica, out| replica.set_eligible_leaders(leaders, out));
    }

    /// Lets one network delay pass, as [`World::pass_delay`] does.
    pub fn pass_delay(&mut self) {
        self.world.pass_delay();
        self.check();
    }

    /// Checks agreement of the live processes: one list of commands, one count and one set of
    /// leaders by index. Checks validity: each command was submitted, and is applied once.
    fn check(&mut self) {
        for p in self.world.live_processes() {
            let Some(replica) = self.world.process(p) else { continue };
            self.submitted[usize::from(p.0)] = replica.submitted();
            let (index, applied) = replica.applied();
            let common = applied.len().min(self.history.len());
            let counts_match = *self.command_counts.entry(index).or_insert(applied.len()) == applied.len();
            let leaders = replica.log().eligible_leaders();
            let leaders_match = *self.eligible_leaders.entry(index).or_insert(leaders) == leaders;
            if applied[..common] != self.history[..common] || !counts_match || !leaders_match {
                self.violation.get_or_insert(Violation::Disagreement);
            }
            for command @ [from, number] in &applied[common..] {
                let submitted = self.submitted.get(usize::from(*from)).is_some_and(|count| number < count);
                if !submitted || self.history.contains(command) {
                    self.violation.get_or_insert(Violation::Invalid);
                }
                self.history.push(*command);
            }
            if replica.has_violation() {
                self.violation.get_or_insert(Violation::Invalid);
            }
        }
    }
}

impl<R: Rules> TestedSystem for LogWorld<R> {
    fn steps(&self) -> Vec<Step> {
        self.world.steps()
    }

    fn apply(&mut self, step: Step) -> Option<Violation> {
        self.world.apply(step);
        self.check();
        self.violation
    }

    fn live_processes(&self) -> Vec<ProcessId> {
        self.world.live_processes()
    }

    fn begin_stable_period(&mut self, leader: ProcessId) {
        self.leader = Some(leader);
        self.world.begin_stable_period(leader);
        self.world.call(leader, |replica, out| replica.add_commands(STABLE_PERIOD_COMMANDS, out));
    }

    /// Returns whether the leader's commands are committed, and every live process has applied all
    /// committed commands.
    fn is_done(&self) -> bool {
        let is_finished = |p| self.world.process(p).is_none_or(Replica::is_finished);
        let up_to_date =
            |p| self.world.process(p).is_none_or(|replica| replica.applied().1.len() == self.history.len());
        self.leader.is_none_or(is_finished) && self.live_processes().into_iter().all(up_to_date)
    }
}

/// Explores every world that is reachable from `start` while no process makes more than
/// `max_terms` attempts to lead: terms, and memories taken again.
pub fn exhaustive_log<R: Rules + Send + Sync + 'static>(
    start: LogWorld<R>,
    max_terms: u64,
) -> Exhaustive<LogWorld<R>, Step> {
    Exhaustive::new(start, LogWorld::steps, |world, step| {
        world.apply(step);
    })
    .within(move |world| world.world.attempts() <= max_terms)
    .always("agreement", |world| world.violation != Some(Violation::Disagreement))
    .always("validity", |world| world.violation != Some(Violation::Invalid))
}
