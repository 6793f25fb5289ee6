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

/// The id of an operation among those that a process has outstanding at one memory.
///
/// The process chooses the id, and may reuse it once the memory has responded. Ids that do not depend on completed
/// operations keep the number of states small for the model checker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

impl OpId {
    /// The id for a process that has at most one operation outstanding at a memory.
    pub const ONLY: OpId = OpId(0);

    /// Returns the least id that is not in `used`.
    pub fn first_unused(used: impl Iterator<Item = OpId> + Clone) -> OpId {
        (0..).map(OpId).find(|id| used.clone().all(|other| other != *id)).unwrap_or(OpId::ONLY)
    }

    /// Maps the id that part number `part` of a composite process chose to the id of the whole process. `parts` is the
    /// number of parts; ids of different parts never collide.
    #[must_use]
    pub fn of_part(self, part: u64, parts: u64) -> OpId {
        OpId(self.0 * parts + part)
    }

    /// Splits an id into the number of the part and the id that the part chose. The inverse of [`OpId::of_part`].
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

    /// Returns the set of the first `n` processes, at most 64.
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
    /// The process starts. This is the first input, and occurs once unless the process restarts without its state.
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
        /// The id that [`Input::Response`] carries back. It is unique among the operations that this process has
        /// outstanding at this memory.
        id: OpId,
        /// The operation.
        op: Op<C>,
    },
    /// Requests [`Input::Wake`] after a delay. The driver chooses the delay.
    Wake,
    /// Requests [`Input::Coin`], a random bit that the adversary cannot predict.
    FlipCoin,
}

/// The actions of one step, in the order in which the process requested them.
pub type Actions<P> = Vec<Action<<P as Process>::Cell, <P as Process>::Message>>;

/// The state machine of one process of a protocol.
pub trait Process: Clone + Eq + Hash + Debug {
    /// The content of a register.
    type Cell: Clone + Eq + Hash + Debug + Default;
    /// A message between processes.
    type Message: Clone + Eq + Hash + Ord + Debug;
    /// The value that the processes decide.
    type Value: Value;

    /// Handles an input, and appends the requested actions to `out`.
    fn handle(&mut self, input: Input<Self::Cell, Self::Message>, out: &mut Actions<Self>);

    /// Returns the decision, if the process has decided. A decision never changes.
    fn decision(&self) -> Option<&Self::Value>;

    /// Returns the number of attempts that the process has begun. An exhaustive search ends at a bound of this number.
    fn attempts(&self) -> u64;
}

/// Returns the least size at which any two subsets of `of` members intersect.
pub(crate) fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// Sends a message to all other processes.
pub(crate) fn send_others<C, M: Clone>(
    me: ProcessId,
    processes: u8,
    message: &M,
    out: &mut Vec<Action<C, M>>,
) {
    let others = (0..processes).map(ProcessId).filter(|&to| to != me);
    out.extend(others.map(|to| Action::Send { to, message: message.clone() }));
}

/// The base of each protocol's `Rules`, the rules that its safety rests on. A checker disables one rule at a time, and
/// verifies that it finds a violation.
pub trait RuleSet: Clone + Eq + Hash + Debug {}
impl<T: Clone + Eq + Hash + Debug> RuleSet for T {}

/// All rules of a protocol enabled, as in production.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllRules;

/// A value that processes can decide.
pub trait Value: Clone + Eq + Ord + Hash + Debug {}
impl<T: Clone + Eq + Ord + Hash + Debug> Value for T {}

/// Returns the least ballot above `seen` that belongs to process `me`. The first ballot of process 0 is the least of
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
