//! Reliable registers are regular: who begins to read after a write has ended finds it, in every order of steps.

mod common;

use mitra_consensus::replicated_registers::{
    CallOutcome, ReplicatedRegisters, Rules, WriteOnceFields, unique_value,
};
use mitra_consensus::{
    Action, Actions, AllRules, Input, LegalChange, Op, Permissions, Process, ProcessId, Region, RegisterKind,
};
use mitra_consensus_check::{Exhaustive, Exploration, FaultLimits, World};

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

/// The writer writes two fields, and tells the reader of each once it is written. The reader reads from the start, anew as often as it is
/// told, and "decides" whether it has found what it was told of.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client<R> {
    me: ProcessId,
    registers: ReplicatedRegisters<Pair, R>,
    mine: Pair,
    told: (bool, bool),
    regular: Option<bool>,
}

impl<R: Rules> Client<R> {
    fn write(&mut self, out: &mut Actions<Self>) {
        self.registers.call(vec![Op::Write { region: 0, register: 0, cell: self.mine.clone() }], out);
    }

    fn read(&mut self, out: &mut Actions<Self>) {
        self.registers.call(vec![Op::Read { region: 0, first: 0, count: 1 }], out);
    }

    fn found(&mut self, pair: &Pair) {
        let right = |field: Option<u8>, value, told: bool| field == Some(value) || field.is_none() && !told;
        let regular = right(pair.first, 1, self.told.0) && right(pair.second, 2, self.told.1);
        if !regular || self.told.0 && self.told.1 {
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
                self.mine.first = Some(1);
                self.write(out);
            }
            Input::Start => self.read(out),
            Input::Message { message, .. } => {
                match message {
                    1 => self.told.0 = true,
                    _ => self.told.1 = true,
                }
                self.read(out);
            }
            Input::Response { memory, id, response } => {
                match self.registers.on_response(memory, id, response, out) {
                    Some(CallOutcome::Done(pairs)) if self.me == READER => self.found(&pairs[0]),
                    Some(CallOutcome::Done(_)) => {
                        let written = if self.mine.second.is_none() { 1 } else { 2 };
                        out.push(Action::Send { to: READER, message: written });
                        if written == 1 {
                            self.mine.second = Some(2);
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
        mine: Pair::default(),
        told: (false, false),
        regular: None,
    };
    let permissions = Permissions::single_writer(2, WRITER);
    let region =
        Region { registers: 1, permissions, legal_change: LegalChange::Never, kind: RegisterKind::ReadWrite };
    // A memory that is never asked again is as good as crashed.
    let start = World::new(vec![client(WRITER), client(READER)], 3, &[region], FaultLimits::default());
    Exhaustive::agreement(start, 0, vec![true]).explore()
}

#[test]
fn registers_are_regular_in_every_order() {
    let found = explore::<AllRules>();
    assert_eq!(found.counterexample, None);
    assert!(found.states > 10_000, "{} states: less than before", found.states);
}

/// The checker finds a read that misses what was written before.
fn errs(explore: fn() -> Exploration) {
    let (what, steps) = explore().counterexample.expect("a counterexample");
    println!("{what}: {steps:?}");
    assert_eq!(what, "validity");
}

mutants! { Rules, explore:
    without_a_majority_they_are_not: AWAITS_MAJORITY;
    with_stale_answers_they_are_not: DROPS_STALE;
}

#[test]
fn two_values_of_a_field_are_none() {
    let pair = |first, second| Pair { first, second };
    let copies = [pair(None, Some(2)), pair(Some(1), Some(3)), pair(Some(1), None)];
    assert_eq!(Pair::merge(&copies), pair(Some(1), None));
    assert_eq!(Pair::merge(&[]), Pair::default());
}
