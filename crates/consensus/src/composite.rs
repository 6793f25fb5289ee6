//! The composition of two independent protocols at one process. The protocols share the memories
//! and use separate regions.

use serde::{Deserialize, Serialize};

use crate::{Action, Actions, Input, Op, OpId, Process, Response};

/// A register's content or a message of one of two protocols.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Either<A, B> {
    /// Belongs to the first protocol.
    First(A),
    /// Belongs to the second protocol.
    Second(B),
}

impl<A: Default, B> Default for Either<A, B> {
    fn default() -> Either<A, B> {
        Either::First(A::default())
    }
}

impl<A: Default, B: Default> Either<A, B> {
    /// Returns the first protocol's content, or its default if this is content of the second
    /// protocol. A register that was never written holds `Either`'s default, which must read as the
    /// default of both protocols.
    pub(crate) fn first(self) -> A {
        if let Either::First(a) = self { a } else { A::default() }
    }

    pub(crate) fn second(self) -> B {
        if let Either::Second(b) = self { b } else { B::default() }
    }
}

/// A process that runs two protocols. The regions of the second protocol follow the regions of the
/// first protocol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Composite<A, B> {
    /// The first protocol.
    pub first: A,
    /// The second protocol.
    pub second: B,
    /// The number of the first protocol's regions.
    region_offset: u8,
    wake_requested: [bool; 2],
}

impl<A: Process, B: Process> Composite<A, B> {
    /// Composes two protocols. `regions` is the number of regions of the first protocol at each
    /// memory.
    pub fn new(first: A, second: B, regions: u8) -> Composite<A, B> {
        Composite { first, second, region_offset: regions, wake_requested: [false; 2] }
    }

    /// Calls `act` with the first protocol, and appends the actions that `act` requests to `out`.
    pub fn with_first<T>(
        &mut self,
        act: impl FnOnce(&mut A, &mut Actions<A>) -> T,
        out: &mut Actions<Composite<A, B>>,
    ) -> T {
        let mut actions = Vec::new();
        let done = act(&mut self.first, &mut actions);
        self.forward(false, actions, Either::First, Either::First, out);
        done
    }

    fn with_second(&mut self, input: Input<B::Cell, B::Message>, out: &mut Actions<Composite<A, B>>) {
        let mut actions = Vec::new();
        self.second.handle(input, &mut actions);
        self.forward(true, actions, Either::Second, Either::Second, out);
    }

    /// Translates the actions of one protocol and appends them to `out`. `side` is false for the
    /// first protocol and true for the second.
    fn forward<C, M>(
        &mut self,
        side: bool,
        actions: Vec<Action<C, M>>,
        cell: impl Fn(C) -> Either<A::Cell, B::Cell>,
        message: impl Fn(M) -> Either<A::Message, B::Message>,
        out: &mut Actions<Composite<A, B>>,
    ) {
        let region_offset = if side { self.region_offset } else { 0 };
        for action in actions {
            if let Action::Wake = action {
                self.wake_requested[usize::from(side)] = true;
            }
            let id = |id: OpId| id.of_part(side.into(), 2);
            out.push(translate_action(action, region_offset, id, &cell, &message));
        }
    }
}

/// Translates a protocol's action to the composite's regions, ids, cells and messages.
pub(crate) fn translate_action<C, D, M, N>(
    action: Action<C, M>,
    region_offset: u8,
    id: impl Fn(OpId) -> OpId,
    cell: impl Fn(C) -> D,
    message: impl Fn(M) -> N,
) -> Action<D, N> {
    match action {
        Action::Send { to, message: content } => Action::Send { to, message: message(content) },
        Action::Wake => Action::Wake,
        Action::FlipCoin => Action::FlipCoin,
        Action::Invoke { memory, id: part_id, op } => {
            Action::Invoke { memory, id: id(part_id), op: translate_op(op, region_offset, cell) }
        }
    }
}

pub(crate) fn translate_op<C, D>(op: Op<C>, region_offset: u8, cell: impl Fn(C) -> D) -> Op<D> {
    match op {
        Op::Read { region, first, count } => Op::Read { region: region + region_offset, first, count },
        Op::Write { region, register, cell: content } => {
            Op::Write { region: region + region_offset, register, cell: cell(content) }
        }
        Op::WriteOnce { region, register, cell: content } => {
            Op::WriteOnce { region: region + region_offset, register, cell: cell(content) }
        }
        Op::ChangePermissions { region, permissions } => {
            Op::ChangePermissions { region: region + region_offset, permissions }
        }
    }
}

pub(crate) fn translate_response<C, D>(response: Response<C>, cell: impl Fn(C) -> D) -> Response<D> {
    match response {
        Response::Ack => Response::Ack,
        Response::Nak => Response::Nak,
        Response::Cells(cells) => Response::Cells(cells.into_iter().map(cell).collect()),
    }
}

impl<A: Process, B: Process> Process for Composite<A, B> {
    type Cell = Either<A::Cell, B::Cell>;
    type Message = Either<A::Message, B::Message>;
    type Value = A::Value;

    fn handle(&mut self, input: Input<Self::Cell, Self::Message>, out: &mut Actions<Self>) {
        let (first, second) = match input {
            Input::Start => (Some(Input::Start), Some(Input::Start)),
            Input::Message { from, message: Either::First(message) } => {
                (Some(Input::Message { from, message }), None)
            }
            Input::Message { from, message: Either::Second(message) } => {
                (None, Some(Input::Message { from, message }))
            }
            Input::Response { memory, id, response } => match id.part(2) {
                (0, id) => (
                    Some(Input::Response {
                        memory,
                        id,
                        response: translate_response(response, Either::first),
                    }),
                    None,
                ),
                (_, id) => (
                    None,
                    Some(Input::Response {
                        memory,
                        id,
                        response: translate_response(response, Either::second),
                    }),
                ),
            },
            Input::Wake => {
                let [first, second] = core::mem::take(&mut self.wake_requested);
                (first.then_some(Input::Wake), second.then_some(Input::Wake))
            }
            // Leaders and coins are passed to the first protocol only.
            Input::Leader(p) => (Some(Input::Leader(p)), None),
            Input::Coin(side) => (Some(Input::Coin(side)), None),
        };
        if let Some(input) = first {
            self.with_first(|first, out| first.handle(input, out), out);
        }
        if let Some(input) = second {
            self.with_second(input, out);
        }
    }

    fn decision(&self) -> Option<&A::Value> {
        self.first.decision()
    }

    fn awaits_responses(&self) -> bool {
        self.first.awaits_responses() || self.second.awaits_responses()
    }

    fn attempts(&self) -> u64 {
        self.first.attempts()
    }
}
