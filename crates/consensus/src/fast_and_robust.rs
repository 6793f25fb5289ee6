//! Fast & Robust (IRA, section 4.3): weak Byzantine agreement of n ≥ 2fP + 1 processes, of which up
//! to fP are Byzantine, over m ≥ 2fM + 1 memories, of which up to fM may crash. In a failure-free
//! synchronous run, the leader decides in two delays with one signature. A process runs Cheap
//! Quorum first. If Cheap Quorum aborts, the process continues with Preferential Paxos, run by
//! Robust Backup, and claims the value that Cheap Quorum aborted with.
//!
//! ```text
//! Cheap Quorum ──decided──▶ decided
//!       └──aborted: value and evidence──▶ Preferential Paxos ──decided──▶ decided
//! ```
//!
//! The two protocols use separate regions of the same memories. Each protocol may have one
//! operation outstanding at a memory.

use core::fmt::Debug;
use core::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::cheap_quorum::{self, CheapQuorum};
use crate::composite::{translate_action, translate_response};
use crate::preferential_paxos::{self, PreferentialPaxos};
use crate::robust_backup::{self, RobustBackup};
use crate::signature::{Signed, Signer};
use crate::{Action, Actions, AllRules, Input, MemoryId, OpId, Process, ProcessId, Region, Response, Value};

type Backup<V, K, P> = RobustBackup<PreferentialPaxos<V, P>, K>;
/// The content of a register of the fallback protocol.
pub type BackupSlot<V, S> = crate::broadcast::Slot<robust_backup::EventBatch<Signed<V, S>>, S>;

/// The content of a register.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Cell<V, S> {
    /// The register has not been written.
    #[default]
    Empty,
    /// A register of Cheap Quorum.
    Quorum(cheap_quorum::Slot<V, S>),
    /// A register of Robust Backup.
    Backup(BackupSlot<V, S>),
}

impl<V, S> From<cheap_quorum::Slot<V, S>> for Cell<V, S> {
    fn from(slot: cheap_quorum::Slot<V, S>) -> Cell<V, S> {
        Cell::Quorum(slot)
    }
}

impl<V, S> From<BackupSlot<V, S>> for Cell<V, S> {
    fn from(slot: BackupSlot<V, S>) -> Cell<V, S> {
        Cell::Backup(slot)
    }
}

/// A cell of Robust Backup is treated as unwritten.
impl<V, S> From<Cell<V, S>> for cheap_quorum::Slot<V, S> {
    fn from(cell: Cell<V, S>) -> cheap_quorum::Slot<V, S> {
        if let Cell::Quorum(slot) = cell { slot } else { cheap_quorum::Slot::default() }
    }
}

/// A cell of Cheap Quorum is treated as unwritten.
impl<V, S> From<Cell<V, S>> for BackupSlot<V, S> {
    fn from(cell: Cell<V, S>) -> BackupSlot<V, S> {
        if let Cell::Backup(slot) = cell { slot } else { BackupSlot::default() }
    }
}

/// A process has two parts that invoke operations: Cheap Quorum and the fallback (see
/// [`OpId::of_part`]).
const PARTS: u64 = 2;
const QUORUM: u64 = 0;
const BACKUP: u64 = 1;

/// A process of Fast & Robust.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FastAndRobust<
    V: Value + Serialize,
    K: Signer,
    R = AllRules,
    P: preferential_paxos::Rules = AllRules,
> {
    me: ProcessId,
    processes: u8,
    memories: u8,
    room: u16,
    keys: K,
    quorum: CheapQuorum<V, K, R>,
    /// The fallback, once Cheap Quorum has aborted.
    backup: Option<Backup<V, K, P>>,
    /// The leader that Ω named last, which the fallback receives when it begins.
    leader: Option<ProcessId>,
}

impl<V, K, R, P> FastAndRobust<V, K, R, P>
where
    V: Value + Serialize,
    K: Signer,
    R: cheap_quorum::Rules,
    P: preferential_paxos::Rules,
{
    /// Creates a process that proposes `input`, among `processes` processes and `memories`
    /// memories.
    ///
    /// After `max_polls` polls without a decision, Cheap Quorum enters its panic mode, which ends
    /// in an abort. `room` is the maximum number of broadcasts per process in the fallback.
    pub fn new(
        me: ProcessId,
        (processes, memories): (u8, u8),
        max_polls: u8,
        room: u16,
        keys: K,
        input: V,
    ) -> FastAndRobust<V, K, R, P> {
        FastAndRobust {
            me,
            processes,
            memories,
            room,
            quorum: CheapQuorum::new(me, (processes, memories), max_polls, keys.clone(), input),
            keys,
            backup: None,
            leader: None,
        }
    }

    /// Returns the regions of each memory: first the regions of Cheap Quorum, then the regions of
    /// the fallback.
    pub fn regions(processes: u8, room: u16) -> Vec<Region> {
        let backup = Backup::<V, K, P>::regions(processes, room);
        CheapQuorum::<V, K, R>::regions(processes).into_iter().chain(backup).collect()
    }

    fn step_quorum(
        &mut self,
        input: Input<cheap_quorum::Slot<V, K::Signature>, ()>,
        out: &mut Actions<Self>,
    ) {
        let mut actions = Vec::new();
        self.quorum.handle(input, &mut actions);
        out.extend(actions.into_iter().map(|action| of_part(QUORUM, action, 0)));
        if let (Some(claim), None) = (self.quorum.aborted(), &self.backup) {
            let size = (self.processes, self.memories);
            self.backup = Some(RobustBackup::new(self.me, size, self.room, self.keys.clone(), claim.clone()));
            self.step_backup(Input::Start, out);
            if let Some(leader) = self.leader {
                self.step_backup(Input::Leader(leader), out);
            }
        }
    }

    fn step_backup(&mut self, input: Input<BackupSlot<V, K::Signature>, ()>, out: &mut Actions<Self>) {
        let Some(backup) = &mut self.backup else { return };
        let mut actions = Vec::new();
        backup.handle(input, &mut actions);
        let first_region = self.processes + 1;
        out.extend(actions.into_iter().map(|action| of_part(BACKUP, action, first_region)));
    }

    fn on_response(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<Cell<V, K::Signature>>,
        out: &mut Actions<Self>,
    ) {
        match id.part(PARTS) {
            (QUORUM, id) => {
                self.step_quorum(Input::Response { memory, id, response: convert_response(response) }, out);
            }
            (_, id) => {
                self.step_backup(Input::Response { memory, id, response: convert_response(response) }, out);
            }
        }
    }
}

/// Translates an action of a protocol whose regions begin at region `first_region` of the shared
/// memories.
pub fn offset_regions<C: Into<D>, D>(action: Action<C, ()>, first_region: u8) -> Action<D, ()> {
    translate_action(action, first_region, |id| id, Into::into, |message| message)
}

fn of_part<C: Into<D>, D>(part: u64, action: Action<C, ()>, first_region: u8) -> Action<D, ()> {
    translate_action(action, first_region, |id| id.of_part(part, PARTS), Into::into, |message| message)
}

/// Converts the cells of a response to the cell type of one protocol.
pub fn convert_response<C: From<D>, D>(response: Response<D>) -> Response<C> {
    translate_response(response, C::from)
}

impl<V, K, R, P> Process for FastAndRobust<V, K, R, P>
where
    V: Value + Serialize,
    K: Signer,
    R: cheap_quorum::Rules,
    P: preferential_paxos::Rules,
{
    type Cell = Cell<V, K::Signature>;
    type Message = ();
    type Value = V;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start => self.step_quorum(Input::Start, out),
            Input::Leader(p) => {
                self.leader = Some(p);
                self.step_backup(Input::Leader(p), out);
            }
            Input::Wake => {
                self.step_quorum(Input::Wake, out);
                self.step_backup(Input::Wake, out);
            }
            Input::Response { memory, id, response } => self.on_response(memory, id, response, out),
            Input::Message { .. } | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.quorum.decision().or_else(|| self.backup.as_ref()?.decision())
    }

    fn attempts(&self) -> u64 {
        self.backup.as_ref().map_or(0, Process::attempts)
    }
}
