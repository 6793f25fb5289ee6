//! A process of the replicated log. Its state machine is the list of all commands.

use mitra_consensus::log::{Cell, CommitOutcome, Committed, Config, Delivery, Log, Payload, Rules, Ticket};
use mitra_consensus::{Action, Actions, AllRules, Input, Process, ProcessId, ProcessSet};

/// A command: the id of the process that submitted it, and the number of commands that the process
/// had submitted before.
pub type Command = [u8; 2];

/// A process that submits a command at each wake-up while it leads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replica<R = AllRules> {
    me: ProcessId,
    config: Config,
    log: Log<R>,
    /// The number of this process's commands that are still to be committed.
    uncommitted: u8,
    submitted: u8,
    /// Whether some commands are followed by a new set of processes that may lead.
    changes_leaders: bool,
    in_flight: Vec<(Ticket, Command)>,
    /// The index of the last applied entry.
    index: u64,
    applied: Vec<Command>,
    /// Whether an entry was delivered out of order, an outcome was wrong, or the log refused a
    /// snapshot that it needed.
    has_violation: bool,
}

impl<R: Rules> Replica<R> {
    /// Creates a process that submits commands until `commands` of its own commands are committed.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(me: ProcessId, config: Config, commands: u8) -> Replica<R> {
        Replica {
            me,
            config,
            log: Log::new(me, config).expect("the log configuration is valid"),
            uncommitted: commands,
            submitted: 0,
            changes_leaders: false,
            in_flight: Vec::new(),
            index: 0,
            applied: Vec::new(),
            has_violation: false,
        }
    }

    /// Lets the process submit, after every third command, a new set of processes that may lead.
    /// Each set contains all processes of the log. The sets differ in a process that does not
    /// exist.
    pub fn with_leader_changes(self) -> Replica<R> {
        Replica { changes_leaders: true, ..self }
    }

    /// Lets the process submit commands until `count` more of its own commands are committed.
    pub fn add_commands(&mut self, count: u8, out: &mut Actions<Self>) {
        self.uncommitted += count;
        out.push(Action::Wake);
    }

    /// Submits a new set of processes that may lead.
    ///
    /// # Panics
    /// If the process does not lead, its queue is full, or the set has no process of the log.
    pub fn set_eligible_leaders(&mut self, leaders: ProcessSet, out: &mut Actions<Self>) {
        self.log.set_eligible_leaders(leaders, out).expect("the process leads");
    }

    /// Returns whether all commands of the process are committed.
    pub fn is_finished(&self) -> bool {
        self.uncommitted == 0
    }

    /// Returns the number of commands that the process has submitted.
    pub fn submitted(&self) -> u8 {
        self.submitted
    }

    /// Returns the index of the last applied entry, and the commands of all entries up to this
    /// index.
    pub fn applied(&self) -> (u64, &[Command]) {
        (self.index, &self.applied)
    }

    /// Returns whether the log has delivered an entry out of order, reported a wrong outcome, or
    /// refused a snapshot that it needed.
    pub fn has_violation(&self) -> bool {
        self.has_violation
    }

    /// Returns the log.
    pub fn log(&self) -> &Log<R> {
        &self.log
    }

    fn submit(&mut self, out: &mut Actions<Self>) {
        if self.in_flight.len() < self.uncommitted.into() {
            let command = [self.me.0, self.submitted];
            if let Ok(ticket) = self.log.submit(command.to_vec(), out) {
                self.submitted += 1;
                self.in_flight.push((ticket, command));
                if self.changes_leaders && self.submitted.is_multiple_of(3) {
                    let absent = ProcessId(32 + (self.submitted + self.me.0) % 32);
                    let leaders = ProcessSet::first(self.config.processes).with(absent);
                    // The queue may be full.
                    let _ = self.log.set_eligible_leaders(leaders, out);
                }
            }
        }
        if self.uncommitted > 0 {
            out.push(Action::Wake);
        }
    }

    fn apply_committed(&mut self, out: &mut Actions<Self>) {
        let mut entries = Vec::new();
        for delivery in self.log.take_committed() {
            match delivery {
                Delivery::Entry { index, payload } => {
                    self.has_violation |= index != self.index + 1;
                    self.index = index;
                    if let Payload::Commands(commands) = &payload {
                        self.applied.extend(commands.iter().filter_map(|c| Command::try_from(&c[..]).ok()));
                    }
                    entries.push((index, payload));
                }
                Delivery::Snapshot { index, bytes } => {
                    self.has_violation |= index <= self.index;
                    self.index = index;
                    self.applied = bytes.chunks(2).filter_map(|c| Command::try_from(c).ok()).collect();
                }
            }
        }
        for (ticket, outcome) in self.log.take_outcomes() {
            // The ticket of a change of the eligible leaders belongs to no command.
            let place = self.in_flight.iter().position(|(other, _)| *other == ticket);
            let Some((_, command)) = place.map(|place| self.in_flight.remove(place)) else { continue };
            if let CommitOutcome::Committed { index, position } = outcome {
                self.uncommitted -= 1;
                let entry = entries.iter().find(|(other, _)| *other == index);
                let is_in_entry = matches!(entry, Some((_, Payload::Commands(all))) if all.get(position).is_some_and(|c| c[..] == command));
                self.has_violation |= !is_in_entry;
            }
        }
        if self.log.needs_snapshot() {
            self.has_violation |= self.log.snapshot(self.applied.concat(), out).is_err();
        }
    }
}

impl<R: Rules> Process for Replica<R> {
    type Cell = Cell;
    type Message = Committed;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Committed>, out: &mut Actions<Self>) {
        match input {
            // After a restart, only the numbers of commands are kept: a command is never submitted
            // a second time under its number.
            Input::Start => {
                let &mut Replica { uncommitted, submitted, changes_leaders, .. } = self;
                let new = Replica::new(self.me, self.config, uncommitted);
                *self = Replica { submitted, changes_leaders, ..new };
                self.submit(out);
            }
            Input::Wake => self.submit(out),
            other => self.log.handle(other, out),
        }
        self.apply_committed(out);
    }

    fn decision(&self) -> Option<&u64> {
        None
    }

    fn attempts(&self) -> u64 {
        self.log.attempts()
    }
}
