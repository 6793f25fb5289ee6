//! A process's way to one memory: operations become one-sided requests, and their completions answers.
//!
//! A connection that breaks, be it by a NAK, is made anew, and the memory fences the old one first. What had been asked for there is then
//! refused, although it may have been done; but it will not be done any more. What only reads, settles or takes a right is asked
//! again instead.

mod requests;
mod results;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use mitra_consensus::{Op, OpId, Region, Response};
use mitra_failover::{Completion, FailoverReport, Outcome, RemoteRegion, UnresolvedError, VirtualMr};
use mitra_verbs::{Access, Buffer, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::handshake::Welcome;
use crate::layout::Layout;
use crate::link::{Event, Link};
use crate::memory_node::{Answer, LEARNT, LOOKED_THROUGH, MESSAGE, Request};
use crate::pending_connect::{AGAIN, Call, Identity};
use crate::register;

/// Bytes of a READ, at most, unless a register is longer.
const READ: usize = 64 << 10;
/// READs, and WRITEs that are too long to go inline, under way at a time.
const READS: usize = 4;
const WRITES: usize = 16;
/// So many registers before one is written whose sequence number is not known, it is asked for.
const AHEAD: u16 = 32;
/// Looks at a register that is torn each time, after which its writer is taken to lie. It then holds nothing.
const LOOKS: u32 = 256;

#[derive(Debug)]
enum State {
    Calling(Call),
    Connected(Link),
    /// There was no queue pair or no descriptor for a connection: it is tried again then.
    Resting(Instant),
    /// It has lost what it held, or its regions are others: it counts as crashed.
    Dead,
}

/// What is known of a region.
#[derive(Debug, Default)]
struct Known {
    read: Option<RemoteRegion>,
    write: Option<RemoteRegion>,
    /// The sequence number of each register's last write; what another may have written since is not known.
    seqs: Vec<Option<u64>>,
}

/// Registers whose sequence numbers are asked for.
#[derive(Debug)]
struct Learning {
    region: u8,
    registers: Range<u16>,
}

/// What is under way for an operation.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing yet.
    Queued,
    /// A request that takes no memory here, or this much of it.
    Posted(Slot),
    /// The memory's processor is asked.
    Asked,
    /// A write of which nobody knows whether it was done.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    None,
    Read(usize),
    Write(usize),
}

#[derive(Debug)]
struct Pending<C> {
    number: u64,
    id: OpId,
    op: Op<C>,
    stage: Stage,
    /// Of a read: what was read so far, and what the register after that held when it was seen beside a torn place.
    cells: Vec<C>,
    half: Option<u64>,
    looks: u32,
}

impl<C> Pending<C> {
    fn new(number: u64, id: OpId, op: Op<C>) -> Pending<C> {
        Pending { number, id, op, stage: Stage::Queued, cells: Vec::new(), half: None, looks: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct Port<C> {
    address: SocketAddr,
    identity: Identity,
    layout: Layout,
    state: State,
    life: Option<u64>,
    known: Vec<Known>,
    pending: VecDeque<Pending<C>>,
    /// What the memory's processor was asked about, in order.
    learning: VecDeque<Learning>,
    next: u64,
    staging: Arc<Buffer>,
    mr: VirtualMr,
    read_len: usize,
    free_reads: Vec<usize>,
    free_writes: Vec<usize>,
    sealed: Vec<u8>,
    bytes: Vec<u8>,
    connections: u64,
}

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> Port<C> {
    pub(crate) fn new(
        identity: Identity,
        address: SocketAddr,
        regions: &[Region],
        room: usize,
    ) -> Result<Port<C>, Error> {
        let layout = Layout::new(regions, room);
        let place = register::place_len(room);
        let read_len = READ.max(2 * place);
        let staging = Arc::new(Buffer::new(READS * read_len + WRITES * place));
        let mr = identity.domain.register(&staging, Access::LOCAL_WRITE)?;
        let call = identity.call(address, identity.link(MESSAGE)?, Duration::ZERO)?;
        let known = (0..regions.len()).map(|_| Known::default()).collect();
        Ok(Port {
            address,
            identity,
            layout,
            state: State::Calling(call),
            life: None,
            known,
            pending: VecDeque::new(),
            learning: VecDeque::new(),
            next: 0,
            staging,
            mr,
            read_len,
            free_reads: (0..READS).collect(),
            free_writes: (0..WRITES).collect(),
            sealed: Vec::new(),
            bytes: Vec::new(),
            connections: 0,
        })
    }

    /// Asks for an operation.
    pub(crate) fn ask(&mut self, id: OpId, op: Op<C>) {
        self.next += 1;
        self.pending.push_back(Pending::new(self.next, id, op));
        self.post();
    }

    /// Whether it can be reached now.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Whether it has forgotten what it held, or is not what it should be.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, State::Dead)
    }

    /// How often it was connected.
    pub(crate) fn connections(&self) -> u64 {
        self.connections
    }

    /// The last move of its connection from one rail to another.
    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        let State::Connected(link) = &self.state else { return None };
        link.last_failover()
    }

    /// Asks for an event when something comes.
    pub(crate) fn arm(&self) {
        if let State::Connected(link) = &self.state {
            link.arm();
        }
    }

    /// Drives it. Appends answers, each with the id of its operation.
    pub(crate) fn poll(&mut self, answers: &mut Vec<(OpId, Response<C>)>) {
        match &mut self.state {
            State::Dead => return,
            State::Resting(until) if *until > Instant::now() => return,
            State::Resting(_) => return self.call(),
            State::Calling(call) => match call.answer.try_recv() {
                Ok(Ok(welcome)) => self.connect(&welcome, answers),
                Err(TryRecvError::Empty) => return,
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => return self.call_again(),
            },
            State::Connected(link) => {
                let mut events = Vec::new();
                link.poll(|event| events.push(event));
                let broken = link.is_broken();
                for event in events {
                    match event {
                        Event::Done(done) => self.done(&done, answers),
                        Event::Message(message) => self.told(&message, answers),
                    }
                }
                if broken {
                    return self.call();
                }
            }
        }
        self.post();
        self.refuse(answers);
    }

    /// Begins a new connection.
    fn call(&mut self) {
        for pending in &mut self.pending {
            pending.stage = match (&pending.stage, &pending.op) {
                (Stage::Queued, _) => Stage::Queued,
                (_, Op::Write { .. }) => Stage::Unknown,
                _ => Stage::Queued,
            };
        }
        self.learning.clear();
        (self.free_reads, self.free_writes) = ((0..READS).collect(), (0..WRITES).collect());
        // The old link goes first, and with it its NIC's way to the staging memory.
        self.state = State::Resting(Instant::now() + AGAIN);
        if let Ok(link) = self.identity.link(MESSAGE) {
            self.knock(link, Duration::ZERO);
        }
    }

    /// It was not answered: maybe it is not there yet, or not any more.
    fn call_again(&mut self) {
        let resting = State::Resting(Instant::now() + AGAIN);
        if let State::Calling(Call { link, .. }) = std::mem::replace(&mut self.state, resting) {
            self.knock(link, AGAIN);
        }
    }

    fn knock(&mut self, link: Link, wait: Duration) {
        if let Ok(call) = self.identity.call(self.address, link, wait) {
            self.state = State::Calling(call);
        }
    }

    fn connect(&mut self, welcome: &Welcome, answers: &mut Vec<(OpId, Response<C>)>) {
        let State::Calling(Call { mut link, .. }) = std::mem::replace(&mut self.state, State::Dead) else {
            return;
        };
        let same_life = *self.life.get_or_insert(welcome.life) == welcome.life;
        let same_shape =
            welcome.room as usize == self.layout.room() && welcome.regions.len() == self.layout.regions();
        if !same_life || !same_shape {
            return;
        }
        if link.connect(&welcome.info).is_err() {
            return self.call();
        }
        self.state = State::Connected(link);
        self.connections += 1;
        for (region, place) in welcome.regions.iter().enumerate() {
            let registers = self.layout.registers(region as u8).into();
            self.known[region] = Known { read: None, write: None, seqs: vec![None; registers] };
            self.known[region].read = self.import(region, place.read.as_deref());
            self.granted(region, place.write.as_deref());
        }
        // The memory has fenced the old connection: what was not done is not done any more.
        while let Some(at) = self.pending.iter().position(|p| p.stage == Stage::Unknown) {
            self.answer(at, Response::Nak, answers);
        }
    }

    /// A region of the memory's, if it says where, and it is as long as it should be.
    fn import(&mut self, region: usize, encoded: Option<&[u8]>) -> Option<RemoteRegion> {
        let found = RemoteRegion::decode(encoded?).ok()?;
        let State::Connected(link) = &mut self.state else { return None };
        let fits = found.len() == self.layout.len(region as u8) as u64;
        (fits && link.import(&found).is_ok()).then_some(found)
    }

    /// The memory lets this process write a region, by this key; or not. Others may have written its registers before.
    fn granted(&mut self, region: usize, encoded: Option<&[u8]>) {
        self.known[region].write = self.import(region, encoded);
        self.known[region].seqs.fill(None);
    }

    /// Asks what the last write of a register was, and of those behind it, which are probably written next.
    fn learn(&mut self, region: u8, first: u16) {
        let asked = |learning: &Learning| learning.region == region && learning.registers.contains(&first);
        if self.learning.iter().any(asked) {
            return;
        }
        let at_once = (LOOKED_THROUGH / self.layout.stride(region)).clamp(1, usize::from(LEARNT)) as u16;
        let end = first.saturating_add(at_once).min(self.layout.registers(region));
        let State::Connected(link) = &mut self.state else { return };
        let request = Request::Learn { region, first, count: end - first };
        if link.send(postcard::to_stdvec(&request).expect("plain data")) {
            self.learning.push_back(Learning { region, registers: first..end });
        }
    }

    /// A request has completed.
    fn done(&mut self, done: &Completion, answers: &mut Vec<(OpId, Response<C>)>) {
        let Ok(at) = self.pending.binary_search_by_key(&done.wr_id, |p| p.number) else { return };
        let Stage::Posted(slot) = self.pending[at].stage else { return };
        self.free(slot);
        let refused = matches!(done.outcome, Outcome::Failed(_));
        match (&self.pending[at].op, done.is_success()) {
            (Op::Write { .. }, true) => self.answer(at, Response::Ack, answers),
            (Op::Write { .. }, false) if refused => self.answer(at, Response::Nak, answers),
            // It was executed, with something before it refused: the link is made anew.
            (Op::Write { .. }, false)
                if done.outcome == Outcome::Unresolved(UnresolvedError::ExecutedBehindError) =>
            {
                self.answer(at, Response::Ack, answers);
            }
            (Op::Write { .. }, false) => self.pending[at].stage = Stage::Unknown,
            (_, false) => self.pending[at].stage = Stage::Queued,
            (Op::WriteOnce { .. }, true) => self.settled(at, slot, answers),
            (_, true) => self.have_read(at, slot, answers),
        }
    }

    fn free(&mut self, slot: Slot) {
        match slot {
            Slot::None => {}
            Slot::Read(slot) => self.free_reads.push(slot),
            Slot::Write(slot) => self.free_writes.push(slot),
        }
    }

    /// The memory's processor has answered.
    fn told(&mut self, message: &[u8], answers: &mut Vec<(OpId, Response<C>)>) {
        match postcard::from_bytes(message) {
            Ok(Answer::Changed { write }) => self.changed(write.as_deref(), answers),
            Ok(Answer::Learnt { seqs }) => {
                let Some(Learning { region, registers }) = self.learning.pop_front() else { return };
                let Some(known) = self.known.get_mut(usize::from(region)) else { return };
                for (register, seq) in registers.zip(seqs) {
                    // What was written since is known better here.
                    if let Some(unknown @ None) = known.seqs.get_mut(usize::from(register)) {
                        *unknown = Some(seq);
                    }
                }
            }
            Err(_) => {}
        }
    }

    /// The oldest change was made, if it is legal.
    fn changed(&mut self, write: Option<&[u8]>, answers: &mut Vec<(OpId, Response<C>)>) {
        let Some(at) = self.pending.iter().position(|p| p.stage == Stage::Asked) else { return };
        let Op::ChangePermissions { region, .. } = self.pending[at].op else { return };
        if usize::from(region) < self.known.len() {
            self.granted(region.into(), write);
        }
        self.answer(at, Response::Ack, answers);
    }

    fn answer(&mut self, at: usize, response: Response<C>, answers: &mut Vec<(OpId, Response<C>)>) {
        if let Some(pending) = self.pending.remove(at) {
            answers.push((pending.id, response));
        }
    }
}

impl<C> Drop for Port<C> {
    fn drop(&mut self) {
        self.state = State::Dead;
        // A NIC that does not confirm is dead, or hung: nothing is left to be done about it.
        let _ = self.identity.domain.deregister(&self.mr);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use mitra_consensus::{LegalChange, Permissions, ProcessId, RegisterKind};
    use mitra_failover::Domain;
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::memory_node::{MemoryConfig, MemoryNode};

    fn domain() -> Arc<Domain> {
        Domain::with_completion_channels(vec![SoftNic::open(Config::loopback()).expect("a NIC")])
            .expect("a domain")
    }

    /// Queue pairs run out for a while, just as the connection to a memory breaks.
    #[test]
    fn a_memory_is_called_again_once_there_are_queue_pairs() {
        let permissions = Permissions::single_writer(1, ProcessId(0));
        let region = Region {
            registers: 1,
            permissions,
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        let regions = vec![region];
        let failover = mitra_failover::Config::default();
        let (tokens, listener) = (vec![[7; 16]], TcpListener::bind("127.0.0.1:0").expect("a port"));
        let config = MemoryConfig {
            regions: regions.clone(),
            register_capacity: 64,
            tokens,
            allow_restarts: false,
            storage: None,
            failover,
        };
        let mut memory = MemoryNode::new(domain(), listener, config).expect("a memory");
        let identity = Identity { me: ProcessId(0), domain: domain(), failover, token: [7; 16], life: 1 };
        let mut port: Port<u64> =
            Port::new(identity.clone(), memory.address(), &regions, 64).expect("a port");
        let mut until_ready = |port: &mut Port<u64>| {
            let end = Instant::now() + Duration::from_secs(10);
            while !port.is_ready() && Instant::now() < end {
                memory.serve_for(Duration::from_millis(1));
                port.poll(&mut Vec::new());
            }
            port.is_ready()
        };
        assert!(until_ready(&mut port));
        // All that there are but those of the connection, and those too when it has gone.
        let mut all: Vec<Link> = std::iter::from_fn(|| identity.link(MESSAGE).ok()).collect();
        port.state = State::Dead;
        all.extend(std::iter::from_fn(|| identity.link(MESSAGE).ok()));
        port.call();
        port.poll(&mut Vec::new());
        assert!(!port.is_ready() && !port.is_dead());
        drop(all);
        assert!(until_ready(&mut port));
    }
}
