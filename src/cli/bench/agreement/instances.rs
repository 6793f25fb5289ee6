//! One decision after another: a process that begins a new instance of its protocol for each, on registers of its own.

use std::collections::VecDeque;

use mitra_agreement::{Action, Actions, Input, MemoryId, Op, Process, ProcessId, Region, Response};

/// A process of many instances, of which the last one goes on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Instances<P: Process> {
    current: P,
    /// Its number, and how many registers each has.
    number: u32,
    stride: u16,
    /// Of which instance each outstanding operation is, by memory.
    owners: Vec<VecDeque<u32>>,
}

impl<P: Process> Instances<P> {
    /// Begins with an instance on the first registers of the only region.
    pub(super) fn new(first: P, memories: u8, stride: u16) -> Instances<P> {
        Instances { current: first, number: 0, stride, owners: vec![VecDeque::new(); memories.into()] }
    }

    /// The region of a protocol, with room for so many instances.
    pub(super) fn regions(of_one: Vec<Region>, instances: u16) -> Vec<Region> {
        of_one
            .into_iter()
            .map(|region| Region { registers: region.registers * instances, ..region })
            .collect()
    }

    /// The next decision is to be made, by this process.
    pub(super) fn next(&mut self, process: P, me: ProcessId, out: &mut Actions<Self>) {
        self.number += 1;
        self.current = process;
        self.handle_in_current(Input::Start, out);
        self.handle_in_current(Input::Leader(me), out);
    }

    fn handle_in_current(&mut self, input: Input<P::Cell, P::Message>, out: &mut Actions<Self>) {
        let mut asked = Vec::new();
        self.current.handle(input, &mut asked);
        let first = self.number as u16 * self.stride;
        for action in asked {
            out.push(match action {
                Action::Send { to, message } => Action::Send { to, message: (self.number, message) },
                Action::Ask { memory, op } => {
                    self.owners[usize::from(memory.0)].push_back(self.number);
                    Action::Ask { memory, op: shift(op, first) }
                }
                Action::Wake => Action::Wake,
                Action::Toss => Action::Toss,
            });
        }
    }

    fn answered(
        &mut self,
        memory: MemoryId,
        nth: usize,
        response: Response<P::Cell>,
        out: &mut Actions<Self>,
    ) {
        let owners = &mut self.owners[usize::from(memory.0)];
        let before = owners.iter().take(nth).filter(|&&owner| owner == self.number).count();
        if owners.remove(nth) == Some(self.number) {
            self.handle_in_current(Input::Response { memory, nth: before, response }, out);
        }
    }
}

fn shift<C>(op: Op<C>, by: u16) -> Op<C> {
    match op {
        Op::Read { region, first, count } => Op::Read { region, first: first + by, count },
        Op::Write { region, register, cell } => Op::Write { region, register: register + by, cell },
        Op::Settle { region, register, cell } => Op::Settle { region, register: register + by, cell },
        Op::Change { region, rights } => Op::Change { region, rights },
    }
}

impl<P: Process> Process for Instances<P> {
    type Cell = P::Cell;
    type Message = (u32, P::Message);
    type Value = P::Value;

    fn handle(&mut self, input: Input<P::Cell, (u32, P::Message)>, out: &mut Actions<Self>) {
        match input {
            Input::Message { from, message: (number, message) } => {
                if number == self.number {
                    self.handle_in_current(Input::Message { from, message }, out);
                }
            }
            Input::Response { memory, nth, response } => self.answered(memory, nth, response, out),
            Input::Start => self.handle_in_current(Input::Start, out),
            Input::Leader(p) => self.handle_in_current(Input::Leader(p), out),
            Input::Wake => self.handle_in_current(Input::Wake, out),
            Input::Coin(side) => self.handle_in_current(Input::Coin(side), out),
        }
    }

    fn decision(&self) -> Option<&P::Value> {
        self.current.decision()
    }

    fn attempts(&self) -> u64 {
        self.current.attempts()
    }
}
