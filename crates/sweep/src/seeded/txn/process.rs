//! A process of a coordinator. A process connects to the memory nodes as the next life of its
//! coordinator, runs the rest of the coordinator's work, and takes over lives that have ended.

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
use mitra_sim::{AppContext, HostId, SimNic};

/// The registered memory of a process for requests to one node. A slot of the log must fit.
const STAGING_BYTES: usize = 16 << 10;
/// Tickets above this one do not belong to transactions.
const FIRST_OTHER_TICKET: u64 = 1 << 63;

pub(super) struct Shared {
    pub(super) layout: Rc<Layout>,
    pub(super) vqp: VqpConfig,
    pub(super) fingerprint: u64,
    pub(super) timing: Timing,
    pub(super) mail: RefCell<Mail>,
    pub(super) history: RefCell<History>,
    /// The remaining programs, by coordinator and task.
    pub(super) work: Vec<Vec<RefCell<VecDeque<Program>>>>,
    pub(super) events: RefCell<Vec<ProcessEvent>>,
    pub(super) stop: Cell<bool>,
    pub(super) requests: Cell<u64>,
}

impl Shared {
    pub(super) fn has_work(&self) -> bool {
        self.work.iter().flatten().any(|work| !work.borrow().is_empty())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ProcessEvent {
    /// The life of the process is over, or the process never got a life.
    Ended(ProcessId),
    /// The process has posted the requests before its fate.
    Fated(ProcessId, Fate),
    /// Another process of this coordinator must start.
    Start(u16),
    /// A life of this coordinator is live. All its earlier lives are recovered.
    Live(u16),
}

/// How and when a process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    /// Whether only requests of takeovers count.
    pub(super) in_takeover: bool,
    /// The number of requests that the process posts before its fate.
    pub(super) requests: u64,
    /// The time after the last of these requests.
    pub(super) delay: Duration,
    pub(super) end: End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The process ends, and its host refuses packets to its NICs.
    Exits,
    /// The host loses its power.
    Silent,
    /// The host sleeps for this time.
    Sleeps(Duration),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Asking,
    Connecting,
    Starting,
    Live,
    Ended,
}

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
    /// The lives that are being fenced, and for each the nodes that have not confirmed.
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

    /// Asks the nodes for the highest incarnation.
    pub(super) fn start(&mut self, now: Time) {
        self.nodes().for_each(|node| self.ask(now, node, Ask::Highest));
    }

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
            // A NIC of the node has not confirmed the fence yet.
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

    /// Ends the life. The process posts no request any more.
    fn end(&mut self) {
        self.state = State::Ended;
        if let Some(session) = &mut self.session {
            session.end(Ending::Disconnected);
            session.poll(Duration::ZERO);
        }
        self.shared.events.borrow_mut().push(ProcessEvent::Ended(self.id));
    }

    /// Ends the process without a notice, as a crash does.
    pub(super) fn die(&mut self) {
        self.state = State::Ended;
    }

    fn run(&mut self, now: Time) {
        // Twice, so that requests that follow from completions leave in the same turn.
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

pub(super) fn token(coordinator: u16) -> [u8; 16] {
    [coordinator as u8; 16]
}
