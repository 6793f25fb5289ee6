//! Repeated decisions: a process that starts a new instance of its protocol for each decision, on
//! separate registers.

use mitra_consensus::{Action, Actions, Input, MemoryId, Op, OpId, Process, ProcessId, Region, Response};

/// The largest number of instances. It is limited because register numbers have 16 bits.
const INSTANCES: u64 = 1 << 16;

/// A process that runs many instances of a protocol, one after the other. Only the last instance is
/// active.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Instances<P: Process> {
    current: P,
    /// The initial state of an instance that another process starts.
    fresh: P,
    /// The number of the active instance. `strides` has the number of registers of one instance in
    /// each region.
    number: u32,
    strides: Vec<u16>,
}

impl<P: Process> Instances<P> {
    /// Creates the process with instance 0, on the first registers of its regions.
    pub(super) fn new(first: P, of_one: &[Region]) -> Instances<P> {
        let strides = of_one.iter().map(|region| region.registers).collect();
        Instances { fresh: first.clone(), current: first, number: 0, strides }
    }

    /// Returns the regions of a protocol, enlarged to the registers of `instances` instances.
    pub(super) fn regions(of_one: Vec<Region>, instances: u16) -> Vec<Region> {
        of_one
            .into_iter()
            .map(|region| Region { registers: region.registers * instances, ..region })
            .collect()
    }

    /// Starts the next instance with `process`, and makes `me` its leader.
    pub(super) fn next(&mut self, process: P, me: ProcessId, out: &mut Actions<Self>) {
        self.begin(self.number + 1, process, out);
        self.handle_in_current(Input::Leader(me), out);
    }

    fn begin(&mut self, number: u32, process: P, out: &mut Actions<Self>) {
        (self.number, self.current) = (number, process);
        self.handle_in_current(Input::Start, out);
    }

    fn handle_in_current(&mut self, input: Input<P::Cell, P::Message>, out: &mut Actions<Self>) {
        let mut actions = Vec::new();
        self.current.handle(input, &mut actions);
        for action in actions {
            out.push(match action {
                Action::Send { to, message } => Action::Send { to, message: (self.number, message) },
                Action::Invoke { memory, id, op } => {
                    let id = id.of_part(self.number.into(), INSTANCES);
                    Action::Invoke { memory, id, op: self.relocate(op) }
                }
                Action::Wake => Action::Wake,
                Action::FlipCoin => Action::FlipCoin,
            });
        }
    }

    /// Replaces the register numbers of instance 0 in an operation by the register numbers of the
    /// active instance.
    fn relocate<C>(&self, op: Op<C>) -> Op<C> {
        let first = |region: u8| self.number as u16 * self.strides[usize::from(region)];
        match op {
            Op::Read { region, first: register, count } => {
                Op::Read { region, first: register + first(region), count }
            }
            Op::Write { region, register, cell } => {
                Op::Write { region, register: register + first(region), cell }
            }
            Op::WriteOnce { region, register, cell } => {
                Op::WriteOnce { region, register: register + first(region), cell }
            }
            Op::ChangePermissions { region, permissions } => Op::ChangePermissions { region, permissions },
        }
    }

    fn on_response(
        &mut self,
        memory: MemoryId,
        id: OpId,
        response: Response<P::Cell>,
        out: &mut Actions<Self>,
    ) {
        let (number, id) = id.part(INSTANCES);
        if number == u64::from(self.number) {
            self.handle_in_current(Input::Response { memory, id, response }, out);
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
            Input::Response { memory, id, response } => self.on_response(memory, id, response, out),
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
