//! A process of the replicated log with the simplest state machine above it: the list of all commands.

use mitra_consensus::log::{Cell, CommitOutcome, Committed, Config, Delivery, Log, Payload, Rules, Ticket};
use mitra_consensus::{Action, Actions, AllRules, Input, Process, ProcessId, ProcessSet};

/// Who submitted it, and as the so manieth.
pub type Command = [u8; 2];

/// A process that submits commands while it leads: one whenever it wakes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Replica<R = AllRules> {
    me: ProcessId,
    config: Config,
    log: Log<R>,
    /// How many of its own commands it wants to see committed yet.
    left: u8,
    submitted: u8,
    in_flight: Vec<(Ticket, Command)>,
    index: u64,
    applied: Vec<Command>,
    /// Something was delivered out of order, or a fate was a lie.
    wrong: bool,
}

impl<R: Rules> Replica<R> {
    /// A process that wants so many commands committed.
    ///
    /// # Panics
    /// The config's numbers do not fit.
    pub fn new(me: ProcessId, config: Config, commands: u8) -> Replica<R> {
        Replica {
            me,
            config,
            log: Log::new(me, config).expect("numbers that fit"),
            left: commands,
            submitted: 0,
            in_flight: Vec::new(),
            index: 0,
            applied: Vec::new(),
            wrong: false,
        }
    }

    /// It wants so many more.
    pub fn add_commands(&mut self, more: u8, out: &mut Actions<Self>) {
        self.left += more;
        out.push(Action::Wake);
    }

    /// It submits who may lead from then on.
    ///
    /// # Panics
    /// It does not lead.
    pub fn set_eligible_leaders(&mut self, leaders: ProcessSet, out: &mut Actions<Self>) {
        self.log.set_eligible_leaders(leaders, out).expect("a leader");
    }

    /// Whether all that it wanted is committed.
    pub fn is_finished(&self) -> bool {
        self.left == 0
    }

    /// How many commands it has submitted.
    pub fn submitted(&self) -> u8 {
        self.submitted
    }

    /// The last entry it has applied, and all commands up to there.
    pub fn applied(&self) -> (u64, &[Command]) {
        (self.index, &self.applied)
    }

    /// Whether what it was told contradicts itself.
    pub fn has_violation(&self) -> bool {
        self.wrong
    }

    /// The log itself.
    pub fn log(&self) -> &Log<R> {
        &self.log
    }

    fn submit(&mut self, out: &mut Actions<Self>) {
        if self.in_flight.len() < self.left.into() {
            let command = [self.me.0, self.submitted];
            if let Ok(ticket) = self.log.submit(command.to_vec(), out) {
                self.submitted += 1;
                self.in_flight.push((ticket, command));
            }
        }
        if self.left > 0 {
            out.push(Action::Wake);
        }
    }

    fn take(&mut self, out: &mut Actions<Self>) {
        let mut entries = Vec::new();
        for delivery in self.log.take_committed() {
            match delivery {
                Delivery::Entry { index, payload } => {
                    self.wrong |= index != self.index + 1;
                    self.index = index;
                    if let Payload::Commands(commands) = &payload {
                        self.applied.extend(commands.iter().filter_map(|c| Command::try_from(&c[..]).ok()));
                    }
                    entries.push((index, payload));
                }
                Delivery::Snapshot { index, bytes } => {
                    self.wrong |= index <= self.index;
                    self.index = index;
                    self.applied = bytes.chunks(2).filter_map(|c| Command::try_from(c).ok()).collect();
                }
            }
        }
        for (ticket, fate) in self.log.take_outcomes() {
            // Who may lead is none of the commands.
            let at = self.in_flight.iter().position(|(other, _)| *other == ticket);
            let Some((_, command)) = at.map(|at| self.in_flight.remove(at)) else { continue };
            if let CommitOutcome::Committed { index, position } = fate {
                self.left -= 1;
                let entry = entries.iter().find(|(other, _)| *other == index);
                let there = matches!(entry, Some((_, Payload::Commands(all))) if all.get(position).is_some_and(|c| c[..] == command));
                self.wrong |= !there;
            }
        }
        if self.log.needs_snapshot() {
            self.wrong |= self.log.snapshot(self.applied.concat(), out).is_err();
        }
    }
}

impl<R: Rules> Process for Replica<R> {
    type Cell = Cell;
    type Message = Committed;
    type Value = u64;

    fn handle(&mut self, input: Input<Cell, Committed>, out: &mut Actions<Self>) {
        match input {
            // It may have been here before, and forgotten all but what it has submitted.
            Input::Start => {
                let (left, submitted) = (self.left, self.submitted);
                *self = Replica { submitted, ..Replica::new(self.me, self.config, left) };
                self.submit(out);
            }
            Input::Wake => self.submit(out),
            other => self.log.handle(other, out),
        }
        self.take(out);
    }

    fn decision(&self) -> Option<&u64> {
        None
    }

    fn attempts(&self) -> u64 {
        self.log.attempts()
    }
}
