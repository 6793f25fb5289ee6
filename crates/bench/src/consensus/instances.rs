//! One decision after another: a process that begins a new instance of its protocol for each, on registers of its own.

use mitra_consensus::{Action, Actions, Input, MemoryId, Op, Owners, Process, ProcessId, Region, Response};

/// A process of many instances, of which the last one goes on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Instances<P: Process> {
    current: P,
    /// What an instance is that another process begins.
    fresh: P,
    /// Its number, and how many registers each has in each region.
    number: u32,
    strides: Vec<u16>,
    /// Of which instance each outstanding operation is, by memory.
    owners: Owners<u32>,
}

impl<P: Process> Instances<P> {
    /// Begins with an instance on the first registers of its regions.
    pub(super) fn new(first: P, memories: u8, of_one: &[Region]) -> Instances<P> {
        let strides = of_one.iter().map(|region| region.registers).collect();
        Instances { fresh: first.clone(), current: first, number: 0, strides, owners: Owners::new(memories) }
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
        self.begin(self.number + 1, process, out);
        self.handle_in_current(Input::Leader(me), out);
    }

    fn begin(&mut self, number: u32, process: P, out: &mut Actions<Self>) {
        (self.number, self.current) = (number, process);
        self.handle_in_current(Input::Start, out);
    }

    fn handle_in_current(&mut self, input: Input<P::Cell, P::Message>, out: &mut Actions<Self>) {
        let mut asked = Vec::new();
        self.current.handle(input, &mut asked);
        for action in asked {
            out.push(match action {
                Action::Send { to, message } => Action::Send { to, message: (self.number, message) },
                Action::Ask { memory, op } => {
                    self.owners.asked(memory, self.number);
                    Action::Ask { memory, op: self.moved(op) }
                }
                Action::Wake => Action::Wake,
                Action::Toss => Action::Toss,
            });
        }
    }

    /// An operation of the current instance, on its own registers.
    fn moved<C>(&self, op: Op<C>) -> Op<C> {
        let first = |region: u8| self.number as u16 * self.strides[usize::from(region)];
        match op {
            Op::Read { region, first: register, count } => {
                Op::Read { region, first: register + first(region), count }
            }
            Op::Write { region, register, cell } => {
                Op::Write { region, register: register + first(region), cell }
            }
            Op::Settle { region, register, cell } => {
                Op::Settle { region, register: register + first(region), cell }
            }
            Op::Change { region, rights } => Op::Change { region, rights },
        }
    }

    fn answered(
        &mut self,
        memory: MemoryId,
        nth: usize,
        response: Response<P::Cell>,
        out: &mut Actions<Self>,
    ) {
        if let Some((number, nth)) = self.owners.answered(memory, nth)
            && number == self.number
        {
            self.handle_in_current(Input::Response { memory, nth, response }, out);
        }
    }
}

impl<P: Process> Process for Instances<P> {
    type Cell = P::Cell;
    type Message = (u32, P::Message);
    type Value = P::Value;

    fn handle(&mut self, input: Input<P::Cell, (u32, P::Message)>, out: &mut Actions<Self>) {
        match input {
            Input::Message { from, message: (number, message) } => {
                if number > self.number {
                    self.begin(number, self.fresh.clone(), out);
                }
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
