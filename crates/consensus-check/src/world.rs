//! A world of processes and memories, and every step that it can take.

use core::fmt;

use mitra_consensus::{
    Action, Actions, Input, Memory, MemoryId, Op, OpId, Process, ProcessId, ProcessSet, Region, Response,
};

/// What the adversary may still do beside choosing the order of things.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FaultLimits {
    /// How often Ω may tell a process who leads.
    pub leader_changes: u8,
    /// How many processes may crash.
    pub process_crashes: u8,
    /// How many memories may crash.
    pub memory_crashes: u8,
    /// How often a process's connection to a memory may break, or all connections to one at once.
    pub disconnects: u8,
    /// How often a process may lose its state, and start again. For those that can.
    pub restarts: u8,
    /// How many messages may be lost. Only what says that it needs no reliable links lives with that.
    pub message_losses: u8,
}

/// One step. What a crashed process has sent or asked for before stays on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Ω tells a process that it leads.
    Lead(ProcessId),
    /// Ω tells a process that another leads.
    Follow(ProcessId),
    /// A message arrives: its place among those on their way, in order.
    DeliverMessage(usize),
    /// A message is lost.
    DropMessage(usize),
    /// A memory does what a process has asked it for, as the so manieth of what is outstanding there; of a read: the next register.
    Execute(ProcessId, MemoryId, usize),
    /// The answer to the so manieth of what is outstanding reaches the process.
    Respond(ProcessId, MemoryId, usize),
    /// A process's time is over.
    Wake(ProcessId),
    /// A process's coin falls.
    Coin(ProcessId, bool),
    /// A process crashes.
    CrashProcess(ProcessId),
    /// A memory crashes: it never answers again.
    CrashMemory(MemoryId),
    /// A process's connection to a memory disconnects, and is made anew: the writes that are outstanding are refused, done or not, and not done
    /// any more; whatever else is outstanding is asked again.
    Disconnect(ProcessId, MemoryId),
    /// A memory ends, and goes on with what it held: every connection to it disconnects, and rights that can be taken have to be taken anew.
    RestartMemory(MemoryId),
    /// A process starts again, and has forgotten everything. What it had asked the memories for is not done any more.
    RestartProcess(ProcessId),
}

/// What a memory was asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Request<C> {
    /// Not done yet; of a read: what was read so far.
    Asked(Op<C>, Vec<C>),
    /// Done; the answer is on its way.
    Done(Response<C>),
    /// A write is done; the acknowledgement is on its way.
    Written,
}

impl<C> Request<C> {
    /// Whether nobody knows, once the connection disconnects, if it was done.
    fn may_be_lost(&self) -> bool {
        matches!(self, Request::Written | Request::Asked(Op::Write { .. }, _))
    }
}

/// Processes, memories, and what is on its way between them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World<P: Process> {
    /// None of those that have crashed.
    processes: Vec<Option<P>>,
    memories: Vec<Option<Memory<P::Cell>>>,
    /// Sorted: two worlds with the same messages are one.
    messages: Vec<(ProcessId, ProcessId, P::Message)>,
    /// By process and memory.
    requests: Vec<Vec<Vec<(OpId, Request<P::Cell>)>>>,
    asleep: Vec<bool>,
    flipping_coin: Vec<bool>,
    decisions: Vec<Option<P::Value>>,
    /// Those of whom nothing is expected.
    byzantine: ProcessSet,
    limits: FaultLimits,
}

impl<P: Process> World<P> {
    /// A world in which every process has just begun.
    pub fn new(processes: Vec<P>, memories: u8, regions: &[Region], limits: FaultLimits) -> World<P> {
        World::with_regions(processes, &vec![regions.to_vec(); memories.into()], limits)
    }

    /// The same, each memory with regions of its own.
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
        (0..n as u8).for_each(|p| world.tell(ProcessId(p), Input::Start));
        world
    }

    /// The same world, in which some are Byzantine: what they decide does not count, nor whether they do.
    #[must_use]
    pub fn with_byzantine(mut self, who: ProcessSet) -> World<P> {
        self.byzantine = who;
        self
    }

    /// All steps that can be taken now.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let living = self.live_processes();
        if self.limits.leader_changes > 0 {
            steps.extend(living.iter().flat_map(|&p| [Step::Lead(p), Step::Follow(p)]));
        }
        let different =
            (0..self.messages.len()).filter(|&i| i == 0 || self.messages[i] != self.messages[i - 1]);
        steps.extend(different.clone().map(Step::DeliverMessage));
        if self.limits.message_losses > 0 {
            steps.extend(different.map(Step::DropMessage));
        }
        for (p, of_process) in self.requests.iter().enumerate() {
            for (m, requests) in of_process.iter().enumerate() {
                let (process, memory) = (ProcessId(p as u8), MemoryId(m as u8));
                for (nth, (_, request)) in requests.iter().enumerate() {
                    match request {
                        Request::Asked(..) if self.memories[m].is_some() => {
                            steps.push(Step::Execute(process, memory, nth));
                        }
                        Request::Done(_) | Request::Written if self.processes[p].is_some() => {
                            steps.push(Step::Respond(process, memory, nth));
                        }
                        _ => {}
                    }
                }
            }
        }
        steps.extend(living.iter().filter(|p| self.asleep[usize::from(p.0)]).map(|&p| Step::Wake(p)));
        let flipping_coin = living.iter().filter(|p| self.flipping_coin[usize::from(p.0)]);
        steps.extend(flipping_coin.flat_map(|&p| [Step::Coin(p, false), Step::Coin(p, true)]));
        if self.limits.process_crashes > 0 {
            steps.extend(living.iter().map(|&p| Step::CrashProcess(p)));
        }
        if self.limits.memory_crashes > 0 {
            let alive = (0..self.memories.len()).filter(|&m| self.memories[m].is_some());
            steps.extend(alive.map(|m| Step::CrashMemory(MemoryId(m as u8))));
        }
        if self.limits.restarts > 0 {
            steps.extend(living.iter().map(|&p| Step::RestartProcess(p)));
        }
        if self.limits.disconnects > 0 {
            let ways = living.iter().flat_map(|&p| (0..self.memories.len()).map(move |m| (p, m)));
            let used = ways.filter(|&(p, m)| {
                self.requests[usize::from(p.0)][m].iter().any(|(_, request)| request.may_be_lost())
            });
            steps.extend(used.map(|(p, m)| Step::Disconnect(p, MemoryId(m as u8))));
            let alive = (0..self.memories.len()).filter(|&m| self.memories[m].is_some());
            steps.extend(alive.map(|m| Step::RestartMemory(MemoryId(m as u8))));
        }
        steps
    }

    /// Takes a step, of those that [`World::steps`] lists.
    pub fn apply(&mut self, step: Step) {
        match step {
            Step::Lead(p) => {
                self.limits.leader_changes = self.limits.leader_changes.saturating_sub(1);
                self.tell(p, Input::Leader(p));
            }
            Step::Follow(p) => {
                self.limits.leader_changes = self.limits.leader_changes.saturating_sub(1);
                self.tell(p, Input::Leader(ProcessId((p.0 + 1) % self.processes.len() as u8)));
            }
            Step::DeliverMessage(index) => {
                let (from, to, message) = self.messages.remove(index);
                self.tell(to, Input::Message { from, message });
            }
            Step::DropMessage(index) => {
                self.limits.message_losses = self.limits.message_losses.saturating_sub(1);
                self.messages.remove(index);
            }
            Step::Execute(p, m, index) => self.execute(p, m, index),
            Step::Respond(p, memory, nth) => {
                let requests = &mut self.requests[usize::from(p.0)][usize::from(memory.0)];
                let (id, response) = match requests.remove(nth) {
                    (id, Request::Done(response)) => (id, response),
                    (id, Request::Written) => (id, Response::Ack),
                    (_, Request::Asked(..)) => return,
                };
                self.tell(p, Input::Response { memory, id, response });
            }
            Step::Wake(p) => {
                self.asleep[usize::from(p.0)] = false;
                self.tell(p, Input::Wake);
            }
            Step::Coin(p, side) => {
                self.flipping_coin[usize::from(p.0)] = false;
                self.tell(p, Input::Coin(side));
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
                self.tell(p, Input::Start);
            }
            Step::Disconnect(p, m) => {
                self.limits.disconnects = self.limits.disconnects.saturating_sub(1);
                self.break_off(p, m);
            }
            Step::RestartMemory(m) => {
                self.limits.disconnects = self.limits.disconnects.saturating_sub(1);
                self.memories[usize::from(m.0)].iter_mut().for_each(Memory::restart);
                (0..self.processes.len() as u8).for_each(|p| self.break_off(ProcessId(p), m));
            }
        }
    }

    /// One network delay of a synchronous world: what is on its way arrives, and a memory does at once what reaches it. Nobody's
    /// time is over.
    pub fn pass_delay(&mut self) {
        let messages = core::mem::take(&mut self.messages);
        let mut answers = Vec::new();
        let memories = self.memories.len();
        for (p, m) in (0..self.requests.len()).flat_map(|p| (0..memories).map(move |m| (p, m))) {
            let (process, memory) = (ProcessId(p as u8), MemoryId(m as u8));
            for index in (0..self.requests[p][m].len()).rev() {
                if let Request::Done(_) | Request::Written = self.requests[p][m][index].1 {
                    answers.push(Step::Respond(process, memory, index));
                }
                while self.memories[m].is_some() && matches!(self.requests[p][m][index].1, Request::Asked(..))
                {
                    self.execute(process, memory, index);
                }
            }
        }
        answers.into_iter().for_each(|step| self.apply(step));
        for (from, to, message) in messages {
            self.tell(to, Input::Message { from, message });
        }
    }

    /// The faults are over, and Ω names one living process to all.
    pub fn begin_stable_period(&mut self, leader: ProcessId) {
        self.limits = FaultLimits::default();
        for p in self.live_processes() {
            self.tell(p, Input::Leader(leader));
        }
    }

    /// Who has not crashed.
    pub fn live_processes(&self) -> Vec<ProcessId> {
        let alive = (0..self.processes.len()).filter(|&p| self.processes[p].is_some());
        alive.map(|p| ProcessId(p as u8)).collect()
    }

    /// Who is Byzantine.
    pub fn byzantine_processes(&self) -> ProcessSet {
        self.byzantine
    }

    /// Who has not crashed, and is not Byzantine.
    pub fn correct(&self) -> Vec<ProcessId> {
        self.live_processes().into_iter().filter(|&p| !self.byzantine.contains(p)).collect()
    }

    /// A process that has not crashed.
    pub fn process(&self, p: ProcessId) -> Option<&P> {
        self.processes[usize::from(p.0)].as_ref()
    }

    /// What each process has decided, those included that crashed afterwards.
    pub fn decisions(&self) -> &[Option<P::Value>] {
        &self.decisions
    }

    /// Whether no two processes have decided differently.
    pub fn agrees(&self) -> bool {
        let mut decided = self.decisions.iter().flatten();
        let first = decided.next();
        decided.all(|value| Some(value) == first)
    }

    /// Whether every correct process has decided.
    pub fn is_done(&self) -> bool {
        self.correct().iter().all(|p| self.decisions[usize::from(p.0)].is_some())
    }

    /// How many messages are on their way.
    pub fn messages_in_transit(&self) -> usize {
        self.messages.len()
    }

    /// Whether a process has asked for more than to read, and has not had it yet.
    pub fn has_pending_update(&self, p: ProcessId) -> bool {
        let changes =
            |r: &Request<P::Cell>| matches!(r, Request::Asked(op, _) if !matches!(op, Op::Read { .. }));
        self.requests[usize::from(p.0)].iter().flatten().any(|(_, request)| changes(request))
    }

    /// The most attempts that a process has begun.
    pub fn attempts(&self) -> u64 {
        self.processes.iter().flatten().map(Process::attempts).max().unwrap_or(0)
    }

    fn break_off(&mut self, p: ProcessId, m: MemoryId) {
        let requests = &mut self.requests[usize::from(p.0)][usize::from(m.0)];
        for lost in requests.iter_mut().map(|(_, request)| request).filter(|request| request.may_be_lost()) {
            *lost = Request::Done(Response::Nak);
        }
    }

    fn execute(&mut self, p: ProcessId, m: MemoryId, index: usize) {
        let Some(memory) = &mut self.memories[usize::from(m.0)] else { return };
        let (_, request) = &mut self.requests[usize::from(p.0)][usize::from(m.0)][index];
        let Request::Asked(op, read) = request else { return };
        let response = match op {
            Op::Read { region, first, count } => memory.read_next(p, *region, *first..*first + *count, read),
            _ => Some(memory.execute(p, op)),
        };
        match (response, op) {
            (Some(Response::Ack), Op::Write { .. }) => *request = Request::Written,
            (Some(response), _) => *request = Request::Done(response),
            (None, _) => {}
        }
    }

    fn tell(&mut self, p: ProcessId, input: Input<P::Cell, P::Message>) {
        self.call(p, |process, actions| process.handle(input, actions));
    }

    /// Does something with a process that has not crashed, and carries out what it asks for.
    pub fn call(&mut self, p: ProcessId, what: impl FnOnce(&mut P, &mut Actions<P>)) {
        let Some(process) = &mut self.processes[usize::from(p.0)] else { return };
        let mut actions = Vec::new();
        what(process, &mut actions);
        if let (Some(value), unset @ None, false) =
            (process.decision(), &mut self.decisions[usize::from(p.0)], self.byzantine.contains(p))
        {
            *unset = Some(value.clone());
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
                        .push((id, Request::Asked(op, Vec::new())));
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
