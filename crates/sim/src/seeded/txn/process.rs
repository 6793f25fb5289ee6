//! A coordinator's process: it connects to the memory nodes as the next life of its coordinator,
//! takes the life, runs what is left of its coordinator's work, and takes over lives that have
//! ended.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use mitra_failover::{Config as VqpConfig, Domain};
use mitra_txn::{Abort, Command, Ending, Layout, Life, NotCommitted, Request, Session, Ticket, Timing};
use mitra_txn_rdma::{Answer, Ask, Channels, Hello, Link, QpInfo, QpKind, Refusal, VERSION};
use mitra_verbs::Time;

use super::history::History;
use super::mail::{Mail, ProcessId};
use super::program::Program;
use crate::seeded::domain;
use crate::{AppContext, HostId, SimNic};

/// The registered memory of a process for requests to one node: the longest is a slot of the log.
const STAGING_BYTES: usize = 16 << 10;
/// The tickets from here on are not those of transactions.
const FIRST_OTHER_TICKET: u64 = 1 << 63;

/// What all processes of a world have in common.
pub(super) struct Shared {
    pub(super) layout: Rc<Layout>,
    pub(super) vqp: VqpConfig,
    pub(super) fingerprint: u64,
    pub(super) timing: Timing,
    pub(super) mail: RefCell<Mail>,
    pub(super) history: RefCell<History>,
    /// What the tasks of each coordinator have still to do.
    pub(super) work: Vec<Vec<RefCell<VecDeque<Program>>>>,
    /// What happens to processes by themselves.
    pub(super) events: RefCell<Vec<ProcessEvent>>,
    /// Whether all programs are to end.
    pub(super) stop: Cell<bool>,
    pub(super) requests: Cell<u64>,
}

impl Shared {
    pub(super) fn has_work(&self) -> bool {
        self.work.iter().flatten().any(|work| !work.borrow().is_empty())
    }
}

/// What happens to a process by itself.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProcessEvent {
    /// Its life is over, or was never taken.
    Ended(ProcessId),
    /// It has come to the moment of its fate.
    Fated(ProcessId, Fate),
    /// Another process of this coordinator is to start.
    Start(u16),
    /// Its life is live. All earlier lives of its coordinator are recovered.
    Live(u16),
}

/// The end of a process: its kind, and the requests and the delay after which it comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// Whether requests of takeovers count, instead of all requests.
    pub(super) in_takeover: bool,
    /// The number of requests that it has posted before.
    pub(super) requests: u64,
    /// How much later it happens.
    pub(super) delay: Duration,
    pub(super) end: End,
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The process ends, and its host says so to who sends to it.
    Exits,
    /// The host loses its power.
    Silent,
    /// The host sleeps for this time.
    Sleeps(Duration),
}

/// What a process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Asking,
    Connecting,
    Starting,
    Live,
    Ended,
}

/// A process.
pub(super) struct Process {
    shared: Rc<Shared>,
    id: ProcessId,
    pub(super) host: HostId,
    pub(super) nics: Vec<Arc<SimNic>>,
    domain: Arc<Domain>,
    pub(super) life: Life,
    pub(super) state: State,
    links: Vec<Option<Link>>,
    unanswered: usize,
    channels: Channels,
    session: Option<Session>,
    /// The lives that are being fenced, with the nodes that have not confirmed it.
    fences: Vec<(Life, Vec<u16>)>,
    fate: Option<Fate>,
    posted: u64,
    posted_in_takeovers: u64,
}

impl Process {
    pub(super) fn new(
        shared: Rc<Shared>,
        id: ProcessId,
        host: HostId,
        nics: Vec<Arc<SimNic>>,
        coordinator: u16,
        fate: Option<Fate>,
    ) -> Process {
        let domain = domain(&nics).expect("the NICs are new");
        let nodes = usize::from(shared.layout.schema().nodes);
        Process {
            shared,
            id,
            host,
            nics,
            domain,
            life: Life { coordinator, incarnation: 0 },
            state: State::Asking,
            links: Vec::new(),
            unanswered: nodes,
            channels: Channels::new(nodes),
            session: None,
            fences: Vec::new(),
            fate,
            posted: 0,
            posted_in_takeovers: 0,
        }
    }

    /// Whether the process has nothing to do.
    pub(super) fn is_idle(&mut self) -> bool {
        let is_idle = |session: &mut Session| session.is_live() && session.coordinator().is_idle();
        self.state == State::Ended || self.session.as_mut().is_some_and(is_idle)
    }

    pub(super) fn describe(&self) -> String {
        format!("{:?} {:?}, fences {:?}, lost {:?}", self.life, self.state, self.fences, self.channels.lost())
    }

    fn ask(&self, now: Time, node: u16, ask: Ask) {
        let Life { coordinator, .. } = self.life;
        let (version, fingerprint) = (VERSION, self.shared.fingerprint);
        let token = token(coordinator);
        let hello = Hello { version, token, fingerprint, node, coordinator, ask };
        self.shared.mail.borrow_mut().ask(now, self.id, hello);
    }

    fn nodes(&self) -> core::ops::Range<u16> {
        0..self.shared.layout.schema().nodes
    }

    /// Begins: asks the nodes for the incarnations that they know.
    pub(super) fn start(&mut self, now: Time) {
        self.nodes().for_each(|node| self.ask(now, node, Ask::Highest));
    }

    /// Runs a turn.
    pub(super) fn step(&mut self, ctx: &mut AppContext<'_>) {
        if self.state == State::Ended || self.shared.stop.get() {
            return ctx.exit();
        }
        let now = ctx.now();
        self.shared.history.borrow_mut().now = now.as_nanos();
        let before = self.posted;
        loop {
            let answer = self.shared.mail.borrow_mut().next_answer(now, self.id);
            let Some((hello, answer)) = answer else { break };
            ctx.mark_active();
            self.on_answer(now, hello, answer);
        }
        if matches!(self.state, State::Starting | State::Live) {
            self.run(now);
        }
        if self.posted > before {
            ctx.mark_active();
        }
        let posted = |fate: &mut Fate| if fate.in_takeover { self.posted_in_takeovers } else { self.posted };
        if let Some(fate) = self.fate.take_if(|fate| posted(fate) > fate.requests) {
            self.shared.events.borrow_mut().push(ProcessEvent::Fated(self.id, fate));
        }
    }

    fn on_answer(&mut self, now: Time, hello: Hello, answer: Answer) {
        let node = hello.node;
        match (self.state, answer) {
            (State::Asking, Answer::Highest(incarnation)) => {
                self.life.incarnation = self.life.incarnation.max(incarnation);
                self.unanswered -= 1;
                if self.unanswered == 0 {
                    self.life.incarnation += 1;
                    self.connect(now);
                }
            }
            (State::Connecting, Answer::Connected { info, region }) => {
                self.on_connected(node, &info, &region)
            }
            (State::Starting | State::Live, Answer::Fenced) => {
                let Ask::Fence { fenced_coordinator, fenced_incarnation, .. } = hello.ask else { return };
                let fenced = Life { coordinator: fenced_coordinator, incarnation: fenced_incarnation };
                for (life, left) in &mut self.fences {
                    left.retain(|&other| *life != fenced || other != node);
                }
                let confirmed = self.fences.extract_if(.., |(_, left)| left.is_empty());
                for (life, _) in confirmed {
                    self.session.iter_mut().for_each(|session| session.on_fenced(life));
                }
            }
            // A NIC has not confirmed it yet.
            (State::Starting | State::Live, Answer::Refused(Refusal::Nic(_))) => {
                self.ask(now, node, hello.ask)
            }
            (State::Ended, _) => {}
            // The life was fenced, or another process has started as this coordinator.
            _ => self.end(),
        }
    }

    fn connect(&mut self, now: Time) {
        self.state = State::Connecting;
        let log = self.shared.layout.log(self.life.coordinator);
        let line = self.shared.layout.life_line(self.life.coordinator);
        let repeatable: Arc<[_]> = Arc::new([log, line + 8..line + 16]);
        for node in self.nodes() {
            let link = Link::new(&self.domain, QpKind::Virtual, &self.shared.vqp, STAGING_BYTES, &repeatable)
                .and_then(|link| Ok((link.info()?, link)));
            let Ok((info, link)) = link else { return self.end() };
            self.links.push(Some(link));
            self.unanswered += 1;
            self.ask(now, node, Ask::Connect { incarnation: self.life.incarnation, info });
        }
    }

    fn on_connected(&mut self, node: u16, info: &QpInfo, region: &[u8]) {
        let Some(mut link) = self.links[usize::from(node)].take() else { return };
        if link.connect(info, region) != Ok(true) {
            return self.end();
        }
        self.channels.add(mitra_txn::NodeId(node), link);
        self.unanswered -= 1;
        if self.unanswered > 0 {
            return;
        }
        self.state = State::Starting;
        let layout = Rc::clone(&self.shared.layout);
        let mut session = Session::new(layout, self.life, self.shared.timing, &[]);
        self.add_tasks(&mut session);
        self.session = Some(session);
    }

    /// Ends the life: no request of the process is posted any more.
    fn end(&mut self) {
        self.state = State::Ended;
        if let Some(session) = &mut self.session {
            session.end(Ending::Disconnected);
            session.poll(Duration::ZERO);
        }
        self.shared.events.borrow_mut().push(ProcessEvent::Ended(self.id));
    }

    /// Loses what the process was doing, as a process that ends at any moment does.
    pub(super) fn die(&mut self) {
        self.state = State::Ended;
    }

    fn run(&mut self, now: Time) {
        // What has ended first, and the requests leave in the turn in which they are made.
        for _ in 0..2 {
            let Some(session) = &mut self.session else { return };
            let mut done = Vec::new();
            let polled = self.channels.poll(&mut done);
            for (ticket, outcomes) in done {
                session.on_outcomes(Ticket(ticket), &outcomes);
            }
            let commands = session.poll(now.saturating_since(Time::ZERO));
            for (lock, footprint) in session.coordinator().undecided() {
                self.shared.history.borrow_mut().is_logged(lock, footprint);
            }
            let unrecoverable =
                session.unrecoverable().values().next().map(|&place| Ending::UnknownPlace(place));
            if let Some(why @ (Ending::TooFewNodes | Ending::UnknownPlace(_))) =
                session.ending().or(unrecoverable)
            {
                self.shared.history.borrow_mut().find("recovery", why.to_string());
                return self.end();
            }
            if session.is_live() && self.state == State::Starting {
                self.state = State::Live;
                self.shared.events.borrow_mut().push(ProcessEvent::Live(self.life.coordinator));
            }
            if polled.is_err() || session.ending().is_some() {
                return self.end();
            }
            for command in commands {
                match command {
                    Command::Post(Ticket(ticket), requests) => self.post(ticket, requests),
                    Command::Fence(life) => {
                        self.fences.push((life, self.nodes().collect()));
                        self.nodes().for_each(|node| self.ask_for_fence(now, node, life));
                    }
                }
            }
        }
    }

    fn post(&mut self, ticket: u64, requests: Vec<Request>) {
        self.posted += requests.len() as u64;
        self.shared.requests.set(self.shared.requests.get() + requests.len() as u64);
        if ticket > FIRST_OTHER_TICKET {
            self.posted_in_takeovers += requests.len() as u64;
        }
        if let Err(error) = self.channels.post(ticket, requests) {
            self.shared.history.borrow_mut().find("post", error.to_string());
        }
    }

    fn ask_for_fence(&self, now: Time, node: u16, life: Life) {
        let Life { coordinator: fenced_coordinator, incarnation: fenced_incarnation } = life;
        let incarnation = self.life.incarnation;
        self.ask(now, node, Ask::Fence { incarnation, fenced_coordinator, fenced_incarnation });
    }

    /// Adds what the coordinator has still to do.
    fn add_tasks(&self, session: &mut Session) {
        let coordinator = session.coordinator();
        let index = usize::from(self.life.coordinator) - 1;
        for task in 0..self.shared.work[index].len() {
            let (client, shared) = (coordinator.client(), Rc::clone(&self.shared));
            coordinator.spawn(async move {
                loop {
                    let next = shared.work[index][task].borrow_mut().pop_front();
                    let Some(program) = next else { break };
                    let begun = shared.history.borrow().now;
                    let mut last = None;
                    let result = client.run(async |tx| {
                        let output = program.execute(tx).await?;
                        let history = &mut *shared.history.borrow_mut();
                        last.take().into_iter().for_each(|lock| history.has_no_effect(lock));
                        last = Some(tx.attempt());
                        history.commits(tx.attempt(), &program, &output, begun);
                        Ok(())
                    });
                    let result = result.await.map(|committed| committed.footprint);
                    use NotCommitted::{Aborted, Unknown};
                    let is_over = matches!(result, Err(Unknown | Aborted(Abort::LifeEnded)));
                    shared.history.borrow_mut().told(last, result);
                    if is_over {
                        break;
                    }
                }
            });
        }
    }
}

/// The token of a coordinator.
pub(super) fn token(coordinator: u16) -> [u8; 16] {
    [coordinator as u8; 16]
}
