//! Two protocols at one process, over the same memories: each has regions of its own, and neither knows of the other.

use serde::{Deserialize, Serialize};

use crate::{Action, Actions, Input, Op, OpId, Process, Response};

/// Something of the one's or of the other's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Either<A, B> {
    /// Of the first.
    One(A),
    /// Of the second.
    Other(B),
}

impl<A: Default, B> Default for Either<A, B> {
    fn default() -> Either<A, B> {
        Either::One(A::default())
    }
}

impl<A: Default, B: Default> Either<A, B> {
    /// The first's; a register that nobody has written is anybody's.
    pub(crate) fn one(self) -> A {
        if let Either::One(a) = self { a } else { A::default() }
    }

    pub(crate) fn other(self) -> B {
        if let Either::Other(b) = self { b } else { B::default() }
    }
}

/// Two protocols at one process. The regions of the second come behind those of the first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Both<A, B> {
    /// The first.
    pub one: A,
    /// The second.
    pub other: B,
    /// How many regions the first has.
    shift: u8,
    asleep: [bool; 2],
}

impl<A: Process, B: Process> Both<A, B> {
    /// Two protocols, the first of which has so many regions on each memory.
    pub fn new(one: A, other: B, regions: u8) -> Both<A, B> {
        Both { one, other, shift: regions, asleep: [false; 2] }
    }

    /// Lets the first do something, and takes what it asks for.
    pub fn with_one<T>(
        &mut self,
        act: impl FnOnce(&mut A, &mut Actions<A>) -> T,
        out: &mut Actions<Both<A, B>>,
    ) -> T {
        let mut asked = Vec::new();
        let done = act(&mut self.one, &mut asked);
        self.take(false, asked, Either::One, Either::One, out);
        done
    }

    fn with_other(&mut self, input: Input<B::Cell, B::Message>, out: &mut Actions<Both<A, B>>) {
        let mut asked = Vec::new();
        self.other.handle(input, &mut asked);
        self.take(true, asked, Either::Other, Either::Other, out);
    }

    /// Takes what one of the two asks for.
    fn take<C, M>(
        &mut self,
        side: bool,
        asked: Vec<Action<C, M>>,
        cell: impl Fn(C) -> Either<A::Cell, B::Cell>,
        message: impl Fn(M) -> Either<A::Message, B::Message>,
        out: &mut Actions<Both<A, B>>,
    ) {
        let shift = if side { self.shift } else { 0 };
        for action in asked {
            if let Action::Wake = action {
                self.asleep[usize::from(side)] = true;
            }
            let id = |id: OpId| id.of_part(side.into(), 2);
            out.push(renamed(action, shift, id, &cell, &message));
        }
    }
}

/// An action, in the names that both share.
pub(crate) fn renamed<C, D, M, N>(
    action: Action<C, M>,
    shift: u8,
    id: impl Fn(OpId) -> OpId,
    cell: impl Fn(C) -> D,
    message: impl Fn(M) -> N,
) -> Action<D, N> {
    match action {
        Action::Send { to, message: said } => Action::Send { to, message: message(said) },
        Action::Wake => Action::Wake,
        Action::Toss => Action::Toss,
        Action::Invoke { memory, id: of_part, op } => {
            Action::Invoke { memory, id: id(of_part), op: renamed_op(op, shift, cell) }
        }
    }
}

pub(crate) fn renamed_op<C, D>(op: Op<C>, shift: u8, cell: impl Fn(C) -> D) -> Op<D> {
    match op {
        Op::Read { region, first, count } => Op::Read { region: region + shift, first, count },
        Op::Write { region, register, cell: held } => {
            Op::Write { region: region + shift, register, cell: cell(held) }
        }
        Op::Settle { region, register, cell: held } => {
            Op::Settle { region: region + shift, register, cell: cell(held) }
        }
        Op::Change { region, rights } => Op::Change { region: region + shift, rights },
    }
}

pub(crate) fn answer<C, D>(response: Response<C>, cell: impl Fn(C) -> D) -> Response<D> {
    match response {
        Response::Ack => Response::Ack,
        Response::Nak => Response::Nak,
        Response::Cells(cells) => Response::Cells(cells.into_iter().map(cell).collect()),
    }
}

impl<A: Process, B: Process> Process for Both<A, B> {
    type Cell = Either<A::Cell, B::Cell>;
    type Message = Either<A::Message, B::Message>;
    type Value = A::Value;

    fn handle(&mut self, input: Input<Self::Cell, Self::Message>, out: &mut Actions<Self>) {
        let (one, other) = match input {
            Input::Start => (Some(Input::Start), Some(Input::Start)),
            Input::Message { from, message: Either::One(message) } => {
                (Some(Input::Message { from, message }), None)
            }
            Input::Message { from, message: Either::Other(message) } => {
                (None, Some(Input::Message { from, message }))
            }
            Input::Response { memory, id, response } => match id.part(2) {
                (0, id) => {
                    (Some(Input::Response { memory, id, response: answer(response, Either::one) }), None)
                }
                (_, id) => {
                    (None, Some(Input::Response { memory, id, response: answer(response, Either::other) }))
                }
            },
            Input::Wake => {
                let [one, other] = core::mem::take(&mut self.asleep);
                (one.then_some(Input::Wake), other.then_some(Input::Wake))
            }
            // Of who leads, and of coins, only the first wants to know.
            Input::Leader(p) => (Some(Input::Leader(p)), None),
            Input::Coin(side) => (Some(Input::Coin(side)), None),
        };
        if let Some(input) = one {
            self.with_one(|one, out| one.handle(input, out), out);
        }
        if let Some(input) = other {
            self.with_other(input, out);
        }
    }

    fn decision(&self) -> Option<&A::Value> {
        self.one.decision()
    }

    fn attempts(&self) -> u64 {
        self.one.attempts()
    }
}
