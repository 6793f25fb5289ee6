//! Processes: their identities, inputs and actions.

use core::fmt::{self, Debug, Display};
use core::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::{Op, Response};

/// The number of a process, from 0. The papers' p1, which is the first leader, is process 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ProcessId(pub u8);

/// The number of a memory, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MemoryId(pub u8);

/// The id of an operation, unique among the operations that a process has outstanding at one
/// memory.
///
/// The process chooses the id, and may reuse it once the memory has responded. Ids that do not
/// depend on completed operations keep the number of states small for the model checker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

impl OpId {
    /// The id for a process that has at most one operation outstanding at a memory.
    pub const ONLY: OpId = OpId(0);

    /// Returns the smallest id that is not in `used`.
    pub fn first_unused(used: impl Iterator<Item = OpId> + Clone) -> OpId {
        (0..).map(OpId).find(|id| used.clone().all(|other| other != *id)).unwrap_or(OpId::ONLY)
    }

    /// Returns the id that a composite process uses for an id that one of its parts chose. `part`
    /// is the number of the part, from 0, and `parts` is the number of parts. The ids of different
    /// parts never collide.
    #[must_use]
    pub fn of_part(self, part: u64, parts: u64) -> OpId {
        OpId(self.0 * parts + part)
    }

    /// Returns the number of the part that an operation belongs to, and the id that the part chose.
    /// This is the inverse of [`OpId::of_part`].
    pub fn part(self, parts: u64) -> (u64, OpId) {
        (self.0 % parts, OpId(self.0 / parts))
    }
}

impl Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// A set of processes with numbers below 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ProcessSet(u64);

impl ProcessSet {
    /// The empty set.
    pub const NONE: ProcessSet = ProcessSet(0);

    /// Returns the set of the first `n` processes. A number above 64 is treated as 64.
    pub fn first(n: u8) -> ProcessSet {
        ProcessSet(u64::MAX.checked_shr(64 - u32::from(n.min(64))).unwrap_or(0))
    }

    /// Returns the set of one process.
    pub fn only(p: ProcessId) -> ProcessSet {
        ProcessSet::NONE.with(p)
    }

    /// Returns the union of this set and `p`.
    #[must_use]
    pub fn with(self, p: ProcessId) -> ProcessSet {
        ProcessSet(self.0 | 1 << p.0)
    }

    /// Returns this set without `p`.
    #[must_use]
    pub fn without(self, p: ProcessId) -> ProcessSet {
        ProcessSet(self.0 & !(1 << p.0))
    }

    /// Returns whether `p` is in the set.
    pub fn contains(self, p: ProcessId) -> bool {
        self.0 >> p.0 & 1 == 1
    }

    /// Returns the number of processes in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Debug for ProcessSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..64).map(ProcessId).filter(|&p| self.contains(p)).map(|p| p.0)).finish()
    }
}

/// An input to a process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input<C, M> {
    /// The process starts. This is the first input, and is passed only once.
    Start,
    /// The failure detector Ω names the leader. Ω may be wrong for a finite time.
    Leader(ProcessId),
    /// A message from another process.
    Message {
        /// The sender.
        from: ProcessId,
        /// The message.
        message: M,
    },
    /// A memory's response to an operation.
    Response {
        /// The memory.
        memory: MemoryId,
        /// The id from [`Action::Invoke`].
        id: OpId,
        /// The response.
        response: Response<C>,
    },
    /// The delay that [`Action::Wake`] requested has passed.
    Wake,
    /// The random bit that [`Action::FlipCoin`] requested.
    Coin(bool),
}

/// An action that a process requests from its driver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action<C, M> {
    /// Sends a message to another process. Links are reliable, and may reorder messages.
    Send {
        /// The receiver.
        to: ProcessId,
        /// The message.
        message: M,
    },
    /// Invokes an operation at a memory. A memory that has crashed never responds.
    Invoke {
        /// The memory.
        memory: MemoryId,
        /// The id that [`Input::Response`] will contain, unique among the operations that this
        /// process has outstanding at this memory.
        id: OpId,
        /// The operation.
        op: Op<C>,
    },
    /// Requests [`Input::Wake`] after a delay. The driver chooses the delay.
    Wake,
    /// Requests [`Input::Coin`], a random bit that the adversary cannot predict.
    FlipCoin,
}

/// Actions, in the order in which the process requested them.
pub type Actions<P> = Vec<Action<<P as Process>::Cell, <P as Process>::Message>>;

/// The state machine of one process of a protocol.
pub trait Process: Clone + Eq + Hash + Debug {
    /// The content of a register. The default value stands for a register that was never written.
    type Cell: Clone + Eq + Hash + Debug + Default;
    /// A message between processes.
    type Message: Clone + Eq + Hash + Ord + Debug;
    /// The type of the values that the processes decide on.
    type Value: Value;

    /// Handles an input, and appends the requested actions to `out`.
    fn handle(&mut self, input: Input<Self::Cell, Self::Message>, out: &mut Actions<Self>);

    /// Returns the decision, if the process has decided. A decision never changes.
    fn decision(&self) -> Option<&Self::Value>;

    /// Returns whether the process needs the responses of its outstanding operations early. If not,
    /// they may wait until just before the next [`Input::Wake`].
    fn awaits_responses(&self) -> bool {
        true
    }

    /// Returns the number of attempts that the process has begun. An exhaustive search stops at
    /// states in which this number exceeds a bound.
    fn attempts(&self) -> u64;
}

/// Returns the smallest number of elements, out of `of`, such that any two subsets of this size
/// intersect.
pub(crate) fn majority(of: usize) -> usize {
    of / 2 + 1
}

pub(crate) fn send_others<C, M: Clone>(
    me: ProcessId,
    processes: u8,
    message: &M,
    out: &mut Vec<Action<C, M>>,
) {
    let others = (0..processes).map(ProcessId).filter(|&to| to != me);
    out.extend(others.map(|to| Action::Send { to, message: message.clone() }));
}

/// The supertrait of each protocol's `Rules`. The constants of `Rules` enable the rules that the
/// protocol's correctness depends on. A checker disables one rule at a time, and verifies that it
/// then finds a violation.
pub trait RuleSet: Clone + Eq + Hash + Debug {}
impl<T: Clone + Eq + Hash + Debug> RuleSet for T {}

/// The implementation of `Rules` that enables all rules, as in production.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllRules;

/// A value that processes can decide.
pub trait Value: Clone + Eq + Ord + Hash + Debug {}
impl<T: Clone + Eq + Ord + Hash + Debug> Value for T {}

/// Returns the ballot of process `me` in the round after the round of `seen`. A round is
/// `processes` consecutive ballots, one per process. The first ballot of process 0 is the lowest of
/// all ballots.
pub(crate) fn ballot_above(seen: u64, me: ProcessId, processes: u8) -> u64 {
    let n = u64::from(processes);
    (seen / n + 1) * n + u64::from(me.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_set_operations() {
        assert_eq!([0, 1, 3, 63, 64, 200].map(|n| ProcessSet::first(n).len()), [0, 1, 3, 63, 64, 64]);
        let set = ProcessSet::only(ProcessId(5)).with(ProcessId(63));
        assert!(set.contains(ProcessId(63)) && !set.contains(ProcessId(4)) && set.len() == 2);
        assert_eq!(format!("{set:?}"), "{5, 63}");
        assert_eq!(set.without(ProcessId(63)).without(ProcessId(4)), ProcessSet::only(ProcessId(5)));
    }

    #[test]
    fn ballots_are_unique_to_a_process_and_increase() {
        let all: Vec<u64> = (0..3).map(|p| ballot_above(0, ProcessId(p), 3)).collect();
        assert_eq!(all, [3, 4, 5]);
        assert_eq!([3, 4, 5].map(|seen| ballot_above(seen, ProcessId(1), 3)), [7, 7, 7]);
    }

    #[test]
    fn any_two_majorities_intersect() {
        assert_eq!([1, 2, 3, 4, 5].map(majority), [1, 2, 2, 3, 3]);
    }
}
