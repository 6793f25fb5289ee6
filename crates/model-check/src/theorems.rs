//! Theorems about failover, each with the smallest world that shows it. `proofs/README.md` has
//! their proofs.

use std::net::SocketAddr;

use mitra_prng::Prng;

use crate::resend_world::{Atomic, Recovery, ResendSetup, ResendStep, ResendWorld};
use crate::{Exhaustive, Exploration, SeedResult, Violation};

/// A theorem that a run of a small world shows.
pub struct Theorem {
    /// The name on the command line.
    pub name: &'static str,
    /// The theorem.
    pub shows: &'static str,
    /// A description of the explored world.
    pub explored_world: &'static str,
    /// The setup of the world of each run.
    pub setup: ResendSetup,
    /// The property that the requester would need, which does not hold.
    property: ImpossibleProperty,
}

/// A property that some run of a theorem's world violates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ImpossibleProperty {
    /// In two runs after which the requester has the same view, the operation was executed equally
    /// often.
    ViewTells,
    AtMostOnce,
    ChangedAtMostOnce,
}

/// The result of the exploration of a theorem's world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The number of distinct worlds.
    pub states: usize,
    /// One run, or two runs after which the requester knows the same. Empty if the theorem does not
    /// hold.
    pub histories: Vec<Vec<ResendStep>>,
}

const ONE_FETCH_ADD: ResendSetup = ResendSetup {
    operation: Atomic::FetchAdd,
    operations: 1,
    recovery: Recovery::Resend,
    failures: 1,
    resets: 0,
};
const ONE_COMPARE_SWAP: ResendSetup =
    ResendSetup { operation: Atomic::CompareSwap, resets: 1, ..ONE_FETCH_ADD };

/// The theorems.
pub static THEOREMS: &[Theorem] = &[
    Theorem {
        name: "indistinguishability",
        shows: "the requester and the word do not tell whether an operation was executed before its rail failed",
        explored_world: "two runs of 1 FETCH_ADD, whose rail fails; another client sets the word to 0 once",
        setup: ResendSetup { recovery: Recovery::Observe, resets: 1, ..ONE_FETCH_ADD },
        property: ImpossibleProperty::ViewTells,
    },
    Theorem {
        name: "double-fadd",
        shows: "a FETCH_ADD that is posted again after a failure may be executed twice",
        explored_world: "1 FETCH_ADD, whose rail fails; the requester posts it again",
        setup: ONE_FETCH_ADD,
        property: ImpossibleProperty::AtMostOnce,
    },
    Theorem {
        name: "cas-reset",
        shows: "a CMP_SWAP that is posted again after a failure may change the word twice",
        explored_world: "1 CMP_SWAP, whose rail fails; the requester posts it again; another client sets the word to 0 once",
        setup: ONE_COMPARE_SWAP,
        property: ImpossibleProperty::ChangedAtMostOnce,
    },
    Theorem {
        name: "aba",
        shows: "a word that is as before does not prove that a CMP_SWAP was not executed (ABA)",
        explored_world: "1 CMP_SWAP, whose rail fails; the requester posts it again if the word is 0; another client sets the word to 0 once",
        setup: ResendSetup { recovery: Recovery::ResendIfUnchanged, ..ONE_COMPARE_SWAP },
        property: ImpossibleProperty::ChangedAtMostOnce,
    },
    Theorem {
        name: "late-request",
        shows: "evidence without a fence is not final: a late request is executed after it was read",
        explored_world: "1 FETCH_ADD, whose rail fails; the requester reads what was executed, and posts the rest again",
        setup: ResendSetup { recovery: Recovery::Evidence { fence: false }, ..ONE_FETCH_ADD },
        property: ImpossibleProperty::AtMostOnce,
    },
];

impl Theorem {
    /// Explores all runs of the world, or stops at the first run that shows the theorem.
    pub fn explore(&self) -> Shown {
        let (states, steps) = self.histories().find_shortest();
        let steps = steps.unwrap_or_default();
        let of = |number: usize| {
            let steps = steps.iter().filter(|step| step.history == number).map(|step| step.step);
            steps.collect::<Vec<_>>()
        };
        let histories = [of(0), of(1)].into_iter().filter(|history| !history.is_empty()).collect();
        Shown { states, histories }
    }

    /// Serves the runs to a web browser at an address, until the program ends.
    pub fn serve(&self, address: SocketAddr) {
        self.histories().serve(address);
    }

    /// Two runs of the world. The second run takes steps only if the property compares the runs.
    fn histories(&self) -> Exhaustive<[ResendWorld; 2], HistoryStep> {
        let property = self.property;
        let compared = if property == ImpossibleProperty::ViewTells { 2 } else { 1 };
        let steps = move |worlds: &[ResendWorld; 2]| {
            // A world in which the requester has read the word takes no steps, because later steps
            // do not change the requester's view.
            let open = worlds.iter().enumerate().take(compared).filter(|(_, world)| world.view().is_none());
            open.flat_map(|(history, world)| {
                world.steps().into_iter().map(move |step| HistoryStep { history, step })
            })
            .collect()
        };
        let apply =
            |worlds: &mut [ResendWorld; 2], HistoryStep { history, step }| worlds[history].apply(step);
        Exhaustive::new([ResendWorld::new(self.setup); 2], steps, apply).always(
            "the requester can be right",
            move |worlds| match property {
                ImpossibleProperty::ViewTells => {
                    let [first, second] = worlds;
                    first.view().is_none()
                        || first.view() != second.view()
                        || first.executions() == second.executions()
                }
                ImpossibleProperty::AtMostOnce => worlds[0].is_at_most_once(),
                ImpossibleProperty::ChangedAtMostOnce => worlds[0].is_changed_at_most_once(),
            },
        )
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct HistoryStep {
    history: usize,
    step: ResendStep,
}

pub(crate) const REPLAY_PROPERTIES: &[&str] = &["exactly once, with its value", "every operation ends"];

fn replay_world(operation: Atomic, operations: u8, resets: u8) -> ResendWorld {
    let recovery = Recovery::Evidence { fence: true };
    ResendWorld::new(ResendSetup { operation, operations, recovery, failures: 2, resets })
}

/// All runs of 3 operations whose rail fails twice.
fn exhaustive_replay(operation: Atomic) -> Exhaustive<ResendWorld, ResendStep> {
    Exhaustive::new(replay_world(operation, 3, 2), ResendWorld::steps, ResendWorld::apply)
        .always(REPLAY_PROPERTIES[0], ResendWorld::is_exactly_once)
        .always(REPLAY_PROPERTIES[1], ResendWorld::can_end)
}

/// Explores 3 operations of each kind. Their rail fails twice.
pub(crate) fn explore_replay() -> Exploration {
    let explore_kind = |operation| exhaustive_replay(operation).explore();
    explore_kind(Atomic::FetchAdd).and_then(|| explore_kind(Atomic::CompareSwap))
}

/// Serves the runs of 3 FETCH_ADDs to a web browser.
pub(crate) fn serve_replay(address: SocketAddr) {
    exhaustive_replay(Atomic::FetchAdd).serve(address);
}

/// Takes random steps of 4 operations whose rail fails twice, until they have ended or a property
/// does not hold.
fn walk_replay(seed: u64) -> (ResendWorld, Vec<ResendStep>, Option<Violation>) {
    let mut prng = Prng::new(seed);
    let operation = [Atomic::FetchAdd, Atomic::CompareSwap][prng.index(2)];
    let mut world = replay_world(operation, 4, prng.below(5) as u8);
    let mut steps = Vec::new();
    let mut violation = None;
    while violation.is_none() {
        let possible = world.steps();
        if possible.is_empty() {
            break;
        }
        let step = possible[prng.index(possible.len())];
        steps.push(step);
        world.apply(step);
        let holds = [world.is_exactly_once(), world.can_end()];
        violation = holds.iter().position(|holds| !holds).map(|which| REPLAY_PROPERTIES[which]);
    }
    (world, steps, violation.map(Violation::Property))
}

fn failures(steps: &[ResendStep]) -> usize {
    steps.iter().filter(|step| matches!(step, ResendStep::Fail { .. })).count()
}

pub(crate) fn run_replay_from_seed(seed: u64) -> SeedResult {
    let (_, steps, violation) = walk_replay(seed);
    SeedResult { steps: steps.len() as u64, faults: failures(&steps) as u32, violation }
}

/// Returns a run of `fence-evidence-replay`: the world, and its steps. The rail of 4 operations
/// fails twice, and answers are lost.
pub fn replay_example() -> (ResendSetup, Vec<ResendStep>) {
    let is_telling = |steps: &[ResendStep]| {
        let loses = |step: &ResendStep| matches!(step, ResendStep::LoseAnswers { .. });
        failures(steps) == 2 && steps.iter().any(loses)
    };
    let mut seed = 0;
    loop {
        let (world, steps, _) = walk_replay(seed);
        if is_telling(&steps) {
            return (world.setup(), steps);
        }
        seed += 1;
    }
}
