//! The failure detector Ω (leader election) over shared memory (PMSM): eventually, all live processes name the same
//! live process. Any number of processes may crash. The memory outlives them, links are reliable, and at least one
//! process must eventually be timely, with an unknown bound.
//!
//! Each process has one register that it alone writes, with its [`State`]. The leader is the contender with the least
//! (badness, id). A process that finds itself to be the leader keeps incrementing its heartbeat. The others read the
//! heartbeat on a timer. If it has not advanced, they remove the leader from the contenders, increase their timeout for
//! it, and send it an accusation, which raises its badness. In the steady state, the leader writes, the others read,
//! and no process sends a message.
//!
//! - An accusation raises the badness. Otherwise, a process that stalls repeatedly would be elected repeatedly.
//! - Timeouts grow. Otherwise, no leader might ever be fast enough.
//! - A process that stops leading clears `active`. Its heartbeat may stop then, and the others stop reading it.
//! - A new leader announces once that it contends, and only after its register holds that it is active. The others
//!   ignore reads that began before the announcement. Otherwise, they might read its old state and remove it
//!   permanently.
//! - One operation is outstanding at a time, and due operations take turns. Otherwise, a process that wakes faster than
//!   the memory responds would access one register forever, and never learn the badness of the others.
//!
//! The output is [`Omega::leader`]. [`crate::memory_only_omega`] is a variant for links that lose messages.

use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::process::send_others;
use crate::{
    Action, Actions, AllRules, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId,
    ProcessSet, Region, RegisterKind, Response, RuleSet,
};

/// The memory that holds all registers.
const MEMORY: MemoryId = MemoryId(0);

/// The content of a process's register.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// A counter that increases while the process leads.
    pub heartbeat: u64,
    /// The number of accusations that the process has received.
    pub badness: u64,
    /// The process considers itself the leader.
    pub active: bool,
}

/// A message between processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The sender contends, and asks the receiver to read its heartbeat.
    Contend,
    /// The receiver made no progress, and the sender has removed it from the contenders.
    Accuse,
}

/// The rules that the election rests on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A process without progress receives an accusation.
    const ACCUSES: bool = true;
    /// An accusation raises the badness.
    const RAISES_BADNESS: bool = true;
    /// The timeout of a process grows each time it is accused.
    const RAISES_TIMEOUT: bool = true;
    /// Due operations take turns. Without the rule, the register of the least process comes first.
    const TAKES_TURNS: bool = true;
    /// A process announces that it contends after its register holds that it is active.
    const ANNOUNCES_AFTER_WRITE: bool = true;
    /// A read that began before an announcement of its process is ignored.
    const IGNORES_EARLIER_READS: bool = true;
}

impl Rules for AllRules {}

/// A process of Ω.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Omega<R = AllRules> {
    me: ProcessId,
    wakes: u64,
    /// The state to write to this process's register.
    own_state: State,
    /// The process has announced that it contends.
    announced: bool,
    contenders: ProcessSet,
    peers: Vec<Peer>,
    /// The processes whose registers are due, in order: a read of another process's, or a write of this process's own register.
    due: Vec<ProcessId>,
    /// The outstanding operation.
    outstanding: Option<OutstandingOp>,
    rules: PhantomData<R>,
}

/// The state of one observed process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Peer {
    badness: u64,
    /// The heartbeat at the last read, if it is still comparable.
    heartbeat: Option<u64>,
    /// The number of wake-ups after which the process must have made progress, and the number since the last read.
    timeout: u64,
    waited: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum OutstandingOp {
    /// Writes this process's state. Carries `active`.
    Write(bool),
    /// Reads the register of a process.
    Read(ProcessId),
    /// A read whose result is ignored.
    Stale,
}

impl<R: Rules> Omega<R> {
    /// Creates a process among `processes` processes.
    pub fn new(me: ProcessId, processes: u8) -> Omega<R> {
        let peer = Peer { badness: 0, heartbeat: None, timeout: 1, waited: 0 };
        Omega {
            me,
            wakes: 0,
            own_state: State::default(),
            announced: false,
            contenders: ProcessSet::first(processes),
            peers: vec![peer; processes.into()],
            due: Vec::new(),
            outstanding: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of the memory: one region per process with one register, which that process alone may write.
    pub fn regions(processes: u8) -> Vec<Region> {
        let region = |p| Region {
            registers: 1,
            permissions: Permissions::single_writer(processes, ProcessId(p)),
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        (0..processes).map(region).collect()
    }

    /// Returns the leader from the point of view of this process.
    pub fn leader(&self) -> ProcessId {
        let contenders = self.processes().filter(|&p| self.contenders.contains(p));
        contenders.min_by_key(|&p| (self.badness(p), p)).unwrap_or(self.me)
    }

    fn badness(&self, p: ProcessId) -> u64 {
        if p == self.me { self.own_state.badness } else { self.peers[usize::from(p.0)].badness }
    }

    fn processes(&self) -> impl Iterator<Item = ProcessId> + use<R> {
        (0..self.peers.len() as u8).map(ProcessId)
    }

    /// Updates this process's own state, and schedules the reads that are due.
    fn on_wake(&mut self, out: &mut Actions<Self>) {
        self.wakes += 1;
        let leads = self.leader() == self.me;
        if leads || self.own_state.active {
            self.schedule(self.me);
        }
        self.own_state.heartbeat += u64::from(leads);
        self.own_state.active = leads;
        self.announced &= leads;
        if leads && !R::ANNOUNCES_AFTER_WRITE {
            self.announce(out);
        }
        let watched = self.contenders.without(self.me);
        for p in self.processes().filter(|&p| watched.contains(p)) {
            let peer = &mut self.peers[usize::from(p.0)];
            peer.waited += 1;
            if peer.waited >= peer.timeout {
                peer.waited = 0;
                self.schedule(p);
            }
        }
        self.invoke_next(out);
        out.push(Action::Wake);
    }

    fn schedule(&mut self, p: ProcessId) {
        if !self.due.contains(&p) {
            self.due.push(p);
        }
    }

    /// Invokes the next due operation, if none is outstanding.
    fn invoke_next(&mut self, out: &mut Actions<Self>) {
        if self.outstanding.is_some() || self.due.is_empty() {
            return;
        }
        if !R::TAKES_TURNS {
            self.due.sort();
        }
        let p = self.due.remove(0);
        let (outstanding, op) = if p == self.me {
            let op = Op::Write { region: p.0, register: 0, cell: self.own_state.clone() };
            (OutstandingOp::Write(self.own_state.active), op)
        } else {
            (OutstandingOp::Read(p), Op::Read { region: p.0, first: 0, count: 1 })
        };
        self.outstanding = Some(outstanding);
        out.push(Action::Invoke { memory: MEMORY, id: OpId::ONLY, op });
    }

    fn announce(&mut self, out: &mut Actions<Self>) {
        if !self.announced {
            self.announced = true;
            send_others(self.me, self.peers.len() as u8, &Message::Contend, out);
        }
    }

    fn on_response(&mut self, response: Response<State>, out: &mut Actions<Self>) {
        match (self.outstanding.take(), response) {
            (Some(OutstandingOp::Write(true)), Response::Ack) if self.own_state.active => self.announce(out),
            (Some(OutstandingOp::Read(p)), Response::Cells(cells)) => {
                if let [state] = &cells[..] {
                    self.evaluate(p, state, out);
                }
            }
            _ => {}
        }
        self.invoke_next(out);
    }

    /// Evaluates whether an observed process has made progress.
    fn evaluate(&mut self, p: ProcessId, state: &State, out: &mut Actions<Self>) {
        let peer = &mut self.peers[usize::from(p.0)];
        peer.badness = state.badness;
        let previous = peer.heartbeat.replace(state.heartbeat);
        let stalls = previous == Some(state.heartbeat);
        if state.active && !stalls {
            return;
        }
        peer.heartbeat = None;
        self.contenders = self.contenders.without(p);
        if state.active {
            peer.timeout += u64::from(R::RAISES_TIMEOUT);
            if R::ACCUSES {
                out.push(Action::Send { to: p, message: Message::Accuse });
            }
        }
    }

    fn on_message(&mut self, from: ProcessId, message: Message, out: &mut Actions<Self>) {
        if usize::from(from.0) >= self.peers.len() {
            return;
        }
        match message {
            Message::Contend => {
                self.contenders = self.contenders.with(from);
                self.schedule(from);
                let peer = &mut self.peers[usize::from(from.0)];
                (peer.heartbeat, peer.waited) = (None, 0);
                if self.outstanding == Some(OutstandingOp::Read(from)) && R::IGNORES_EARLIER_READS {
                    self.outstanding = Some(OutstandingOp::Stale);
                }
            }
            Message::Accuse => {
                if R::RAISES_BADNESS {
                    self.own_state.badness += 1;
                    self.schedule(self.me);
                }
                // The accuser has removed this process from its contenders.
                if self.announced {
                    out.push(Action::Send { to: from, message: Message::Contend });
                }
            }
        }
        self.invoke_next(out);
    }
}

impl<R: Rules> Process for Omega<R> {
    type Cell = State;
    type Message = Message;
    type Value = ProcessId;

    fn handle(&mut self, input: Input<State, Message>, out: &mut Actions<Self>) {
        match input {
            Input::Start => out.push(Action::Wake),
            Input::Wake => self.on_wake(out),
            Input::Message { from, message } => self.on_message(from, message, out),
            Input::Response { response, .. } => self.on_response(response, out),
            Input::Leader(_) | Input::Coin(_) => {}
        }
    }

    /// Returns `None`: the output is [`Omega::leader`], which may change.
    fn decision(&self) -> Option<&ProcessId> {
        None
    }

    /// Counts wake-ups.
    fn attempts(&self) -> u64 {
        self.wakes
    }
}
