//! Disk Paxos: n ≥ f + 1 processes, m ≥ 2fM + 1 memories, crashes only. The baseline with static permissions: who wrote must read
//! again, to see that nobody has overtaken it. Eight delays, or four where phase 1 is done before (the first leader's first ballot).

use core::marker::PhantomData;

use crate::ports::Ports;
use crate::process::{ballot_above, majority};
use crate::protected_memory_paxos::{Decided, Slot};
use crate::{
    Action, Actions, ChangeRule, Input, MemoryId, Op, Process, ProcessId, ProcessSet, Region, Response, Rights,
    Value,
};

/// The rules that safety rests on, for checkers to switch off.
pub trait Rules: Clone + Eq + core::hash::Hash + core::fmt::Debug {
    /// Having written its value, a process reads whether a higher ballot has begun.
    const READS_AGAIN: bool = true;
    /// Of what it has found, a process takes the value of the highest ballot.
    const ADOPTS: bool = true;
    /// The next operation on a memory waits for the outstanding one.
    const ONE_AT_A_TIME: bool = true;
}

/// All rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sound;
impl Rules for Sound {}

/// A process of Disk Paxos.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DiskPaxos<V, R = Sound> {
    me: ProcessId,
    processes: u8,
    memories: u8,
    input: V,
    leads: bool,
    attempts: u64,
    seen: u64,
    attempt: Option<Attempt<V>>,
    ports: Ports<Slot<V>>,
    /// The paper's dblock: what I have last begun to write, to every memory.
    mine: Slot<V>,
    decided: Option<V>,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Attempt<V> {
    /// The highest ballot and its value that were found in phase 1.
    last: Option<(u64, V)>,
    proposing: bool,
    /// Memories that have answered all of this phase, and, of a memory, whose slots are still to be read.
    done: Vec<bool>,
    to_read: Vec<u8>,
}

impl<V: Value, R: Rules> DiskPaxos<V, R> {
    /// A process that wants `input` decided, among `processes` processes and `memories` memories.
    pub fn new(me: ProcessId, processes: u8, memories: u8, input: V) -> DiskPaxos<V, R> {
        DiskPaxos {
            me,
            processes,
            memories,
            input,
            leads: false,
            attempts: 0,
            seen: 0,
            attempt: None,
            ports: Ports::new(memories),
            mine: Slot::default(),
            decided: None,
            rules: PhantomData,
        }
    }
}
