//! The failover of a few operations on one word: a requester, a responder with a NIC on each rail,
//! and another client.
//!
//! A rail delivers requests once and in order, as a reliable connection does. A rail may fail at
//! any time. Requests that are in transit at that time are executed or lost, and answers may be
//! lost.

use core::fmt;

/// The number of rails.
pub const MAX_RAILS: usize = 3;
const MAX_OPERATIONS: usize = 4;

/// The operation of the requester. The word is 0 at first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Atomic {
    /// FETCH_ADD of 1.
    FetchAdd,
    /// CMP_SWAP of 0 by 1.
    CompareSwap,
}

/// The requester's recovery after a failure of its rail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Recovery {
    /// A READ of the word, and nothing else.
    Observe,
    /// All operations that have not completed are posted again.
    Resend,
    /// A READ of the word: the operation is posted again if the word is 0, and otherwise counts as
    /// executed.
    ResendIfUnchanged,
    /// The responder's NIC tells how many operations it has executed on the failed rail. The
    /// remaining operations are posted again.
    Evidence {
        /// Whether the responder's queue pair moves to ERR first.
        fence: bool,
    },
}

/// The world that is explored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResendSetup {
    /// The kind of all operations.
    pub operation: Atomic,
    /// The number of operations, at most 4. The requester posts all of them at once.
    pub operations: u8,
    /// The requester's recovery.
    pub recovery: Recovery,
    /// The maximum number of rails that fail, less than [`MAX_RAILS`].
    pub failures: u8,
    /// The maximum number of times that another client sets the word to 0.
    pub resets: u8,
}

/// A step of the world. Its `Debug` form is a sentence.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResendStep {
    /// The responder's NIC executes the next request of a rail, and answers.
    Execute {
        /// The rail.
        rail: u8,
    },
    /// The requests in transit on a rail are lost.
    LoseRequests {
        /// The rail.
        rail: u8,
    },
    /// The answers in transit on a rail are lost.
    LoseAnswers {
        /// The rail.
        rail: u8,
    },
    /// The answers in transit on a rail arrive.
    Complete {
        /// The rail.
        rail: u8,
    },
    /// The requester's queue pair on a rail fails: its retries are used up.
    Fail {
        /// The rail.
        rail: u8,
    },
    /// The responder's queue pair of a failed rail moves to ERR, and executes nothing from now on.
    Fence {
        /// The rail.
        rail: u8,
    },
    /// The requester learns how many operations the responder's queue pair of a failed rail has
    /// executed, and their values.
    ReadEvidence {
        /// The rail.
        rail: u8,
    },
    /// The requester reads the word.
    ReadWord,
    /// The requester posts the remaining operations on a rail.
    Repost {
        /// The rail.
        rail: u8,
    },
    /// Another client sets the word to 0.
    Reset,
}

impl fmt::Debug for ResendStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResendStep::Execute { rail } => {
                write!(f, "The responder's NIC executes the next request on rail {rail}, and answers.")
            }
            ResendStep::LoseRequests { rail } => {
                write!(f, "The requests in transit on rail {rail} are lost.")
            }
            ResendStep::LoseAnswers { rail } => write!(f, "The answers in transit on rail {rail} are lost."),
            ResendStep::Complete { rail } => {
                write!(f, "The answers on rail {rail} arrive, and the operations complete.")
            }
            ResendStep::Fail { rail } => write!(f, "The requester's queue pair on rail {rail} fails."),
            ResendStep::Fence { rail } => {
                write!(
                    f,
                    "The responder's queue pair on rail {rail} is fenced: it executes nothing from now on."
                )
            }
            ResendStep::ReadEvidence { rail } => {
                write!(
                    f,
                    "The requester reads from the PSN of the responder's queue pair on rail {rail} what was executed."
                )
            }
            ResendStep::ReadWord => write!(f, "The requester reads the word."),
            ResendStep::Repost { rail } => {
                write!(f, "The requester posts on rail {rail} what it takes for not executed.")
            }
            ResendStep::Reset => write!(f, "Another client sets the word to 0."),
        }
    }
}

/// The queue pairs of a rail, and the requests and answers between them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Rail {
    /// The number of the first operation that was posted on the rail.
    first: u8,
    /// The number of requests in transit.
    requests: u8,
    executed: u8,
    /// Whether the answer to the last executed request is in transit. The answer acknowledges all
    /// earlier requests too.
    is_answer_in_transit: bool,
    is_fenced: bool,
}

/// The state of the requester.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// The requester waits for answers.
    Active,
    /// The requester's rail has failed.
    Failed,
    /// The requester's rail has failed and is fenced.
    Fenced,
    /// This number of operations on the failed rail counts as executed.
    Decided(u8),
    /// The word had this value when it was read.
    Observed(u8),
}

/// The number of executions of an operation, the number of executions that changed the word, and
/// the value that the last execution returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Effect {
    executions: u8,
    changes: u8,
    value: u8,
}

/// The state of the requester, the rails and the word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResendWorld {
    setup: ResendSetup,
    word: u8,
    rails: [Rail; MAX_RAILS],
    /// The requester's rail.
    rail: u8,
    phase: Phase,
    /// The number of operations that have ended, and the value of each.
    ended: u8,
    values: [u8; MAX_OPERATIONS],
    effects: [Effect; MAX_OPERATIONS],
    failures: u8,
    resets: u8,
}

impl ResendWorld {
    /// Returns the world in which all operations are in transit on rail 0.
    pub fn new(setup: ResendSetup) -> ResendWorld {
        let mut world = ResendWorld {
            setup,
            word: 0,
            rails: [Rail::default(); MAX_RAILS],
            rail: 0,
            phase: Phase::Active,
            ended: 0,
            values: [0; MAX_OPERATIONS],
            effects: [Effect::default(); MAX_OPERATIONS],
            failures: 0,
            resets: 0,
        };
        world.rails[0].requests = setup.operations;
        world
    }

    /// Returns the steps that are possible now.
    pub fn steps(&self) -> Vec<ResendStep> {
        let mut steps = Vec::new();
        for (number, rail) in self.rails.iter().enumerate() {
            let (number, can_fail) = (number as u8, number < usize::from(self.setup.failures));
            if rail.requests > 0 && !rail.is_fenced {
                steps.push(ResendStep::Execute { rail: number });
            }
            if rail.requests > 0 && can_fail {
                steps.push(ResendStep::LoseRequests { rail: number });
            }
            if rail.is_answer_in_transit {
                if can_fail {
                    steps.push(ResendStep::LoseAnswers { rail: number });
                }
                if self.phase == Phase::Active && self.rail == number {
                    steps.push(ResendStep::Complete { rail: number });
                }
            }
        }
        let rail = self.rail;
        match (self.phase, self.setup.recovery) {
            (Phase::Active, _) => {
                if self.failures < self.setup.failures && self.ended < self.setup.operations {
                    steps.push(ResendStep::Fail { rail });
                }
            }
            (Phase::Failed, Recovery::Observe | Recovery::ResendIfUnchanged) => {
                steps.push(ResendStep::ReadWord)
            }
            (Phase::Failed, Recovery::Resend) | (Phase::Decided(_), _) => {
                steps.push(ResendStep::Repost { rail: rail + 1 });
            }
            (Phase::Failed, Recovery::Evidence { fence: true }) => steps.push(ResendStep::Fence { rail }),
            (Phase::Failed, Recovery::Evidence { fence: false }) | (Phase::Fenced, _) => {
                steps.push(ResendStep::ReadEvidence { rail });
            }
            (Phase::Observed(_), _) => {}
        }
        if self.resets < self.setup.resets && self.word != 0 {
            steps.push(ResendStep::Reset);
        }
        steps
    }

    /// Takes a step, one of [`ResendWorld::steps`].
    pub fn apply(&mut self, step: ResendStep) {
        match step {
            ResendStep::Execute { rail } => self.execute(usize::from(rail)),
            ResendStep::LoseRequests { rail } => self.rails[usize::from(rail)].requests = 0,
            ResendStep::LoseAnswers { rail } => self.rails[usize::from(rail)].is_answer_in_transit = false,
            ResendStep::Complete { rail } => {
                let rail = &mut self.rails[usize::from(rail)];
                rail.is_answer_in_transit = false;
                let executed = rail.executed;
                self.end(executed);
            }
            ResendStep::Fail { .. } => {
                self.failures += 1;
                self.phase = Phase::Failed;
            }
            ResendStep::Fence { rail } => {
                self.rails[usize::from(rail)].is_fenced = true;
                self.phase = Phase::Fenced;
            }
            ResendStep::ReadEvidence { rail } => {
                self.phase = Phase::Decided(self.rails[usize::from(rail)].executed);
            }
            ResendStep::ReadWord => {
                self.phase = match self.setup.recovery {
                    Recovery::Observe => Phase::Observed(self.word),
                    _ => Phase::Decided(u8::from(self.word != 0)),
                };
            }
            ResendStep::Repost { rail } => {
                if let Phase::Decided(executed) = self.phase {
                    self.end(executed);
                }
                self.rail = rail;
                self.phase = Phase::Active;
                let requests = self.setup.operations - self.ended;
                self.rails[usize::from(rail)] = Rail { first: self.ended, requests, ..Rail::default() };
            }
            ResendStep::Reset => {
                self.resets += 1;
                self.word = 0;
            }
        }
    }

    fn execute(&mut self, number: usize) {
        let rail = &mut self.rails[number];
        let effect = &mut self.effects[usize::from(rail.first + rail.executed)];
        rail.requests -= 1;
        rail.executed += 1;
        rail.is_answer_in_transit = true;
        let after = match self.setup.operation {
            Atomic::FetchAdd => self.word + 1,
            Atomic::CompareSwap => 1,
        };
        effect.executions += 1;
        effect.changes += u8::from(after != self.word);
        effect.value = self.word;
        self.word = after;
    }

    /// Ends the first `executed` operations on the requester's rail, with the values that the
    /// responder returned.
    fn end(&mut self, executed: u8) {
        let end = self.rails[usize::from(self.rail)].first + executed;
        for operation in self.ended..end.max(self.ended) {
            self.values[usize::from(operation)] = self.effects[usize::from(operation)].value;
        }
        self.ended = self.ended.max(end);
    }

    /// Returns whether the operations were executed in order, none of them twice, and each
    /// operation that has ended was executed and has the value that this execution returned.
    pub fn is_exactly_once(&self) -> bool {
        let ended = &self.effects[..usize::from(self.ended)];
        let is_in_order = self.effects.windows(2).all(|pair| pair[0].executions >= pair[1].executions);
        is_in_order
            && self.effects.iter().all(|effect| effect.executions <= 1)
            && ended
                .iter()
                .zip(self.values)
                .all(|(effect, value)| effect.executions == 1 && effect.value == value)
    }

    /// Returns whether no operation was executed twice.
    pub fn is_at_most_once(&self) -> bool {
        self.effects.iter().all(|effect| effect.executions <= 1)
    }

    /// Returns whether no operation changed the word twice.
    pub fn is_changed_at_most_once(&self) -> bool {
        self.effects.iter().all(|effect| effect.changes <= 1)
    }

    /// Returns whether a step is possible, or all operations have ended.
    pub fn can_end(&self) -> bool {
        self.ended == self.setup.operations || !self.steps().is_empty()
    }

    /// The knowledge of the requester once it has read the word after a failure: the number of
    /// operations that have ended, and the word. `None` before this read.
    pub fn view(&self) -> Option<(u8, u8)> {
        match self.phase {
            Phase::Observed(word) => Some((self.ended, word)),
            _ => None,
        }
    }

    /// Returns the setup of the world.
    pub fn setup(&self) -> ResendSetup {
        self.setup
    }

    /// Returns the total number of executions of all operations.
    pub fn executions(&self) -> u8 {
        self.effects.iter().map(|effect| effect.executions).sum()
    }

    /// Returns the number of operations that have ended.
    pub fn ended(&self) -> u8 {
        self.ended
    }

    /// Returns the word.
    pub fn word(&self) -> u8 {
        self.word
    }
}
