//! Coordinators of transactions (`mitra-txn`) under an adversary: attempts, memory nodes, lives of
//! coordinators that end at any moment, and the recoveries of these lives.
//!
//! The world runs the product's state machines. A node executes the requests of a coordinator in
//! their order; an access that crosses a line of the memory takes two steps. The world makes three
//! reductions, which hide no schedule:
//!
//! - A coordinator takes the outcomes of its requests at once. A later reaction is the same as a
//!   later execution of the requests that the coordinator posts next.
//! - A transaction begins when its first request is executed, and its caller is told as soon as the
//!   transaction is committed. Any other choice of these times would restrict the serial order
//!   less.
//! - An attempt that has met a lock reads the record again once the lock is free, or gives up.

use mitra_txn::{
    Attempt, Conflict, Life, Location, LockWord, Outcome, Recovery, RecoveryStep, Request, Step, Write,
    free_stale_lock,
};

use crate::transaction_nodes::{Batch, Node, Queue, reads};
use crate::transaction_order::{self, Told, Transaction};
use crate::transaction_step::{
    COPIES, HEADER_BYTES, LostAnswers, RECORD_BYTES, RecordUse, SLOT_BYTES, TransactionConfig,
    TransactionProgram, TransactionStep,
};

/// The length of a value, in bytes. The end of a value is in the second line of the record. All
/// words of a value are equal, so that a torn value shows.
const VALUE_BYTES: usize = 32;
/// Every attempt gives up before it has read a record again this many times.
const MAX_REREADS: u32 = 20;

/// A serial order explains the values that transactions read and the values that remain, and
/// respects real time. The order contains the transactions whose callers were told that they are
/// committed, and no transaction whose caller was told that it is aborted. The order may contain
/// transactions whose callers were told nothing.
pub(crate) const SERIALIZABLE: &str = "strict serializability";
/// Holds at rest, that is, while no agent has requests under way.
pub(crate) const CLEAN: &str = "no lock is left and backups equal primaries";
/// A slot of the log is used again only after its last entry was applied.
pub(crate) const APPLIED: &str = "no slot is used early";
/// No agent waits forever.
pub(crate) const ENDS: &str = "every transaction ends";

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Work {
    Idle,
    Attempt(Attempt),
    Freeing,
    Recovering(Recovery, Life),
}

/// A coordinator, or the recoverer, which recovers all lives that have ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Agent {
    work: Work,
    batch: Option<Batch>,
    /// Whether the attempt has met a lock, and reads again.
    rereads: bool,
    incarnation: u16,
    /// The number of attempts of this life.
    attempts: u32,
    /// Whether the life has ended and the next life has not begun.
    has_ended: bool,
    /// The number of transactions that have ended.
    done: u8,
}

/// The state of nodes and agents.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TransactionWorld {
    pub(crate) config: TransactionConfig,
    nodes: Vec<Node>,
    agents: Vec<Agent>,
    transactions: Vec<Transaction>,
    /// Lives that are to be recovered.
    ended: Vec<Life>,
    /// By coordinator: the highest incarnation that is recovered.
    recovered: Vec<u16>,
    /// The requests of lives that were not fenced, by node.
    late: Vec<Queue>,
    violation: Option<&'static str>,
}

impl TransactionWorld {
    /// Creates a world in which no transaction has begun.
    pub fn new(config: TransactionConfig) -> TransactionWorld {
        let coordinators = config.programs.len();
        let bytes = usize::from(config.records) * RECORD_BYTES as usize + coordinators * SLOT_BYTES as usize;
        let agent = Agent {
            work: Work::Idle,
            batch: None,
            rereads: false,
            incarnation: 1,
            attempts: 0,
            has_ended: false,
            done: 0,
        };
        let transaction =
            |program: &TransactionProgram| Transaction::new(program, usize::from(config.records));
        let mut world = TransactionWorld {
            nodes: vec![Node::new(bytes); config.nodes.into()],
            agents: vec![agent; coordinators + 1],
            transactions: config.programs.iter().copied().flatten().map(transaction).collect(),
            ended: Vec::new(),
            recovered: vec![0; coordinators],
            late: vec![Queue::new(); config.nodes.into()],
            violation: None,
            config,
        };
        (0..config.records).for_each(|record| world.load(record));
        (0..coordinators).for_each(|agent| world.begin(agent));
        world
    }

    /// Writes the initial value 0 to a record, without an entry in any log.
    fn load(&mut self, record: u8) {
        let loader = Life { coordinator: u16::MAX, incarnation: 1 };
        let mut attempt = Attempt::new(LockWord::new(loader, record.into()), Vec::new(), 0);
        let value = Some(vec![0; VALUE_BYTES]);
        attempt.write(&self.config.copies(record), Write { key: record.into(), value });
        let mut step = attempt.commit();
        while let Step::Post(requests) = step {
            let execute = |request: Request| self.nodes[usize::from(request.node.0)].execute_all(request);
            let outcomes: Vec<Outcome> = requests.into_iter().map(execute).collect();
            step = attempt.on_outcomes(&outcomes);
        }
    }

    fn life(&self, agent: usize) -> Life {
        Life { coordinator: agent as u16 + 1, incarnation: self.agents[agent].incarnation }
    }

    /// Returns the number of the transaction that a coordinator runs next.
    fn current(&self, agent: usize) -> Option<usize> {
        let done = usize::from(self.agents[agent].done);
        (done < self.config.programs.get(agent)?.len()).then(|| self.config.first(agent) + done)
    }

    /// Returns whether a coordinator has begun a transaction in one of its lives.
    fn has_begun(&self, agent: usize) -> bool {
        let is_running = |number: usize| self.transactions[number].begun_after.is_some();
        self.agents[agent].done > 0 || self.current(agent).is_some_and(is_running)
    }

    /// Creates the attempt of a coordinator's next transaction. The transaction begins when the
    /// first request of the attempt is executed.
    fn begin(&mut self, agent: usize) {
        let Some(number) = self.current(agent) else { return };
        self.agents[agent].attempts += 1;
        self.transactions[number].is_committing = false;
        let lock = LockWord::new(self.life(agent), self.agents[agent].attempts);
        let mut attempt = Attempt::new(lock, self.config.slot(agent), COPIES);
        let reads = self.transactions[number].program.iter().filter(|(_, how)| *how != RecordUse::Overwrite);
        let wanted: Vec<_> = reads
            .map(|(record, how)| (self.config.copies(*record), *how == RecordUse::LockThenAppend))
            .collect();
        let step = attempt.fetch(&wanted);
        self.go_on(agent, attempt, step);
    }

    fn go_on(&mut self, agent: usize, mut attempt: Attempt, mut step: Step) {
        let Some(number) = self.current(agent) else { return };
        if step == Step::Fetched {
            let transaction = &mut self.transactions[number];
            transaction.is_committing = true;
            for &(record, how) in transaction.program {
                let copies = self.config.copies(record);
                let found = attempt.record(copies.place).map(|record| word_of(&record.value));
                let own = number as u64 + 1;
                if how != RecordUse::Overwrite {
                    transaction.reads[usize::from(record)] = found;
                }
                if let Some(word) = transaction_order::written(how, found.unwrap_or(0), own) {
                    let value = Some(word.to_le_bytes().repeat(VALUE_BYTES / 8));
                    attempt.write(&copies, Write { key: record.into(), value });
                }
            }
            step = attempt.commit();
        }
        if attempt.is_committed() && self.transactions[number].told == Told::Nothing {
            self.transactions[number].told = Told::Committed;
        }
        match step {
            Step::Post(requests) => {
                self.post(agent, requests);
                self.agents[agent].work = Work::Attempt(attempt);
            }
            Step::Applied => self.end_transaction(agent),
            Step::Aborted(why) => {
                if self.transactions[number].told == Told::Committed {
                    self.violation = Some(SERIALIZABLE);
                }
                if let Conflict::Locked(place, lock) = why
                    && self.is_stale(lock)
                {
                    let place = self.config.copies(place.index as u8).primary;
                    self.post(agent, vec![free_stale_lock(place, lock)]);
                    self.agents[agent].work = Work::Freeing;
                    return;
                }
                self.transactions[number].told = Told::Aborted;
                self.end_transaction(agent);
            }
            Step::Fetched | Step::Undecided => self.violation = Some(ENDS),
        }
    }

    fn end_transaction(&mut self, agent: usize) {
        self.agents[agent].work = Work::Idle;
        self.agents[agent].done += 1;
        self.begin(agent);
    }

    /// Returns whether the lock belongs to a life that is recovered.
    fn is_stale(&self, lock: LockWord) -> bool {
        let of = |life: Life| self.recovered[usize::from(life.coordinator) - 1] >= life.incarnation;
        lock.life().is_some_and(of)
    }

    fn post(&mut self, agent: usize, requests: Vec<Request>) {
        self.agents[agent].batch = Some(Batch::new(requests, self.nodes.len()));
    }

    /// Begins the recovery of the next life that has ended.
    fn recover(&mut self) {
        let recoverer = self.agents.len() - 1;
        let Some(&life) = self.ended.first() else { return };
        let slot = self.config.slot(usize::from(life.coordinator) - 1);
        let mut recovery = Recovery::new(life, vec![slot], SLOT_BYTES, COPIES);
        let step = recovery.start(|place| self.config.resolve(place));
        self.go_on_recovering(recoverer, recovery, life, step);
    }

    fn go_on_recovering(&mut self, agent: usize, recovery: Recovery, life: Life, step: RecoveryStep) {
        match step {
            RecoveryStep::Post(requests) => {
                self.post(agent, requests);
                self.agents[agent].work = Work::Recovering(recovery, life);
            }
            RecoveryStep::Recovered => {
                let coordinator = usize::from(life.coordinator) - 1;
                self.recovered[coordinator] = self.recovered[coordinator].max(life.incarnation);
                self.ended.remove(0);
                self.agents[agent].work = Work::Idle;
                if self.config.recovers_first {
                    self.restart(coordinator);
                }
                self.recover();
            }
            RecoveryStep::TooFewNodes | RecoveryStep::UnknownPlace(_) => {
                self.violation = Some(ENDS);
            }
        }
    }

    fn restart(&mut self, agent: usize) {
        let coordinator = &mut self.agents[agent];
        coordinator.incarnation += 1;
        coordinator.attempts = 0;
        coordinator.has_ended = false;
        self.begin(agent);
    }

    /// Returns whether an agent's next request to a node reads a record again although the record's
    /// lock has not changed.
    fn waits(&self, agent: &Agent, queue: &Queue) -> bool {
        let is_locked = |request: &Request| {
            let node = &self.nodes[usize::from(request.node.0)];
            !node.is_dead && reads(request, RECORD_BYTES) && node.lock(request.at) != LockWord::FREE
        };
        agent.rereads && queue.front().is_some_and(|posted| is_locked(&posted.request))
    }

    /// Returns all steps that are possible now.
    pub fn steps(&self) -> Vec<TransactionStep> {
        let mut steps = Vec::new();
        if self.violation.is_some() {
            return steps;
        }
        let recoverer = self.agents.len() - 1;
        for (number, agent) in self.agents.iter().enumerate() {
            let id = number as u8;
            let may_end = match number == recoverer {
                true => self.config.recoverer_ends > 0 && agent.batch.is_some(),
                false => self.config.ends > 0 && !agent.has_ended && self.has_begun(number),
            };
            if may_end {
                steps.push(TransactionStep::End { agent: id });
            }
            let Some(batch) = &agent.batch else { continue };
            let mut waits = false;
            for (node, queue) in (0..).zip(&batch.queues) {
                if queue.is_empty() {
                    continue;
                }
                if self.waits(agent, queue) {
                    waits = true;
                } else {
                    steps.push(TransactionStep::Execute { agent: id, node });
                }
                if self.config.doubts > 0 && !self.nodes[usize::from(node)].is_dead {
                    let len = queue.len() as u8;
                    let doubts = (0..=len).map(|executed| (executed, LostAnswers::Unknown));
                    let others = (0..=1).map(|executed| (executed, LostAnswers::Known));
                    let first = (0..=1).map(|executed| (executed, LostAnswers::FirstUnknown));
                    let first = first.filter(|_| len > 1);
                    steps.extend(
                        doubts.chain(others).chain(first).map(|(executed, lost)| TransactionStep::Doubt {
                            agent: id,
                            node,
                            executed,
                            lost,
                        }),
                    );
                }
            }
            if waits {
                steps.push(TransactionStep::GiveUp { agent: id });
            }
        }
        for node in 0..self.config.nodes {
            if self.config.deaths > 0 && !self.nodes[usize::from(node)].is_dead {
                steps.push(TransactionStep::Die { node });
            }
            if !self.late[usize::from(node)].is_empty() {
                steps.push(TransactionStep::ExecuteLate { node });
            }
        }
        steps
    }

    /// Takes a step.
    pub fn apply(&mut self, step: TransactionStep) {
        match step {
            TransactionStep::Execute { agent, node } => {
                self.note_begin(agent.into());
                self.execute(agent.into(), node.into());
                self.deliver(agent.into());
            }
            TransactionStep::GiveUp { agent } => self.give_up(agent.into()),
            TransactionStep::Doubt { agent, node, executed, lost } => {
                self.config.doubts -= 1;
                self.note_begin(agent.into());
                self.doubt(agent.into(), node.into(), executed.into(), lost);
                self.deliver(agent.into());
            }
            TransactionStep::End { agent } => self.end_life(agent.into()),
            TransactionStep::Die { node } => {
                self.config.deaths -= 1;
                let node = &mut self.nodes[usize::from(node)];
                node.is_dead = true;
                node.memory.fill(0);
            }
            TransactionStep::ExecuteLate { node } => {
                let node = usize::from(node);
                let Some(posted) = self.late[node].front_mut() else { return };
                if self.nodes[node].execute(posted, self.config.tears_headers).is_some() {
                    self.late[node].pop_front();
                }
            }
        }
    }

    /// A transaction begins when its first request is executed. The transaction comes after all
    /// transactions whose callers were told the outcome.
    fn note_begin(&mut self, agent: usize) {
        let Some(number) = self.current(agent) else { return };
        if self.transactions[number].begun_after.is_none() {
            let told = |(index, other): (usize, &Transaction)| {
                if other.told == Told::Committed { 1 << index } else { 0 }
            };
            let told = self.transactions.iter().enumerate().map(told).sum();
            self.transactions[number].begun_after = Some(told);
        }
    }

    /// Executes the next part of an agent's first request to a node.
    fn execute(&mut self, agent: usize, node: usize) {
        if self.reuses_slot(agent, node) {
            self.violation = Some(APPLIED);
        }
        let Some(batch) = &mut self.agents[agent].batch else { return };
        let Some(posted) = batch.queues[node].front_mut() else { return };
        if let Some(outcome) = self.nodes[node].execute(posted, self.config.tears_headers) {
            batch.outcomes[posted.index] = Some(outcome);
            batch.queues[node].pop_front();
        }
    }

    /// Returns whether a coordinator's next request to a node overwrites the entry of an earlier
    /// attempt that still holds a lock.
    fn reuses_slot(&self, agent: usize, node: usize) -> bool {
        let Agent { batch: Some(batch), attempts, .. } = &self.agents[agent] else { return false };
        let Some(posted) = batch.queues[node].front() else { return false };
        let slots = u64::from(u32::from(self.config.records) * RECORD_BYTES);
        if agent + 1 == self.agents.len() || posted.request.at < slots {
            return false;
        }
        let before = self.nodes[node].lock(posted.request.at + 8);
        before != LockWord::new(self.life(agent), *attempts) && !self.is_stale(before) && self.is_held(before)
    }

    fn is_held(&self, attempt: LockWord) -> bool {
        attempt != LockWord::FREE
            && (0..self.config.records).any(|record| {
                let primary = self.config.copies(record).primary;
                let node = &self.nodes[usize::from(primary.node.0)];
                !node.is_dead && node.lock(primary.at) == attempt
            })
    }

    fn doubt(&mut self, agent: usize, node: usize, executed: usize, lost: LostAnswers) {
        let Some(batch) = &self.agents[agent].batch else { return };
        let waiting: Vec<usize> = batch.queues[node].iter().map(|posted| posted.index).collect();
        let rest = waiting.len() - executed;
        while let Some(batch) = &self.agents[agent].batch
            && batch.queues[node].len() > rest
        {
            self.execute(agent, node);
        }
        let Some(batch) = &mut self.agents[agent].batch else { return };
        batch.queues[node].clear();
        for (position, index) in waiting.into_iter().enumerate() {
            batch.outcomes[index] = Some(match (lost, position) {
                (LostAnswers::Unknown, _) | (LostAnswers::FirstUnknown, 0) => Outcome::Unknown,
                (LostAnswers::Known, 0) if executed == 1 => Outcome::ValueLost,
                _ => Outcome::NotExecuted,
            });
        }
    }

    /// Passes the outcomes of an agent's requests to its work when all are known.
    fn deliver(&mut self, agent: usize) {
        let Some(batch) =
            self.agents[agent].batch.take_if(|batch| batch.outcomes.iter().all(Option::is_some))
        else {
            return;
        };
        let outcomes: Vec<Outcome> = batch.outcomes.into_iter().flatten().collect();
        self.agents[agent].rereads = false;
        match std::mem::replace(&mut self.agents[agent].work, Work::Idle) {
            Work::Idle => {}
            Work::Freeing => self.begin(agent),
            Work::Attempt(mut attempt) => {
                let step = attempt.on_outcomes(&outcomes);
                self.go_on(agent, attempt, step);
                let agent = &mut self.agents[agent];
                agent.rereads = agent.batch.as_ref().is_some_and(|next| {
                    let is_again =
                        |request: &Request| reads(request, RECORD_BYTES) && batch.requests.contains(request);
                    next.requests.iter().all(is_again)
                });
            }
            Work::Recovering(mut recovery, life) => {
                let step = recovery.on_outcomes(&outcomes, |place| self.config.resolve(place));
                self.go_on_recovering(agent, recovery, life, step);
            }
        }
    }

    fn give_up(&mut self, agent: usize) {
        for _ in 0..MAX_REREADS {
            let Some(batch) = self.agents[agent].batch.as_ref().filter(|_| self.agents[agent].rereads) else {
                return;
            };
            let nodes: Vec<usize> =
                (0..batch.queues.len()).filter(|&node| !batch.queues[node].is_empty()).collect();
            let attempts = self.agents[agent].attempts;
            for node in nodes {
                while self.agents[agent].attempts == attempts
                    && self.agents[agent].batch.as_ref().is_some_and(|batch| !batch.queues[node].is_empty())
                {
                    self.execute(agent, node);
                }
            }
            self.deliver(agent);
        }
        self.violation = Some(ENDS);
    }

    /// Ends a life. Without a fence, the requests that the life has posted may be executed later.
    fn end_life(&mut self, agent: usize) {
        let is_running =
            self.current(agent).is_none_or(|number| self.transactions[number].begun_after.is_some());
        let batch = self.agents[agent].batch.take();
        if let Some(batch) = batch.filter(|_| !self.config.fences && is_running) {
            for (late, queue) in self.late.iter_mut().zip(batch.queues) {
                late.extend(queue);
            }
        }
        self.agents[agent].work = Work::Idle;
        self.agents[agent].rereads = false;
        if agent + 1 == self.agents.len() {
            self.config.recoverer_ends -= 1;
            return self.recover();
        }
        self.config.ends -= 1;
        if let Some(number) = self.current(agent)
            && self.transactions[number].begun_after.is_some()
        {
            self.agents[agent].done += 1;
        }
        self.agents[agent].has_ended = true;
        self.ended.push(self.life(agent));
        if matches!(self.agents[self.agents.len() - 1].work, Work::Idle) {
            self.recover();
        }
        if !self.config.recovers_first {
            self.restart(agent);
        }
    }

    /// Returns whether no step is possible although something is left to do.
    pub(crate) fn is_stuck(&self) -> bool {
        self.violation.is_none() && !self.has_ended() && self.steps().is_empty()
    }

    /// Returns the property that does not hold, except [`ENDS`], which
    /// [`TransactionWorld::is_stuck`] checks.
    pub(crate) fn violation(&self) -> Option<&'static str> {
        self.violation.or_else(|| self.is_at_rest().then(|| self.violation_at_rest()).flatten())
    }

    /// Returns whether every agent has ended its work.
    pub(crate) fn is_at_rest(&self) -> bool {
        let rests = |agent: &Agent| agent.batch.as_ref().is_none_or(Batch::is_untouched);
        let (recoverer, coordinators) = self.agents.split_last().expect("there is a recoverer");
        let is_running = |number: usize| self.transactions[number].begun_after.is_some();
        recoverer.batch.is_none()
            && coordinators.iter().all(rests)
            && (0..coordinators.len()).all(|agent| !self.current(agent).is_some_and(is_running))
            && self.ended.is_empty()
            && self.late.iter().all(Queue::is_empty)
    }

    /// Returns whether nothing is left to do.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_at_rest() && (0..self.recovered.len()).all(|agent| self.current(agent).is_none())
    }

    fn violation_at_rest(&self) -> Option<&'static str> {
        let mut values = Vec::new();
        for record in 0..self.config.records {
            let copies = self.config.copies(record);
            let all = [copies.primary].into_iter().chain(copies.backups);
            let live: Vec<Location> = all.filter(|at| !self.nodes[usize::from(at.node.0)].is_dead).collect();
            let bytes = |at: &Location| {
                &self.nodes[usize::from(at.node.0)].memory[at.at as usize..][..RECORD_BYTES as usize]
            };
            let Some(first) = live.first() else { continue };
            if live.iter().any(|at| bytes(at)[8..] != bytes(first)[8..]) {
                return Some(CLEAN);
            }
            let lock = self.nodes[usize::from(first.node.0)].lock(first.at);
            if lock != LockWord::FREE && !self.is_stale(lock) {
                return Some(CLEAN);
            }
            values.push(word_of(&bytes(first)[HEADER_BYTES..][..VALUE_BYTES]));
        }
        (!transaction_order::explains(&self.transactions, &values)).then_some(SERIALIZABLE)
    }
}

/// Returns the word that a value repeats. If its words differ, returns a number that no transaction
/// writes.
fn word_of(value: &[u8]) -> u64 {
    let words =
        value.chunks_exact(8).map(|word| word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
    let mut words = words.collect::<Vec<_>>();
    words.dedup();
    match words[..] {
        [word] => word,
        _ => u64::MAX,
    }
}
