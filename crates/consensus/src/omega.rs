//! The failure detector Ω (leader election) over shared memory ("Passing Messages while Sharing
//! Memory", PODC 2018): eventually, all live processes name the same live process as the leader.
//! Any number of processes may crash. The memory never crashes, and links are reliable. At least
//! one process must eventually be timely; the bound on its delays need not be known.
//!
//! Each process has one register that it alone writes, with a [`RegisterContent`]. The leader is
//! the contender with the fewest accusations; of several such contenders, the one with the lowest
//! id. A process that considers itself the leader keeps incrementing its heartbeat. The others read
//! the heartbeat on a timer. If the heartbeat has not advanced, a reader removes the leader from
//! its contenders, increases its timeout for the leader, and sends the leader an accusation. In the
//! steady state, the leader writes, the others read, and no process sends a message.
//!
//! - A process counts the accusations that it receives. Without the count, a process that stalls
//!   repeatedly would be elected repeatedly.
//! - Timeouts grow. Otherwise, every leader might exceed its timeout repeatedly.
//! - A process that stops leading clears `active`. The others then stop reading its register.
//! - A new leader announces its candidacy once, and only after `active` is written to its register.
//!   The others ignore the results of reads that began before they received the announcement.
//!   Otherwise, the others might read the register's old content and remove the new leader
//!   permanently.
//! - One operation is outstanding at a time, and the registers are accessed in turn. Otherwise, a
//!   process that wakes faster than the memory responds would access one register forever, and
//!   never read the accusation counts in the others.
//!
//! The output is [`Omega::leader`]. [`crate::memory_only_omega`] is a variant for links that lose
//! messages.

use core::marker::PhantomData;

use mitra_mutants::Mutant;
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
pub struct RegisterContent {
    /// A counter that increases while the process leads.
    pub heartbeat: u64,
    /// The number of accusations that the process has received.
    pub accusation_count: u64,
    /// Whether the process considers itself the leader.
    pub active: bool,
}

/// A message between processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Message {
    /// Announces that the sender is a candidate, and asks the receiver to read the sender's
    /// heartbeat.
    Contend,
    /// Accuses the receiver of having stalled. The sender has removed the receiver from its
    /// contenders.
    Accuse,
}

/// The rules that the election depends on. A checker disables them one at a time.
pub trait Rules: RuleSet {
    /// A process sends an accusation to a process that has stalled.
    const ACCUSES: bool = true;
    /// A process counts the accusations that it receives.
    const COUNTS_ACCUSATIONS: bool = true;
    /// A process increases its timeout for another process each time the other process has stalled.
    const RAISES_TIMEOUT: bool = true;
    /// Registers are accessed in the order in which their accesses became due. Without the rule,
    /// the register of the process with the lowest id is accessed first.
    const TAKES_TURNS: bool = true;
    /// A process announces its candidacy only after `active` is written to its register.
    const ANNOUNCES_AFTER_WRITE: bool = true;
    /// The result of a read is ignored if the process that was read announced its candidacy after
    /// the read began.
    const IGNORES_EARLIER_READS: bool = true;
}

impl Rules for AllRules {}

/// A process of Ω.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Omega<R = AllRules> {
    me: ProcessId,
    wakes: u64,
    /// The content to write to this process's register.
    own_content: RegisterContent,
    /// Whether the process has announced its candidacy since it last became the leader.
    announced: bool,
    contenders: ProcessSet,
    peers: Vec<Peer>,
    /// The processes whose registers are to be accessed, in order. Another process's register is
    /// read; this process's own register is written.
    due_accesses: Vec<ProcessId>,
    outstanding: Option<OutstandingOp>,
    rules: PhantomData<R>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Peer {
    accusation_count: u64,
    /// The heartbeat at the last read. An announcement and a removal reset it to `None`.
    heartbeat: Option<u64>,
    /// The number of wake-ups between two reads of the register.
    timeout: u64,
    /// The number of wake-ups since a read was last scheduled.
    waited: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum OutstandingOp {
    /// Writes this process's register, with this value of `active`.
    Write { active: bool },
    /// Reads the register of another process.
    Read(ProcessId),
    /// A read whose result is ignored.
    Stale,
}

impl<R: Rules> Omega<R> {
    /// Creates a process among `processes` processes.
    pub fn new(me: ProcessId, processes: u8) -> Omega<R> {
        let peer = Peer { accusation_count: 0, heartbeat: None, timeout: 1, waited: 0 };
        Omega {
            me,
            wakes: 0,
            own_content: RegisterContent::default(),
            announced: false,
            contenders: ProcessSet::first(processes),
            peers: vec![peer; processes.into()],
            due_accesses: Vec::new(),
            outstanding: None,
            rules: PhantomData,
        }
    }

    /// Returns the regions of the memory: one region per process with one register, which that
    /// process alone may write.
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
        contenders.min_by_key(|&p| (self.accusation_count(p), p)).unwrap_or(self.me)
    }

    fn accusation_count(&self, p: ProcessId) -> u64 {
        if p == self.me {
            self.own_content.accusation_count
        } else {
            self.peers[usize::from(p.0)].accusation_count
        }
    }

    fn processes(&self) -> impl Iterator<Item = ProcessId> + use<R> {
        (0..self.peers.len() as u8).map(ProcessId)
    }

    /// Updates the content to write, and schedules the accesses to registers that are due.
    fn on_wake(&mut self, out: &mut Actions<Self>) {
        self.wakes += 1;
        let leads = self.leader() == self.me;
        if leads || self.own_content.active {
            self.schedule(self.me);
        }
        self.own_content.heartbeat += u64::from(leads);
        self.own_content.active = leads;
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
        if !self.due_accesses.contains(&p) {
            self.due_accesses.push(p);
        }
    }

    fn invoke_next(&mut self, out: &mut Actions<Self>) {
        if self.outstanding.is_some() || self.due_accesses.is_empty() {
            return;
        }
        if !R::TAKES_TURNS {
            self.due_accesses.sort();
        }
        let p = self.due_accesses.remove(0);
        let (outstanding, op) = if p == self.me {
            let op = Op::Write { region: p.0, register: 0, cell: self.own_content.clone() };
            (OutstandingOp::Write { active: self.own_content.active }, op)
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

    fn on_response(&mut self, response: Response<RegisterContent>, out: &mut Actions<Self>) {
        match (self.outstanding.take(), response) {
            (Some(OutstandingOp::Write { active: true }), Response::Ack) if self.own_content.active => {
                self.announce(out)
            }
            (Some(OutstandingOp::Read(p)), Response::Cells(cells)) => {
                if let [state] = &cells[..] {
                    self.handle_content(p, state, out);
                }
            }
            _ => {}
        }
        self.invoke_next(out);
    }

    /// Handles the content read from `p`'s register. Removes `p` from the contenders if it is
    /// inactive or has stalled, and accuses it if it has stalled.
    fn handle_content(&mut self, p: ProcessId, state: &RegisterContent, out: &mut Actions<Self>) {
        let peer = &mut self.peers[usize::from(p.0)];
        peer.accusation_count = state.accusation_count;
        let previous = peer.heartbeat.replace(state.heartbeat);
        let stalls = previous == Some(state.heartbeat);
        if state.active && !stalls {
            return;
        }
        peer.heartbeat = None;
        self.contenders = self.contenders.without(p);
        if state.active {
            peer.timeout += u64::from(R::RAISES_TIMEOUT && !Mutant::TimeoutNotRaised.is_on());
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
                if R::COUNTS_ACCUSATIONS {
                    self.own_content.accusation_count += 1;
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
    type Cell = RegisterContent;
    type Message = Message;
    type Value = ProcessId;

    fn handle(&mut self, input: Input<RegisterContent, Message>, out: &mut Actions<Self>) {
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

    fn attempts(&self) -> u64 {
        self.wakes
    }
}
