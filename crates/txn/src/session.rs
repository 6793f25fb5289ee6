//! A coordinator's process in one of its lives, without I/O. A session begins the life, runs
//! transactions and writes heartbeats. It also takes over ended lives of other coordinators.
//!
//! The driver executes each [`Command`] of [`Session::poll`], and passes the results to
//! [`Session::on_outcomes`] and [`Session::on_fenced`]. The driver calls [`Session::end`] when it
//! has lost the connection to a node that is not declared dead, or when a node refuses a fence. The
//! process then begins its next life with a new session.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::coordinator::{Coordinator, Ticket};
use crate::detector::Detector;
use crate::layout::Layout;
use crate::life_word::LifeWord;
use crate::lock_word::Life;
use crate::place::{Location, Place};
use crate::request::{NodeId, Outcome, Request};
use crate::store_number::{self, StoreError};
use crate::takeover::{Log, Takeover, TakeoverStep};

/// The ticket of the heartbeat. The takeover of coordinator n has the ticket `BEAT` + n. The
/// coordinator's own tickets are below [`STORE`].
const BEAT: u64 = 1 << 63;
/// The ticket of the READs of the store's number, with which a life begins.
const STORE: u64 = BEAT - 1;

/// A command of a session to its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Execute these requests, and answer with [`Session::on_outcomes`].
    Post(Ticket, Vec<Request>),
    /// Fence a life and all earlier lives of its coordinator on all nodes that are not declared
    /// dead, and answer with [`Session::on_fenced`].
    Fence(Life),
}

/// The times of the failure detector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// The time between two heartbeats.
    pub interval: Duration,
    /// A life without a heartbeat for this time is taken over. This time should be longer than the
    /// failover of a rail.
    pub timeout: Duration,
}

/// Why a session has ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ending {
    /// The driver has lost a node.
    #[error("the connection to a memory node that is not declared dead is lost")]
    Disconnected,
    /// Another coordinator takes the life over, or another process has the coordinator's number.
    #[error("another process has taken the life over, or runs as the same coordinator")]
    TakenOver,
    /// Too few nodes live to decide anything.
    #[error("fewer memory nodes live than must have a log entry")]
    TooFewNodes,
    /// A log entry of the coordinator's earlier life names a place that is not in the layout.
    #[error(
        "a log entry names {0:?}, which does not exist: the layouts of the processes differ, or the memory is damaged"
    )]
    UnknownPlace(Place),
    /// The memory nodes do not have one store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A node refuses to fence a life that is to be recovered.
    #[error("memory node {} refuses to fence incarnation {} of coordinator {}: {reason}", node.0, life.incarnation, life.coordinator)]
    FenceRefused {
        /// The node.
        node: NodeId,
        /// The life.
        life: Life,
        /// The node's reason.
        reason: String,
    },
    /// The life has used all its numbers of attempts.
    #[error("the life has had all its 4294967295 attempts; the process goes on as its next life")]
    NoAttempts,
    /// It is unknown whether a transaction takes effect, so a recovery must decide.
    #[error("too few memory nodes are left for a log entry")]
    Undecided,
}

/// A takeover, and the event that it waits for.
#[derive(Debug)]
struct Running {
    takeover: Takeover,
    waits: Waits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Outcomes,
    Fence(Life),
    /// The takeover waits for this recoverer, which may itself have ended.
    Recoverer(Life),
}

/// A coordinator's process in one of its lives.
#[derive(Debug)]
pub struct Session {
    layout: Rc<Layout>,
    life: Life,
    /// The only life word that the start may take over, if the driver has named one.
    over: Option<LifeWord>,
    coordinator: Coordinator,
    detector: Detector,
    timing: Timing,
    /// The takeovers, by the number of the coordinator whose life is taken over. The entry of this
    /// session's own coordinator is the start of this session's life.
    takeovers: BTreeMap<u16, Running>,
    commands: Vec<Command>,
    /// The time of the next heartbeat; `None` while a heartbeat is in flight.
    next_beat: Option<Duration>,
    now: Duration,
    is_live: bool,
    ending: Option<Ending>,
    recovered: Vec<Life>,
    unrecoverable: BTreeMap<Life, Place>,
}

impl Session {
    /// Begins a life. `life` comes from [`Life::next`]. Its process is connected to all nodes
    /// except the `dead` nodes.
    pub fn new(layout: Rc<Layout>, life: Life, timing: Timing, dead: &[NodeId]) -> Session {
        let lines = layout.nodes().map(|node| Location { node, at: layout.life_line(1) }).collect();
        let coordinators = layout.schema().coordinators;
        let mut coordinator = Coordinator::new(Rc::clone(&layout), life);
        dead.iter().for_each(|&node| coordinator.set_dead(node));
        let mut session = Session {
            detector: Detector::new(life, lines, coordinators, timing.timeout),
            coordinator,
            layout,
            life,
            over: None,
            timing,
            takeovers: BTreeMap::new(),
            commands: Vec::new(),
            next_beat: None,
            now: Duration::ZERO,
            is_live: false,
            ending: None,
            recovered: Vec::new(),
            unrecoverable: BTreeMap::new(),
        };
        session.read_store();
        session
    }

    /// Restricts the start to the life word that a [`Watch`](crate::Watch) has found silent
    /// ([`Takeover::over`]). The driver calls it before the first poll.
    pub fn start_over(&mut self, word: LifeWord) {
        self.over = Some(word);
    }

    /// Returns the coordinator, to add tasks. They run when the session is live.
    pub fn coordinator(&mut self) -> &mut Coordinator {
        &mut self.coordinator
    }

    /// Returns whether the life has begun and not ended.
    pub fn is_live(&self) -> bool {
        self.is_live && self.ending.is_none()
    }

    /// Returns why the session has ended, if it has.
    pub fn ending(&self) -> Option<Ending> {
        self.ending.clone()
    }

    /// Takes the lives that this session has recovered since the last call, including the earlier
    /// life of its own coordinator.
    pub fn take_recovered(&mut self) -> Vec<Life> {
        core::mem::take(&mut self.recovered)
    }

    /// Returns the lives of other coordinators that this session has fenced but cannot recover. For
    /// each life, the map has a place that the life's log names and that is not in the layout. The
    /// memory is damaged, or the layouts of the processes differ. The locks of these lives stay.
    pub fn unrecoverable(&self) -> &BTreeMap<Life, Place> {
        &self.unrecoverable
    }

    /// Continues, and returns the commands to the driver. `now` is the time since a fixed moment.
    pub fn poll(&mut self, now: Duration) -> Vec<Command> {
        self.now = now;
        if self.ending.is_some() {
            // The tasks see the end of the life.
            self.coordinator.poll(now);
            return Vec::new();
        }
        if self.next_beat.is_some_and(|at| at <= now) {
            self.beat();
        }
        if self.is_live {
            self.coordinator.poll(now);
            if self.coordinator.is_ended() {
                self.end(Ending::NoAttempts);
            }
            let requests = self.coordinator.take_requests();
            self.commands
                .extend(requests.into_iter().map(|(ticket, requests)| Command::Post(ticket, requests)));
        }
        core::mem::take(&mut self.commands)
    }

    /// The time at which [`Session::poll`] is due even if no result arrives.
    pub fn next_timer(&self) -> Option<Duration> {
        [self.next_beat, self.coordinator.next_timer()].into_iter().flatten().min()
    }

    /// Takes the outcomes of a [`Command::Post`], in the order of its requests.
    pub fn on_outcomes(&mut self, ticket: Ticket, outcomes: &[Outcome]) {
        if self.ending.is_some() {
            return;
        }
        match ticket.0.checked_sub(BEAT) {
            None if ticket.0 == STORE => self.on_store(outcomes),
            None => {
                self.coordinator.on_outcomes(ticket, outcomes);
                if self.coordinator.is_ended() {
                    self.end(Ending::Undecided);
                }
            }
            Some(0) => self.on_beat(outcomes),
            Some(coordinator) => {
                self.go_on(coordinator as u16, |takeover, layout| {
                    takeover.on_outcomes(outcomes, |place| layout.copies_of(place))
                });
            }
        }
    }

    /// Takes the confirmation of a [`Command::Fence`].
    pub fn on_fenced(&mut self, life: Life) {
        let waiting = self.takeovers.iter().filter(|(_, running)| running.waits == Waits::Fence(life));
        for coordinator in waiting.map(|(coordinator, _)| *coordinator).collect::<Vec<_>>() {
            self.go_on(coordinator, |takeover, layout| takeover.on_fenced(|place| layout.copies_of(place)));
        }
    }

    /// Ends the session, unless it has ended. The driver ends it when the connection to a node that
    /// is not declared dead is lost ([`Ending::Disconnected`]), or when a node refuses a fence
    /// ([`Ending::FenceRefused`]).
    pub fn end(&mut self, why: Ending) {
        self.ending.get_or_insert(why);
        self.coordinator.end_life();
        self.takeovers.clear();
        self.commands.clear();
        self.next_beat = None;
    }

    fn line_and_log(&self, coordinator: u16) -> (Vec<Location>, Log) {
        let at = self.layout.life_line(coordinator);
        let line = self.layout.nodes().map(|node| Location { node, at }).collect();
        let slots = self.layout.log_slots(coordinator);
        (line, Log { slots, slot_bytes: self.layout.slot_bytes(), copies: self.layout.log_copies() })
    }

    fn read_store(&mut self) {
        self.commands.push(Command::Post(Ticket(STORE), store_number::reads(&self.layout)));
    }

    /// Begins to take the life if all nodes have the same store.
    fn on_store(&mut self, outcomes: &[Outcome]) {
        match store_number::check(&self.layout, outcomes).as_deref() {
            None => self.read_store(),
            Some(&[error, ..]) => self.end(error.into()),
            Some([]) => {
                self.next_beat = Some(self.now);
                let (line, log) = self.line_and_log(self.life.coordinator);
                let start = Takeover::start(self.life, line, log);
                let start = match self.over {
                    Some(word) => start.over(word),
                    None => start,
                };
                self.take_over(self.life.coordinator, start);
            }
        }
    }

    fn beat(&mut self) {
        let requests = self.detector.requests();
        self.next_beat = None;
        if !requests.is_empty() {
            self.commands.push(Command::Post(Ticket(BEAT), requests));
        }
    }

    fn on_beat(&mut self, outcomes: &[Outcome]) {
        self.next_beat = Some(self.now + self.timing.interval);
        let ended = self.detector.on_outcomes(outcomes, self.now);
        if self.is_live && self.detector.is_taken_over() {
            return self.end(Ending::TakenOver);
        }
        self.detector.recovered().for_each(|life| self.coordinator.set_recovered(life));
        let waiting = self.takeovers.iter().filter_map(|(&coordinator, running)| match running.waits {
            Waits::Recoverer(life) => Some((coordinator, self.detector.is_silent(life, self.now))),
            Waits::Outcomes | Waits::Fence(_) => None,
        });
        for (coordinator, is_silent) in waiting.collect::<Vec<_>>() {
            self.go_on(coordinator, |takeover, layout| match is_silent {
                true => takeover.replace(|place| layout.copies_of(place)),
                false => takeover.retry(|place| layout.copies_of(place)),
            });
        }
        for life in ended {
            // A life that has not begun recovers no other life.
            let is_left =
                self.takeovers.contains_key(&life.coordinator) || self.unrecoverable.contains_key(&life);
            if self.is_live && !is_left {
                let (line, log) = self.line_and_log(life.coordinator);
                self.take_over(life.coordinator, Takeover::new(life, self.life, line, log));
            }
        }
    }

    fn take_over(&mut self, coordinator: u16, takeover: Takeover) {
        self.takeovers.insert(coordinator, Running { takeover, waits: Waits::Outcomes });
        self.go_on(coordinator, |takeover, layout| takeover.retry(|place| layout.copies_of(place)));
    }

    fn go_on(&mut self, coordinator: u16, step: impl FnOnce(&mut Takeover, &Layout) -> TakeoverStep) {
        let Some(running) = self.takeovers.get_mut(&coordinator) else { return };
        let of = running.takeover.of();
        let ending = match step(&mut running.takeover, &self.layout) {
            TakeoverStep::Post(requests) => {
                running.waits = Waits::Outcomes;
                return self.commands.push(Command::Post(Ticket(BEAT + u64::from(coordinator)), requests));
            }
            TakeoverStep::Fence(life) => {
                running.waits = Waits::Fence(life);
                if !(1..=self.layout.schema().coordinators).contains(&life.coordinator) {
                    // The number of this coordinator comes from a damaged word. No process has the
                    // number, so there are no rights to revoke.
                    return self.on_fenced(life);
                }
                return self.commands.push(Command::Fence(life));
            }
            TakeoverStep::ClaimedBy(life) => return running.waits = Waits::Recoverer(life),
            TakeoverStep::Recovered => {
                self.recovered.push(of);
                self.coordinator.set_recovered(of);
                None
            }
            TakeoverStep::Live => {
                self.recovered.extend((of.incarnation > 0).then_some(of));
                self.coordinator.set_recovered(Life { incarnation: self.life.incarnation - 1, ..self.life });
                self.is_live = true;
                None
            }
            TakeoverStep::Lost => Some(Ending::TakenOver),
            TakeoverStep::TooFewNodes => Some(Ending::TooFewNodes),
            TakeoverStep::UnknownPlace(place) => Some(Ending::UnknownPlace(place)),
        };
        self.takeovers.remove(&coordinator);
        match ending {
            // Another coordinator may have recovered the life. Otherwise, the life is suspected
            // again.
            Some(Ending::TakenOver) if coordinator != self.life.coordinator => {}
            Some(Ending::UnknownPlace(place)) if coordinator != self.life.coordinator => {
                self.unrecoverable.insert(of, place);
            }
            Some(ending) => self.end(ending),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{Abort, NotCommitted, Op, Schema, TableSchema};

    /// Executes the requests of a session, over memory that is zero except for the store's number.
    fn drive(session: &mut Session) {
        for now in 0..100 {
            for command in session.poll(Duration::from_millis(now)) {
                let Command::Post(ticket, requests) = command else {
                    panic!("nobody is fenced: {command:?}")
                };
                let outcome = |request: &Request| match request.op {
                    Op::Read(bytes) => Outcome::Executed(vec![u8::from(request.at == 0); bytes as usize]),
                    Op::Write(_) => Outcome::Executed(Vec::new()),
                    Op::CompareSwap { .. } => Outcome::Executed(vec![0; 8]),
                };
                let outcomes: Vec<_> = requests.iter().map(outcome).collect();
                session.on_outcomes(ticket, &outcomes);
            }
        }
    }

    #[test]
    fn life_that_has_no_attempts_left_ends() {
        let table = TableSchema { max_value_bytes: 8, partitions: 1, records: 1, group_bits: 0 };
        let (nodes, backups, coordinators, slots, slot_bytes) = (1, 0, 1, 1, 64);
        let schema = Schema { tables: vec![table], nodes, backups, coordinators, slots, slot_bytes };
        let layout = Rc::new(Layout::new(schema, |_| 0).unwrap());
        let timing = Timing { interval: Duration::from_secs(60), timeout: Duration::from_secs(600) };
        let life = Life { coordinator: 1, incarnation: 1 };
        let mut session = Session::new(layout, life, timing, &[]);
        session.coordinator.leave_attempts(2);
        let (client, results) = (session.coordinator.client(), Rc::new(Cell::new(Vec::new())));
        let told = Rc::clone(&results);
        session.coordinator.spawn(async move {
            let mut results = Vec::new();
            for _ in 0..3 {
                results.push(client.run(async |_| Ok(())).await.map(|_| ()));
            }
            told.set(results);
        });
        drive(&mut session);
        let ended = Err(NotCommitted::Aborted(Abort::LifeEnded));
        assert_eq!(results.take(), [Ok(()), Ok(()), ended]);
        assert_eq!(session.ending(), Some(Ending::NoAttempts));
    }
}
