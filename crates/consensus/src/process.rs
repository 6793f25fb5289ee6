//! Processes: who they are, what they are told, what they ask for.

use core::fmt::{self, Debug, Display};
use core::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::{Op, Response};

/// A process, counted from 0. The papers' p1, which leads at first, is 0 here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ProcessId(pub u8);

/// A memory, counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MemoryId(pub u8);

/// Identifies an operation among those that a process has outstanding at one memory. The process chooses the id, and may use it again
/// once the memory has answered: states that differ only in what was answered earlier stay equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

impl OpId {
    /// The id of a process's only outstanding operation at a memory.
    pub const ONLY: OpId = OpId(0);

    /// The least id that is not among `used`.
    pub fn first_unused(used: impl Iterator<Item = OpId> + Clone) -> OpId {
        (0..).map(OpId).find(|id| used.clone().all(|other| other != *id)).unwrap_or(OpId::ONLY)
    }

    /// The id under which a process that is composed of `parts` parts invokes the operation `self` of the part number `part`.
    #[must_use]
    pub fn of_part(self, part: u64, parts: u64) -> OpId {
        OpId(self.0 * parts + part)
    }

    /// The number of the part that invoked the operation, and the id that the part gave it: the inverse of [`OpId::of_part`].
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

/// Up to 64 processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct ProcessSet(u64);

impl ProcessSet {
    /// Nobody.
    pub const NONE: ProcessSet = ProcessSet(0);

    /// The first `n` processes, at most 64.
    pub fn first(n: u8) -> ProcessSet {
        ProcessSet(u64::MAX.checked_shr(64 - u32::from(n.min(64))).unwrap_or(0))
    }

    /// One process alone.
    pub fn only(p: ProcessId) -> ProcessSet {
        ProcessSet::NONE.with(p)
    }

    /// These and `p`.
    #[must_use]
    pub fn with(self, p: ProcessId) -> ProcessSet {
        ProcessSet(self.0 | 1 << p.0)
    }

    /// These but `p`.
    #[must_use]
    pub fn without(self, p: ProcessId) -> ProcessSet {
        ProcessSet(self.0 & !(1 << p.0))
    }

    /// Whether `p` is one of them.
    pub fn contains(self, p: ProcessId) -> bool {
        self.0 >> p.0 & 1 == 1
    }

    /// How many they are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether they are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Debug for ProcessSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..64).map(ProcessId).filter(|&p| self.contains(p)).map(|p| p.0)).finish()
    }
}

/// What a process is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input<C, M> {
    /// It begins. Comes first, and once.
    Start,
    /// The failure detector Ω names this process as the leader. It may err, for a while.
    Leader(ProcessId),
    /// A message from another process.
    Message {
        /// Who sent it.
        from: ProcessId,
        /// What it says.
        message: M,
    },
    /// The answer to an operation.
    Response {
        /// Whose it is.
        memory: MemoryId,
        /// The id that [`Action::Invoke`] gave the operation.
        id: OpId,
        /// What it says.
        response: Response<C>,
    },
    /// The time that [`Action::Wake`] asked for is over.
    Wake,
    /// The coin that [`Action::FlipCoin`] asked for has fallen.
    Coin(bool),
}

/// What a process asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action<C, M> {
    /// Sends a message to another process. Links are reliable; messages may overtake one another.
    Send {
        /// To whom.
        to: ProcessId,
        /// What.
        message: M,
    },
    /// Invokes an operation of a memory. A memory that has crashed never answers.
    Invoke {
        /// The memory.
        memory: MemoryId,
        /// The id that [`Input::Response`] carries back. No other operation of this process that is outstanding at this memory has it.
        id: OpId,
        /// The operation.
        op: Op<C>,
    },
    /// Asks for [`Input::Wake`] after a while, of the driver's choice.
    Wake,
    /// Asks for [`Input::Coin`]: a random bit that nobody can foresee.
    FlipCoin,
}

/// Actions in the order in which they were asked for.
pub type Actions<P> = Vec<Action<<P as Process>::Cell, <P as Process>::Message>>;

/// A protocol, at one of its processes.
pub trait Process: Clone + Eq + Hash + Debug {
    /// What a register holds.
    type Cell: Clone + Eq + Hash + Debug + Default;
    /// What processes say to each other.
    type Message: Clone + Eq + Hash + Ord + Debug;
    /// What they decide on.
    type Value: Value;

    /// Takes an input and appends what it asks for.
    fn handle(&mut self, input: Input<Self::Cell, Self::Message>, out: &mut Actions<Self>);

    /// What it has decided, for good.
    fn decision(&self) -> Option<&Self::Value>;

    /// How often it has begun anew. An exhaustive search stops at a bound of it.
    fn attempts(&self) -> u64;
}

/// The smallest number of members that any two groups of which share one.
pub(crate) fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// Sends a message to all processes but oneself.
pub(crate) fn send_others<C, M: Clone>(
    me: ProcessId,
    processes: u8,
    message: &M,
    out: &mut Vec<Action<C, M>>,
) {
    let others = (0..processes).map(ProcessId).filter(|&to| to != me);
    out.extend(others.map(|to| Action::Send { to, message: message.clone() }));
}

/// What a protocol's `Rules` must be able to do beside naming the rules that safety rests on, which checkers switch off one by one, to see
/// that they notice.
pub trait RuleSet: Clone + Eq + Hash + Debug {}
impl<T: Clone + Eq + Hash + Debug> RuleSet for T {}

/// All rules of a protocol: what users run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllRules;

/// What values must be able to do.
pub trait Value: Clone + Eq + Ord + Hash + Debug {}
impl<T: Clone + Eq + Ord + Hash + Debug> Value for T {}

/// The least ballot above `seen` that is this process's own. Process 0's first is the least of all.
pub(crate) fn ballot_above(seen: u64, me: ProcessId, processes: u8) -> u64 {
    let n = u64::from(processes);
    (seen / n + 1) * n + u64::from(me.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_processes() {
        assert_eq!([0, 1, 3, 63, 64, 200].map(|n| ProcessSet::first(n).len()), [0, 1, 3, 63, 64, 64]);
        let set = ProcessSet::only(ProcessId(5)).with(ProcessId(63));
        assert!(set.contains(ProcessId(63)) && !set.contains(ProcessId(4)) && set.len() == 2);
        assert_eq!(format!("{set:?}"), "{5, 63}");
        assert_eq!(set.without(ProcessId(63)).without(ProcessId(4)), ProcessSet::only(ProcessId(5)));
    }

    #[test]
    fn ballots_are_ones_own_and_grow() {
        let all: Vec<u64> = (0..3).map(|p| ballot_above(0, ProcessId(p), 3)).collect();
        assert_eq!(all, [3, 4, 5]);
        assert_eq!([3, 4, 5].map(|seen| ballot_above(seen, ProcessId(1), 3)), [7, 7, 7]);
    }

    #[test]
    fn two_majorities_meet() {
        assert_eq!([1, 2, 3, 4, 5].map(majority), [1, 2, 2, 3, 3]);
    }
}
