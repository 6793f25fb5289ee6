//! Byzantine processes. A Byzantine process runs several instances of the protocol at once, with
//! different inputs and without some of the protocol's rules. The process thereby proposes, signs
//! and proves different values in valid form. With a seed, the process also changes the instances'
//! operations at random. The process has only its own signing key, and the memories enforce its
//! permissions.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use std::collections::BTreeMap;

use mitra_consensus::signature::Signed;
use mitra_consensus::{
    Action, Actions, Input, MemoryId, Op, OpId, Permissions, Process, ProcessId, Response, Value, broadcast,
    cheap_quorum, fast_and_robust,
};
use mitra_prng::{SPLIT_MIX_STEP, mix};

/// A process of a world in which some processes are Byzantine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Actor<P, F: Process> {
    /// A process that follows the protocol.
    Correct(P),
    /// A process that does not follow the protocol.
    Byzantine(ByzantineProcess<F>),
}

/// A process that runs several instances `F` of the protocol. The adversary may change the
/// operations of the instances.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ByzantineProcess<F: Process> {
    processes: u8,
    instances: Vec<F>,
    /// `None` if the process only runs its instances.
    adversary: Option<AdversaryRng>,
    /// Cells that the process has read, and may write whole or in part.
    read_cells: Vec<F::Cell>,
}

const MAX_READ_CELLS: usize = 24;

/// Pseudo-random numbers of a Byzantine process (SplitMix64). The state is part of the process's
/// state, and therefore hashable.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AdversaryRng(pub(crate) u64);

impl AdversaryRng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        mix(self.0) % n
    }
}

/// Register contents from which a Byzantine process forges other contents.
pub trait Forge: Sized {
    /// Returns the value of this cell with the signatures of the other cell, attributed to all
    /// processes. The signatures do not belong to the value, so a correct process must reject the
    /// result.
    #[must_use]
    fn forge(&self, other: &Self) -> Self;
}

/// The number of processes to which a forged cell attributes signatures: more than any world has.
const FORGED_SIGNERS: u8 = 6;

impl<V: Clone, S: Clone> Forge for Signed<V, S> {
    fn forge(&self, other: &Self) -> Self {
        let signatures: Vec<&S> = other.by.values().chain(self.by.values()).collect();
        let by = |p: u8| {
            Some((ProcessId(p), (*signatures.get(usize::from(p) % signatures.len().max(1))?).clone()))
        };
        Signed {
            value: self.value.clone(),
            by: (0..FORGED_SIGNERS).filter_map(by).collect::<BTreeMap<_, _>>(),
        }
    }
}

impl<V: Clone, S: Clone> Forge for broadcast::Slot<V, S> {
    fn forge(&self, other: &Self) -> Self {
        let claimed = self.proof.as_ref().or(self.witness.as_ref()).or(self.copy.as_ref());
        let signed = other.witness.as_ref().or(other.proof.as_ref()).or(other.copy.as_ref());
        let forged = claimed.zip(signed).map(|(claimed, signed)| claimed.forge(signed));
        broadcast::Slot { copy: self.copy.clone(), witness: forged.clone(), proof: forged }
    }
}

impl<V: Clone, S: Clone> Forge for cheap_quorum::Slot<V, S> {
    fn forge(&self, other: &Self) -> Self {
        let claimed = self.proof.as_ref().or(self.value.as_ref());
        let signed = other.value.as_ref().or(other.proof.as_ref());
        let forged = claimed.zip(signed).map(|(claimed, signed)| claimed.forge(signed));
        cheap_quorum::Slot { value: forged.clone(), proof: forged, panic: self.panic }
    }
}

impl<V: Clone, S: Clone> Forge for fast_and_robust::Cell<V, S> {
    fn forge(&self, other: &Self) -> Self {
        use fast_and_robust::Cell::{Backup, Empty, Quorum};
        match (self, other) {
            (Quorum(a), Quorum(b)) => Quorum(a.forge(b)),
            (Backup(a), Backup(b)) => Backup(a.forge(b)),
            // The result has the wrong type for its register: Cheap Quorum's register gets a cell
            // of the backup.
            (Quorum(_), _) => other.clone(),
            (Backup(_) | Empty, _) => Empty,
        }
    }
}

impl<F: Process<Cell: Forge>> ByzantineProcess<F> {
    /// Creates one of `processes` processes. Without a seed, the process runs its instances and
    /// changes none of their operations.
    pub fn new(processes: u8, instances: Vec<F>, adversary_seed: Option<u64>) -> ByzantineProcess<F> {
        ByzantineProcess {
            processes,
            instances,
            adversary: adversary_seed.map(AdversaryRng),
            read_cells: Vec::new(),
        }
    }

    fn handle(&mut self, input: Input<F::Cell, F::Message>, out: &mut Actions<F>) {
        if let Input::Response { memory, id, response } = input {
            let (instance, id) = id.part(self.parts());
            let instance = instance as usize;
            if instance < self.instances.len() {
                if let (Response::Cells(cells), Some(adversary)) = (&response, &mut self.adversary) {
                    for cell in cells.iter().filter(|cell| **cell != F::Cell::default()) {
                        match self.read_cells.len() < MAX_READ_CELLS {
                            true => self.read_cells.push(cell.clone()),
                            false => {
                                let replaced = adversary.below(MAX_READ_CELLS as u64) as usize;
                                self.read_cells[replaced] = cell.clone();
                            }
                        }
                    }
                }
                self.deliver(instance, Input::Response { memory, id, response }, out);
            }
        } else {
            (0..self.instances.len()).for_each(|instance| self.deliver(instance, input.clone(), out));
        }
    }

    /// Returns the number of parts that invoke operations: the instances, and the adversary.
    fn parts(&self) -> u64 {
        self.instances.len() as u64 + 1
    }

    fn deliver(&mut self, instance: usize, input: Input<F::Cell, F::Message>, out: &mut Actions<F>) {
        let mut actions = Vec::new();
        self.instances[instance].handle(input, &mut actions);
        for action in actions {
            match action {
                Action::Invoke { memory, id, op } => self.invoke((instance, id), memory, op, out),
                Action::Send { .. } | Action::Wake | Action::FlipCoin => out.push(action),
            }
        }
    }

    /// Invokes an operation of an instance. The adversary may omit or change the operation, or add
    /// another operation.
    fn invoke(
        &mut self,
        (instance, id): (usize, OpId),
        memory: MemoryId,
        mut op: Op<F::Cell>,
        out: &mut Actions<F>,
    ) {
        let adversary_id = OpId::ONLY.of_part(self.instances.len() as u64, self.parts());
        let instance_id = id.of_part(instance as u64, self.parts());
        let push = |id, op, out: &mut Actions<F>| out.push(Action::Invoke { memory, id, op });
        let Some(adversary) = &mut self.adversary else { return push(instance_id, op, out) };
        let choice = adversary.below(24);
        let cell_index = adversary.below(MAX_READ_CELLS as u64) as usize;
        let place = adversary.below(8) as u8;
        if choice == 0 {
            // Any process may request a change of permissions at any time. Most regions ignore this
            // change.
            let permissions = Permissions::read_only(self.processes);
            push(adversary_id, Op::ChangePermissions { region: place, permissions }, out);
        }
        if let Op::Write { region, register, cell } = &mut op {
            let read_cell = self.read_cells.get(cell_index % self.read_cells.len().max(1));
            match (choice, read_cell) {
                // Omits the write, and acknowledges it to the instance.
                (1..4, _) => {
                    let response = Response::Ack;
                    return self.deliver(instance, Input::Response { memory, id, response }, out);
                }
                // Replays a cell.
                (4..7, Some(read)) => cell.clone_from(read),
                (7..10, Some(read)) => *cell = cell.forge(read),
                (10, Some(read)) => *cell = read.forge(cell),
                // Writes a cell to another register in addition.
                (11, Some(read)) => {
                    let (region, register) = (*region, *register ^ u16::from(place));
                    let op = Op::Write { region, register, cell: read.clone() };
                    push(adversary_id, op, out);
                }
                _ => {}
            }
        }
        push(instance_id, op, out);
    }
}

impl<P: Process, F> Process for Actor<P, F>
where
    F: Process<Cell = P::Cell, Message = P::Message>,
    P::Cell: Forge,
{
    type Cell = P::Cell;
    type Message = P::Message;
    type Value = P::Value;

    fn handle(&mut self, input: Input<P::Cell, P::Message>, out: &mut Actions<Self>) {
        match self {
            Actor::Correct(process) => process.handle(input, out),
            Actor::Byzantine(byzantine) => byzantine.handle(input, out),
        }
    }

    fn decision(&self) -> Option<&P::Value> {
        match self {
            Actor::Correct(process) => process.decision(),
            Actor::Byzantine(_) => None,
        }
    }

    fn attempts(&self) -> u64 {
        match self {
            Actor::Correct(process) => process.attempts(),
            Actor::Byzantine(_) => 0,
        }
    }
}

/// An instance that writes one cell to every memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SingleWrite<C, V> {
    memories: u8,
    write: Op<C>,
    value: PhantomData<V>,
}

impl<C, V> SingleWrite<C, V> {
    /// Creates an instance that writes `cell` to a register of a region, in each of `memories`
    /// memories.
    pub fn new(memories: u8, (region, register): (u8, u16), cell: C) -> SingleWrite<C, V> {
        SingleWrite { memories, write: Op::Write { region, register, cell }, value: PhantomData }
    }
}

impl<C: Clone + Eq + Hash + Debug + Default, V: Value> Process for SingleWrite<C, V> {
    type Cell = C;
    type Message = ();
    type Value = V;

    fn handle(&mut self, input: Input<C, ()>, out: &mut Actions<Self>) {
        if let Input::Start = input {
            let invoke =
                |memory| Action::Invoke { memory: MemoryId(memory), id: OpId::ONLY, op: self.write.clone() };
            out.extend((0..self.memories).map(invoke));
        }
    }

    fn decision(&self) -> Option<&V> {
        None
    }

    fn attempts(&self) -> u64 {
        0
    }
}
