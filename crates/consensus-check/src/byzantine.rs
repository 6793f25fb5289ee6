//! Byzantine processes. One of them runs the protocol itself, more than once at the same time, and not by all its rules: so it proposes, signs
//! and proves several things, in good form; and by whim it tampers with what comes of that. It has its own signer only, and the
//! memories bind it as everybody.

use core::fmt::Debug;
use core::hash::Hash;
use core::marker::PhantomData;
use std::collections::BTreeMap;

use mitra_consensus::signature::Signed;
use mitra_consensus::{
    Action, Actions, Input, MemoryId, Op, OpId, Permissions, Process, ProcessId, Response, Value, broadcast,
    cheap_quorum, fast_and_robust,
};

/// A process of a world in which some are Byzantine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Actor<P, F: Process> {
    /// It keeps to the protocol.
    Correct(P),
    /// It does not.
    Byzantine(ByzantineProcess<F>),
}

/// A process that does not keep to the protocol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ByzantineProcess<F: Process> {
    processes: u8,
    /// What it is to some and what it is to others.
    faces: Vec<F>,
    whim: Option<AdversaryRng>,
    /// Cells that it has read: it may write them, or parts of them.
    seen: Vec<F::Cell>,
}

/// So many cells it keeps in mind.
const SEEN: usize = 24;

/// A source of bad ideas: SplitMix64.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AdversaryRng(pub(crate) u64);

impl AdversaryRng {
    /// Less than `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

/// Cells that can be forged.
pub trait Forge: Sized {
    /// Says what this says, and passes off the other's signatures as those of everybody for it.
    #[must_use]
    fn forge(&self, other: &Self) -> Self;
}

/// So many processes' signatures are forged, more than there are.
const FORGED: u8 = 6;

impl<V: Clone, S: Clone> Forge for Signed<V, S> {
    fn forge(&self, other: &Self) -> Self {
        let theirs: Vec<&S> = other.by.values().chain(self.by.values()).collect();
        let by = |p: u8| Some((ProcessId(p), (*theirs.get(usize::from(p) % theirs.len().max(1))?).clone()));
        Signed { value: self.value.clone(), by: (0..FORGED).filter_map(by).collect::<BTreeMap<_, _>>() }
    }
}

impl<V: Clone, S: Clone> Forge for broadcast::Slot<V, S> {
    fn forge(&self, other: &Self) -> Self {
        let said = self.proof.as_ref().or(self.witness.as_ref()).or(self.copy.as_ref());
        let signed = other.witness.as_ref().or(other.proof.as_ref()).or(other.copy.as_ref());
        let forged = said.zip(signed).map(|(said, signed)| said.forge(signed));
        broadcast::Slot { copy: self.copy.clone(), witness: forged.clone(), proof: forged }
    }
}

impl<V: Clone, S: Clone> Forge for cheap_quorum::Slot<V, S> {
    fn forge(&self, other: &Self) -> Self {
        let said = self.proof.as_ref().or(self.value.as_ref());
        let signed = other.value.as_ref().or(other.proof.as_ref());
        let forged = said.zip(signed).map(|(said, signed)| said.forge(signed));
        cheap_quorum::Slot { value: forged.clone(), proof: forged, panic: self.panic }
    }
}

impl<V: Clone, S: Clone> Forge for fast_and_robust::Cell<V, S> {
    fn forge(&self, other: &Self) -> Self {
        use fast_and_robust::Cell::{Backup, Empty, Quorum};
        match (self, other) {
            (Quorum(a), Quorum(b)) => Quorum(a.forge(b)),
            (Backup(a), Backup(b)) => Backup(a.forge(b)),
            // Of the wrong kind, where it was read from the other part.
            (Quorum(_), _) => other.clone(),
            (Backup(_) | Empty, _) => Empty,
        }
    }
}

impl<F: Process<Cell: Forge>> ByzantineProcess<F> {
    /// One of `processes` processes. Without a seed for its whims it only has several faces.
    pub fn new(processes: u8, faces: Vec<F>, whim: Option<u64>) -> ByzantineProcess<F> {
        ByzantineProcess { processes, faces, whim: whim.map(AdversaryRng), seen: Vec::new() }
    }

    fn handle(&mut self, input: Input<F::Cell, F::Message>, out: &mut Actions<F>) {
        if let Input::Response { memory, id, response } = input {
            let (face, id) = id.part(self.parts());
            let face = face as usize;
            if face < self.faces.len() {
                if let (Response::Cells(cells), Some(whim)) = (&response, &mut self.whim) {
                    for cell in cells.iter().filter(|cell| **cell != F::Cell::default()) {
                        match self.seen.len() < SEEN {
                            true => self.seen.push(cell.clone()),
                            false => self.seen[whim.below(SEEN as u64) as usize] = cell.clone(),
                        }
                    }
                }
                self.tell(face, Input::Response { memory, id, response }, out);
            }
        } else {
            (0..self.faces.len()).for_each(|face| self.tell(face, input.clone(), out));
        }
    }

    /// Those that ask for operations: the faces, and the process beside them.
    fn parts(&self) -> u64 {
        self.faces.len() as u64 + 1
    }

    fn tell(&mut self, face: usize, input: Input<F::Cell, F::Message>, out: &mut Actions<F>) {
        let mut actions = Vec::new();
        self.faces[face].handle(input, &mut actions);
        for action in actions {
            match action {
                Action::Invoke { memory, id, op } => self.ask((face, id), memory, op, out),
                Action::Send { .. } | Action::Wake | Action::FlipCoin => out.push(action),
            }
        }
    }

    fn ask(
        &mut self,
        (face, id): (usize, OpId),
        memory: MemoryId,
        mut op: Op<F::Cell>,
        out: &mut Actions<F>,
    ) {
        let beside = OpId::ONLY.of_part(self.faces.len() as u64, self.parts());
        let of_face = id.of_part(face as u64, self.parts());
        let push = |id, op, out: &mut Actions<F>| out.push(Action::Invoke { memory, id, op });
        let Some(whim) = &mut self.whim else { return push(of_face, op, out) };
        let (idea, pick, place) = (whim.below(24), whim.below(SEEN as u64) as usize, whim.below(8) as u8);
        if idea == 0 {
            // Everybody may ask for this at any time; of most regions it is ignored.
            let permissions = Permissions::read_only(self.processes);
            push(beside, Op::ChangePermissions { region: place, permissions }, out);
        }
        if let Op::Write { region, register, cell } = &mut op {
            let seen = self.seen.get(pick % self.seen.len().max(1));
            match (idea, seen) {
                // It keeps silent, and believes that it has spoken.
                (1..4, _) => {
                    let response = Response::Ack;
                    return self.tell(face, Input::Response { memory, id, response }, out);
                }
                (4..7, Some(seen)) => cell.clone_from(seen),
                (7..10, Some(seen)) => *cell = cell.forge(seen),
                (10, Some(seen)) => *cell = seen.forge(cell),
                (11, Some(seen)) => {
                    let (region, register) = (*region, *register ^ u16::from(place));
                    let op = Op::Write { region, register, cell: seen.clone() };
                    push(beside, op, out);
                }
                _ => {}
            }
        }
        push(of_face, op, out);
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

/// A face for the smallest worlds: it writes one register, once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SingleWrite<C, V> {
    memories: u8,
    write: Op<C>,
    value: PhantomData<V>,
}

impl<C, V> SingleWrite<C, V> {
    /// Writes this cell to a register of a region, in each of so many memories.
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
            let ask =
                |memory| Action::Invoke { memory: MemoryId(memory), id: OpId::ONLY, op: self.write.clone() };
            out.extend((0..self.memories).map(ask));
        }
    }

    fn decision(&self) -> Option<&V> {
        None
    }

    fn attempts(&self) -> u64 {
        0
    }
}
