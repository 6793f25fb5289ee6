//! The state of all processes, memories, messages and operations, and the steps by which an
//! adversary changes it.

use core::fmt;

use mitra_consensus::{
    Action, Actions, Input, Memory, MemoryId, Op, OpId, Process, ProcessId, ProcessSet, Region, Response,
};

/// The number of faults and leader changes that the adversary may still cause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FaultLimits {
    /// Times that Ω names a leader to one process.
    pub leader_changes: u8,
    /// Crashes of processes.
    pub process_crashes: u8,
    /// Crashes of memories.
    pub memory_crashes: u8,
    /// Disconnections of one process from one memory, and restarts of a memory, which disconnect
    /// all processes from it.
    pub disconnects: u8,
    /// Restarts of processes without their state. Only some protocols tolerate them.
    pub restarts: u8,
    /// Losses of messages. Only protocols that need no reliable links tolerate them.
    pub message_losses: u8,
}

/// One step of the adversary. Messages that a process sent before it crashed are still delivered,
/// and operations that it invoked are still executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Ω tells this process that the process itself leads.
    Lead(ProcessId),
    /// Ω tells this process that a different process leads.
    Follow(ProcessId),
    /// The message at this index, in the sorted list of messages in transit, reaches its receiver.
    DeliverMessage(usize),
    /// The message at this index is lost.
    DropMessage(usize),
    /// The memory executes an operation of the process, at this index of the outstanding
    /// operations. For a read, one step reads one register.
    Execute(ProcessId, MemoryId, usize),
    /// The response to the operation at this index reaches the process.
    Respond(ProcessId, MemoryId, usize),
    /// The delay for which a process waits has passed.
    Wake(ProcessId),
    /// The coin flip of a process has this result.
    Coin(ProcessId, bool),
    /// A process crashes.
    CrashProcess(ProcessId),
    /// A memory crashes. A crashed memory never responds.
    CrashMemory(MemoryId),
    /// The connection between a process and a memory fails and is established again. Outstanding
    /// writes get a nak; a write that is not executed yet is never executed. Outstanding operations
    /// other than writes are repeated on the new connection.
    Disconnect(ProcessId, MemoryId),
    /// A memory restarts with the content of its registers. All processes are disconnected from it,
    /// and must acquire their exclusive permissions again.
    RestartMemory(MemoryId),
    /// A process restarts without its state. Its outstanding operations are never executed.
    RestartProcess(ProcessId),
}

/// The state of an outstanding operation at a memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Request<C> {
    /// The operation is not executed completely. A read keeps the cells that it has read so far.
    Pending(Op<C>, Vec<C>),
    /// The operation is executed; the response has not reached the process.
    Executed(Response<C>),
    /// The write is executed; the acknowledgement has not reached the process.
    Written,
}

impl<C> Request<C> {
    /// Returns whether the process cannot know, after a disconnection, if the operation was
    /// executed.
    fn has_unknown_outcome_after_disconnect(&self) -> bool {
        matches!(self, Request::Written | Request::Pending(Op::Write { .. }, _))
    }
}

/// The outstanding operations of one process at one memory, in the order of invocation.
type Outstanding<C> = Vec<(OpId, Request<C>)>;

/// Processes, memories, messages in transit and outstanding operations.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World<P: Process> {
    /// `None` for each crashed process.
    processes: Vec<Option<P>>,
    /// `None` for each crashed memory.
    memories: Vec<Option<Memory<P::Cell>>>,
    /// Sender, receiver and content. Sorted, so that two worlds with the same messages are equal.
    messages: Vec<(ProcessId, ProcessId, P::Message)>,
    /// By process and memory.
    requests: Vec<Vec<Outstanding<P::Cell>>>,
    /// By process: whether it waits for `Input::Wake`.
    asleep: Vec<bool>,
    /// By process: whether it waits for `Input::Coin`.
    flipping_coin: Vec<bool>,
    decisions: Vec<Option<P::Value>>,
    byzantine: ProcessSet,
    limits: FaultLimits,
}

impl<P: Process> World<P> {
    /// Creates a world in which every process has handled `Input::Start`. Every memory has the same
    /// regions.
    pub fn new(processes: Vec<P>, memories: u8, regions: &[Region], limits: FaultLimits) -> World<P> {
        World::with_regions(processes, &vec![regions.to_vec(); memories.into()], limits)
    }

    /// Creates a world of processes that have handled `Input::Start`, with the regions of each
    /// memory.
    pub fn with_regions(processes: Vec<P>, memories: &[Vec<Region>], limits: FaultLimits) -> World<P> {
        let n = processes.len();
        let mut world = World {
            processes: processes.into_iter().map(Some).collect(),
            memories: memories.iter().map(|regions| Some(Memory::new(n as u8, regions))).collect(),
            messages: Vec::new(),
            requests: vec![vec![Vec::new(); memories.len()]; n],
            asleep: vec![false; n],
            flipping_coin: vec![false; n],
            decisions: vec![None; n],
            byzantine: ProcessSet::NONE,
            limits,
        };
        (0..n as u8).for_each(|p| world.deliver(ProcessId(p), Input::Start));
        world
    }

    /// Marks processes as Byzantine. Their decisions are not recorded and not awaited.
    #[must_use]
    pub fn with_byzantine(mut self, processes: ProcessSet) -> World<P> {
        self.byzantine = processes;
        self
    }

    /// Returns all steps that are possible now, always in the same order.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let live = self.live_processes();
        if self.limits.leader_changes > 0 {
            steps.extend(live.iter().flat_map(|&p| [Step::Lead(p), Step::Follow(p)]));
        }
        let distinct =
            (0..self.messages.len()).filter(|&i| i == 0 || self.messages[i] != self.messages[i - 1]);
        steps.extend(distinct.clone().map(Step::DeliverMessage));
        if self.limits.message_losses > 0 {
            steps.extend(distinct.map(Step::DropMessage));
        }
        for (p, by_memory) in self.requests.iter().enumerate() {
            for (m, requests) in by_memory.iter().enumerate() {
                let (process, memory) = (ProcessId(p as u8), MemoryId(m as u8));
                for (nth, (_, request)) in requests.iter().enumerate() {
                    match request {
                        Request::Pending(..) if self.memories[m].is_some() => {
                            steps.push(Step::Execute(process, memory, nth));
                        }
                        Request::Executed(_) | Request::Written if self.processes[p].is_some() => {
                            steps.push(Step::Respond(process, memory, nth));
                        }
                        _ => {}
                    }
                }
            }
        }
        steps.extend(live.iter().filter(|p| self.asleep[usize::from(p.0)]).map(|&p| Step::Wake(p)));
        let flipping_coin = live.iter().filter(|p| self.flipping_coin[usize::from(p.0)]);
        steps.extend(flipping_coin.flat_map(|&p| [Step::Coin(p, false), Step::Coin(p, true)]));
        if self.limits.process_crashes > 0 {
            steps.extend(live.iter().map(|&p| Step::CrashProcess(p)));
        }
        if self.limits.memory_crashes > 0 {
            let alive = (0..self.memories.len()).filter(|&m| self.memories[m].is_some());
            steps.extend(alive.map(|m| Step::CrashMemory(MemoryId(m as u8))));
        }
        if self.limits.restarts > 0 {
            steps.extend(live.iter().map(|&p| Step::RestartProcess(p)));
        }
        if self.limits.disconnects > 0 {
            let ways = live.iter().flat_map(|&p| (0..self.memories.len()).map(move |m| (p, m)));
            let used = ways.filter(|&(p, m)| {
                self.requests[usize::from(p.0)][m]
                    .iter()
                    .any(|(_, request)| request.has_unknown_outcome_after_disconnect())
            });
            steps.extend(used.map(|(p, m)| Step::Disconnect(p, MemoryId(m as u8))));
            let alive = (0..self.memories.len()).filter(|&m| self.memories[m].is_some());
            steps.extend(alive.map(|m| Step::RestartMemory(MemoryId(m as u8))));
        }
        steps
    }

    /// Applies a step from [`World::steps`].
    ///
    /// # Panics
    /// If the step refers to a process, a memory, a message or an operation that does not exist.
    pub fn apply(&mut self, step: Step) {
        match step {
            Step::Lead(p) => {
                self.limits.leader_changes = self.limits.leader_changes.saturating_sub(1);
                self.deliver(p, Input::Leader(p));
            }
            Step::Follow(p) => {
                self.limits.leader_changes = self.limits.leader_changes.saturating_sub(1);
                self.deliver(p, Input::Leader(ProcessId((p.0 + 1) % self.processes.len() as u8)));
            }
            Step::DeliverMessage(index) => {
                let (from, to, message) = self.messages.remove(index);
                self.deliver(to, Input::Message { from, message });
            }
            Step::DropMessage(index) => {
                self.limits.message_losses = self.limits.message_losses.saturating_sub(1);
                self.messages.remove(index);
            }
            Step::Execute(p, m, index) => self.execute(p, m, index),
            Step::Respond(p, memory, nth) => {
                let requests = &mut self.requests[usize::from(p.0)][usize::from(memory.0)];
                let (id, response) = match requests.remove(nth) {
                    (id, Request::Executed(response)) => (id, response),
                    (id, Request::Written) => (id, Response::Ack),
                    (_, Request::Pending(..)) => return,
                };
                self.deliver(p, Input::Response { memory, id, response });
            }
            Step::Wake(p) => {
                self.asleep[usize::from(p.0)] = false;
                self.deliver(p, Input::Wake);
            }
            Step::Coin(p, side) => {
                self.flipping_coin[usize::from(p.0)] = false;
                self.deliver(p, Input::Coin(side));
            }
            Step::CrashProcess(p) => {
                self.limits.process_crashes = self.limits.process_crashes.saturating_sub(1);
                self.processes[usize::from(p.0)] = None;
            }
            Step::CrashMemory(m) => {
                self.limits.memory_crashes = self.limits.memory_crashes.saturating_sub(1);
                self.memories[usize::from(m.0)] = None;
            }
            Step::RestartProcess(p) => {
                self.limits.restarts = self.limits.restarts.saturating_sub(1);
                self.requests[usize::from(p.0)].iter_mut().for_each(Vec::clear);
                self.deliver(p, Input::Start);
            }
            Step::Disconnect(p, m) => {
                self.limits.disconnects = self.limits.disconnects.saturating_sub(1);
                self.disconnect(p, m);
            }
            Step::RestartMemory(m) => {
                self.limits.disconnects = self.limits.disconnects.saturating_sub(1);
                self.memories[usize::from(m.0)].iter_mut().for_each(Memory::restart);
                (0..self.processes.len() as u8).for_each(|p| self.disconnect(ProcessId(p), m));
            }
        }
    }

    /// Lets one network delay pass, as in a synchronous system: all messages and responses in
    /// transit are delivered, and all invoked operations are executed. No process wakes.
    pub fn pass_delay(&mut self) {
        let messages = core::mem::take(&mut self.messages);
        let mut responses = Vec::new();
        let memories = self.memories.len();
        for (p, m) in (0..self.requests.len()).flat_map(|p| (0..memories).map(move |m| (p, m))) {
            let (process, memory) = (ProcessId(p as u8), MemoryId(m as u8));
            for index in (0..self.requests[p][m].len()).rev() {
                if let Request::Executed(_) | Request::Written = self.requests[p][m][index].1 {
                    responses.push(Step::Respond(process, memory, index));
                }
                while self.memories[m].is_some()
                    && matches!(self.requests[p][m][index].1, Request::Pending(..))
                {
                    self.execute(process, memory, index);
                }
            }
        }
        responses.into_iter().for_each(|step| self.apply(step));
        for (from, to, message) in messages {
            self.deliver(to, Input::Message { from, message });
        }
    }

    /// Begins the stable period: no more faults occur, and Ω names `leader` to every live process.
    pub fn begin_stable_period(&mut self, leader: ProcessId) {
        self.limits = FaultLimits::default();
        for p in self.live_processes() {
            self.deliver(p, Input::Leader(leader));
        }
    }

    /// Returns the processes that have not crashed.
    pub fn live_processes(&self) -> Vec<ProcessId> {
        let alive = (0..self.processes.len()).filter(|&p| self.processes[p].is_some());
        alive.map(|p| ProcessId(p as u8)).collect()
    }

    /// Returns the Byzantine processes.
    pub fn byzantine_processes(&self) -> ProcessSet {
        self.byzantine
    }

    /// Returns the processes that have not crashed and are not Byzantine.
    pub fn correct(&self) -> Vec<ProcessId> {
        self.live_processes().into_iter().filter(|&p| !self.byzantine.contains(p)).collect()
    }

    /// Returns the state of a process, or `None` if it has crashed.
    pub fn process(&self, p: ProcessId) -> Option<&P> {
        self.processes[usize::from(p.0)].as_ref()
    }

    /// Returns the decision of each process, including processes that crashed after their decision.
    pub fn decisions(&self) -> &[Option<P::Value>] {
        &self.decisions
    }

    /// Returns whether all decisions so far are equal.
    pub fn agrees(&self) -> bool {
        let mut decided = self.decisions.iter().flatten();
        let first = decided.next();
        decided.all(|value| Some(value) == first)
    }

    /// Returns whether every correct process has decided.
    pub fn is_done(&self) -> bool {
        self.correct().iter().all(|p| self.decisions[usize::from(p.0)].is_some())
    }

    /// Returns the number of messages in transit.
    pub fn messages_in_transit(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether a process has a pending write or permission change.
    pub fn has_pending_update(&self, p: ProcessId) -> bool {
        let is_update =
            |r: &Request<P::Cell>| matches!(r, Request::Pending(op, _) if !matches!(op, Op::Read { .. }));
        self.requests[usize::from(p.0)].iter().flatten().any(|(_, request)| is_update(request))
    }

    /// Returns the largest number of attempts that a live process has begun.
    pub fn attempts(&self) -> u64 {
        self.processes.iter().flatten().map(Process::attempts).max().unwrap_or(0)
    }

    fn disconnect(&mut self, p: ProcessId, m: MemoryId) {
        let requests = &mut self.requests[usize::from(p.0)][usize::from(m.0)];
        let requests = requests.iter_mut().map(|(_, request)| request);
        for request in requests.filter(|request| request.has_unknown_outcome_after_disconnect()) {
            *request = Request::Executed(Response::Nak);
        }
    }

    fn execute(&mut self, p: ProcessId, m: MemoryId, index: usize) {
        let Some(memory) = &mut self.memories[usize::from(m.0)] else { return };
        let (_, request) = &mut self.requests[usize::from(p.0)][usize::from(m.0)][index];
        let Request::Pending(op, read) = request else { return };
        let response = match op {
            Op::Read { region, first, count } => memory.read_next(p, *region, *first..*first + *count, read),
            _ => Some(memory.execute(p, op)),
        };
        match (response, op) {
            (Some(Response::Ack), Op::Write { .. }) => *request = Request::Written,
            (Some(response), _) => *request = Request::Executed(response),
            (None, _) => {}
        }
    }

    fn deliver(&mut self, p: ProcessId, input: Input<P::Cell, P::Message>) {
        self.call(p, |process, actions| process.handle(input, actions));
    }

    /// Calls a function on a process, and carries out the actions that the process returns. Does
    /// nothing if the process has crashed.
    pub fn call(&mut self, p: ProcessId, f: impl FnOnce(&mut P, &mut Actions<P>)) {
        let Some(process) = &mut self.processes[usize::from(p.0)] else { return };
        let mut actions = Vec::new();
        f(process, &mut actions);
        if let (Some(value), decision @ None, false) =
            (process.decision(), &mut self.decisions[usize::from(p.0)], self.byzantine.contains(p))
        {
            *decision = Some(value.clone());
        }
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    let message = (p, to, message);
                    let at = self.messages.partition_point(|other| *other <= message);
                    self.messages.insert(at, message);
                }
                Action::Invoke { memory, id, op } => {
                    self.requests[usize::from(p.0)][usize::from(memory.0)]
                        .push((id, Request::Pending(op, Vec::new())));
                }
                Action::Wake => self.asleep[usize::from(p.0)] = true,
                Action::FlipCoin => self.flipping_coin[usize::from(p.0)] = true,
            }
        }
    }
}

impl<P: Process> fmt::Debug for World<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (p, process) in self.processes.iter().enumerate() {
            writeln!(f, "p{p}: {process:?}, decided {:?}", self.decisions[p])?;
        }
        for (m, memory) in self.memories.iter().enumerate() {
            writeln!(f, "m{m}: {memory:?}")?;
        }
        writeln!(f, "messages: {:?}", self.messages)?;
        write!(f, "requests: {:?}", self.requests)
    }
}
