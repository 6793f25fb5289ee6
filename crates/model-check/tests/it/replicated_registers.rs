//! Replicated registers are regular in every order of steps: a read that begins after the end of a
//! write returns the written value.

use crate::common::explorations::{Reads, finds_nothing};
use mitra_consensus::replicated_registers::{
    CallOutcome, ReplicatedRegisters, Rules, WriteOnceFields, unique_value,
};
use mitra_consensus::{
    Action, Actions, AllRules, Input, LegalChange, Op, Permissions, Process, ProcessId, Region, RegisterKind,
};
use mitra_model_check::{Exhaustive, Exploration, FaultLimits, World};

const WRITER: ProcessId = ProcessId(0);
const READER: ProcessId = ProcessId(1);

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Pair {
    first: Option<u8>,
    second: Option<u8>,
}

impl WriteOnceFields for Pair {
    fn merge(copies: &[Pair]) -> Pair {
        Pair {
            first: unique_value(copies.iter().map(|c| &c.first)),
            second: unique_value(copies.iter().map(|c| &c.second)),
        }
    }
}

/// A client of the registers. The writer writes two fields, and sends a message to the reader after
/// each write. The reader reads at the start and after each message. The reader's decision is
/// whether each read returned the fields that earlier messages announced.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client<R> {
    me: ProcessId,
    registers: ReplicatedRegisters<Pair, R>,
    /// The fields that the writer has written or is writing.
    fields: Pair,
    /// Whether the reader has received the message about each field.
    announced: (bool, bool),
    regular: Option<bool>,
}

impl<R: Rules> Client<R> {
    fn write(&mut self, out: &mut Actions<Self>) {
        self.registers.call(vec![Op::Write { region: 0, register: 0, cell: self.fields.clone() }], out);
    }

    fn read(&mut self, out: &mut Actions<Self>) {
        self.registers.call(vec![Op::Read { region: 0, first: 0, count: 1 }], out);
    }

    fn check(&mut self, pair: &Pair) {
        let is_regular =
            |field: Option<u8>, value, announced: bool| field == Some(value) || field.is_none() && !announced;
        let regular =
            is_regular(pair.first, 1, self.announced.0) && is_regular(pair.second, 2, self.announced.1);
        if !regular || self.announced.0 && self.announced.1 {
            self.regular.get_or_insert(regular);
        }
    }
}

impl<R: Rules> Process for Client<R> {
    type Cell = Pair;
    type Message = u8;
    type Value = bool;

    fn handle(&mut self, input: Input<Pair, u8>, out: &mut Actions<Self>) {
        match input {
            Input::Start if self.me == WRITER => {
                self.fields.first = Some(1);
                self.write(out);
            }
            Input::Start => self.read(out),
            Input::Message { message, .. } => {
                match message {
                    1 => self.announced.0 = true,
                    _ => self.announced.1 = true,
                }
                self.read(out);
            }
            Input::Response { memory, id, response } => {
                match self.registers.on_response(memory, id, response, out) {
                    Some(CallOutcome::Done(pairs)) if self.me == READER => self.check(&pairs[0]),
                    Some(CallOutcome::Done(_)) => {
                        let written = if self.fields.second.is_none() { 1 } else { 2 };
                        out.push(Action::Send { to: READER, message: written });
                        if written == 1 {
                            self.fields.second = Some(2);
                            self.write(out);
                        }
                    }
                    _ => {}
                }
            }
            Input::Leader(_) | Input::Wake | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&bool> {
        self.regular.as_ref()
    }

    fn attempts(&self) -> u64 {
        0
    }
}

fn explore<R: Rules + Send + Sync + 'static>() -> Exploration {
    let client = |me| Client {
        me,
        registers: ReplicatedRegisters::<Pair, R>::new(3),
        fields: Pair::default(),
        announced: (false, false),
        regular: None,
    };
    let permissions = Permissions::single_writer(2, WRITER);
    let region =
        Region { registers: 1, permissions, legal_change: LegalChange::Never, kind: RegisterKind::ReadWrite };
    // Memories do not crash in this world. A memory whose operations are never executed has the
    // same effect as a crashed memory.
    let start = World::new(vec![client(WRITER), client(READER)], 3, &[region], FaultLimits::default());
    Exhaustive::agreement(start, 0, vec![true]).explore()
}

#[test]
fn registers_are_regular_in_every_order_of_steps() {
    finds_nothing(
        "replicated_registers::registers_are_regular_in_every_order_of_steps",
        Reads::Consensus,
        explore::<AllRules>,
    );
}

/// Checks that a mutant has a read that misses an earlier write.
fn mutant_violates(explore: fn() -> Exploration) {
    let (property, steps) = explore().counterexample.expect("a counterexample");
    println!("{property}: {steps:?}");
    assert_eq!(property, "validity");
}

mutants! { Rules, explore:
    mutant_without_majority_is_not_regular: AWAITS_MAJORITY;
    mutant_with_stale_responses_is_not_regular: DROPS_STALE;
}

#[test]
fn merge_of_two_values_of_a_field_is_none() {
    let pair = |first, second| Pair { first, second };
    let copies = [pair(None, Some(2)), pair(Some(1), Some(3)), pair(Some(1), None)];
    assert_eq!(Pair::merge(&copies), pair(Some(1), None));
    assert_eq!(Pair::merge(&[]), Pair::default());
}
